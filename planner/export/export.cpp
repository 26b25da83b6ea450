// SPDX-License-Identifier: Apache-2.0
#include "planner/export/export.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "planner/export/recipe.h"
#include "planner/export/targets.h"
#include "planner/plan.h"

namespace orrery::planner {

const char* stack_of(Target target) {
  switch (target) {
    case Target::kMegatron:
    case Target::kMegatronBridge:
      return "megatron-core";
    case Target::kAutomodel:
      return "automodel";
    case Target::kTorchtitan:
      return "torchtitan";
    case Target::kMaxtext:
      return "maxtext";
    case Target::kDeepspeed:
      return "deepspeed";
    case Target::kFsdp:
    case Target::kAxolotl:
      return "fsdp";
  }
  throw Error("an export target without a stack");
}

Recipe recipe_of(const Problem& problem) {
  const Training& t = problem.scenario.training;
  Recipe r;
  r.steps = static_cast<std::int64_t>(std::ceil(t.tokens / t.tokens_per_step()));
  if (const auto advice = learning_rate_advice(problem)) {
    r.learning_rate = advice->learning_rate;
    r.warm_up_steps = advice->warm_up_steps;
  }
  return r;
}

Layout layout_of(const Problem& problem, const Plan& plan, const Cursor& at) {
  const std::int64_t ranks = plan.ranks(), devices = problem.cluster.devices_per_node;
  for (std::int64_t nodes = (ranks + devices - 1) / devices; nodes <= problem.cluster.nodes; ++nodes) {
    if (ranks % nodes == 0) return {nodes, ranks / nodes};
  }
  if (ranks > problem.cluster.devices())
    at.fail(fmt::format("{} ranks are more than the cluster's {} devices", ranks, problem.cluster.devices()));
  at.fail(fmt::format("{} ranks cannot be spread evenly over the {} nodes of {} devices", ranks,
                      problem.cluster.nodes, devices));
}

namespace {

// What tells the nodes of a run of each other; nothing where there is one.
std::string rendezvous(const Layout& layout) {
  return layout.nodes == 1 ? ""
                           : "--node_rank=\"$NODE_RANK\" --master_addr=\"$MASTER_ADDR\" "
                             "--master_port=\"${MASTER_PORT:-29500}\" ";
}

}  // namespace

std::string yaml_number(double x) {
  std::string out = fmt::format("{}", x);
  const std::size_t e = out.find('e');
  if (e != std::string::npos && out.find('.') == std::string::npos) out.insert(e, ".0");
  return out;
}

const char* module_of(AdapterTarget target, const char* software, const Cursor& at) {
  switch (target) {
    case AdapterTarget::kQuery:
      return "q_proj";
    case AdapterTarget::kKey:
      return "k_proj";
    case AdapterTarget::kValue:
      return "v_proj";
    case AdapterTarget::kOutput:
      return "o_proj";
    case AdapterTarget::kGate:
      return "gate_proj";
    case AdapterTarget::kUp:
      return "up_proj";
    case AdapterTarget::kDown:
      return "down_proj";
    case AdapterTarget::kQueryDown:
    case AdapterTarget::kKeyValueDown:
    case AdapterTarget::kKeyValue:
      break;
  }
  at.fail(fmt::format("adapters of \"{}\" are not written for {}", name_of(target), software),
          "allowed: q, k, v, o, gate, up, down; or no targets for all of them");
}

std::string torchrun_arguments(const Layout& layout) {
  return rendezvous(layout) + fmt::format("--nnodes={} --nproc_per_node={}", layout.nodes, layout.per_node);
}

std::string torchrun(const Layout& layout) {
  const std::string others = rendezvous(layout);
  return fmt::format("torchrun --nnodes={} --nproc_per_node={} \\\n", layout.nodes, layout.per_node) +
         (others.empty() ? others : "  " + others + "\\\n");
}

std::string reads_train() {
  return fmt::format(
      "read -rd '' -a train <<<\"${{{0}-}}\" || true\n"
      "if [ ${{#train[@]}} -eq 0 ]; then\n"
      "  echo \"set {0} to your training script and its arguments, with spaces between and no quotation "
      "marks\" >&2\n"
      "  exit 2\n"
      "fi\n",
      kTrain);
}

namespace {

// What the user's code does with PEFT, and with bitsandbytes where the frozen weights have 4 bits.
std::vector<std::string> notes_of_adapter(const Training& t) {
  const Adapter& a = *t.adapter;
  std::string names;
  for (const AdapterTarget target : a.targets)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(target));
  std::vector<std::string> out{fmt::format(
      "the script adds the adapters: peft.LoraConfig(r={}, lora_alpha={}, lora_dropout=0, target_modules=..) "
      "with the model's names for {}",
      a.rank, a.alpha, names.empty() ? "all matrices of layers but routed experts" : names)};
  if (a.base != BaseStorage::kAsComputed)
    out.push_back(
        fmt::format("the script loads the model with transformers.BitsAndBytesConfig(load_in_4bit=True, "
                    "bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant={}, "
                    "bnb_4bit_compute_dtype=torch.{})",
                    a.base == BaseStorage::kNf4Double ? "True" : "False",
                    t.parameter_type() == DType::kFloat16   ? "float16"
                    : t.parameter_type() == DType::kFloat32 ? "float32"
                                                            : "bfloat16"));
  return out;
}

// Where documents end is the data's to say.
std::string note_of_documents(Target target) {
  const std::string packed = "sequences are packed from documents (training.documents): ";
  switch (target) {
    case Target::kAutomodel:
      return packed + "packed_sequence keeps attention within them";
    case Target::kAxolotl:
      return packed + "sample_packing keeps attention within them";
    case Target::kMaxtext:
      return packed + "packing, which is on by default, keeps attention within them";
    case Target::kMegatronBridge:
    case Target::kTorchtitan:
    case Target::kDeepspeed:
    case Target::kFsdp:
      return packed + "your data loader has to tell attention where they end, which nothing here does";
    case Target::kMegatron:
      break;
  }
  return packed +
         "pretrain_gpt.py keeps attention within them with --sft; --reset-attention-mask makes a mask "
         "of every pair of tokens, which takes longer than predicted";
}

Exported without_documents(Target target, const Problem& problem, const Plan& plan, const Cursor& scenario) {
  const std::optional<Adapter>& adapter = problem.scenario.training.adapter;
  const auto with_notes = [&](Exported e) {
    if (!adapter) return e;
    for (std::string& note : notes_of_adapter(problem.scenario.training)) e.notes.push_back(std::move(note));
    return e;
  };
  if (adapter && std::string_view(stack_of(target)) == "megatron-core")
    scenario.child("training")
        .child("adapter")
        .fail("Megatron-LM's script trains no adapters", "allowed: no such field; or deepspeed, fsdp");
  switch (target) {
    case Target::kMegatron:
      return megatron_script(problem, plan, scenario);
    case Target::kMegatronBridge:
      return bridge_script(problem, plan, scenario);
    case Target::kTorchtitan:  // nor do these stacks run adapters
      return torchtitan_config(problem, plan, scenario);
    case Target::kMaxtext:
      return maxtext_command(problem, plan, scenario);
    case Target::kDeepspeed:
      return with_notes(deepspeed_config(problem, plan));
    case Target::kFsdp:
      return with_notes(accelerate_config(problem, plan, scenario));
    case Target::kAxolotl:
      return axolotl_config(problem, plan, scenario);
    case Target::kAutomodel:
      return automodel_config(problem, plan, scenario);
  }
  throw Error("an export target without an exporter");
}

}  // namespace

Exported export_plan(Target target, const Problem& problem, const Plan& plan, const Cursor& scenario) {
  Exported out = without_documents(target, problem, plan, scenario);
  if (problem.scenario.training.documents) out.notes.push_back(note_of_documents(target));
  return out;
}

}  // namespace orrery::planner
