// SPDX-License-Identifier: Apache-2.0
//
// A recipe of NeMo AutoModel, which trains models of Hugging Face with FSDP2, tensor and pipeline
// parallelism: automodel FILE, or torchrun -m nemo_automodel.cli.app FILE. Names are those of 36044ad (22
// August 2026).
#include <cmath>

#include "core/text.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

constexpr const char* kAutomodel = "NeMo AutoModel 36044ad";

// Whole replicas are PyTorch's DDP; all else is FSDP2.
bool whole_replicas(const Plan& p) {
  return p.zero == 0 && p.tp == 1 && p.pp == 1;
}

// What a recipe cannot say, or what is not written.
void check_recipe(const Problem& problem, const Plan& p, const Cursor& scenario) {
  const Training& t = problem.scenario.training;
  const Cursor plan = scenario.child("plan"), training = scenario.child("training");
  const auto refuse = [](const Cursor& at, const char* what, const char* allowed) {
    at.fail(fmt::format("{} {}", kAutomodel, what), fmt::format("allowed: {}", allowed));
  };
  if (!experts_of(problem.scenario.model).empty())
    refuse(scenario.child("model"), "has backends for models with experts, which are not written",
           "dense models");
  if (p.cp > 1)
    refuse(plan.child("cp"), "shares sequences that its collater packs, which is not written", "1");
  if (p.pp > 1 && p.micro_batches < p.pp)
    refuse(plan.child("micro_batches"), "gives each stage a micro-batch at the least",
           fmt::format("{} or more with {} stages", p.pp, p.pp).c_str());
  if (whole_replicas(p) && !t.adapter && bytes_per_parameter(t.precision).master > 0)
    refuse(training.child("precision"), "trains whole replicas in the format that it loads them in",
           "pure-bf16, fp32, an adapter, or zero 2 or 3");
  if (t.math == Math::kTf32) refuse(training.child("math"), "has no field for TF32", "bf16, fp32");
  if (t.adapter && t.adapter->alpha != std::floor(t.adapter->alpha))
    refuse(training.child("adapter").child("alpha"), "has whole numbers for it", "whole numbers");
}

const char* torch_type(DType type) {
  return type == DType::kFloat32 ? "float32" : "bfloat16";
}

// What the schedule is called by torch.distributed.pipelining.
const char* pp_schedule(Schedule s) {
  switch (s) {
    case Schedule::kGPipe:
      return "gpipe";
    case Schedule::k1F1B:
      return "1f1b";
    case Schedule::kInterleaved:
      return "interleaved1f1b";
    case Schedule::kNaive:
    case Schedule::kZeroBubbleH1:
    case Schedule::kZeroBubbleV:
    case Schedule::kDualPipeV:
    case Schedule::kListed:
      break;
  }
  throw std::logic_error("NeMo AutoModel has no such schedule");
}

// Modules of each chunk, as models of Hugging Face name them.
std::string modules_of(const Plan& p, std::int64_t layers) {
  const std::vector<std::int64_t> of_chunk = layers_by_chunk(p, layers);
  std::string out;
  std::int64_t layer = 0;
  for (std::size_t c = 0; c < of_chunk.size(); ++c) {
    std::vector<std::string> modules;
    if (c == 0) modules.emplace_back("model.embed_tokens");
    for (std::int64_t l = 0; l < of_chunk[c]; ++l) modules.push_back(fmt::format("model.layers.{}", layer++));
    if (c + 1 == of_chunk.size()) modules.insert(modules.end(), {"model.norm", "lm_head"});
    modules.emplace_back("model.rotary_emb");
    out += fmt::format("      - [{}]\n", fmt::join(modules, ", "));
  }
  return out;
}

std::string distributed(const Problem& problem, const Plan& p) {
  const Training& t = problem.scenario.training;
  const bool repeats = p.recompute == Recompute::kFull;
  if (whole_replicas(p))
    return fmt::format("distributed:\n  strategy: ddp\n  dp_size: {}\n  activation_checkpointing: {}\n", p.dp,
                       repeats);
  const char* const computes = torch_type(t.parameter_type());
  std::string out = fmt::format(
      "distributed:\n"
      "  strategy: fsdp2\n"
      "  dp_size: {}\n"
      "  dp_replicate_size: {}\n"
      "  tp_size: {}\n"
      "  cp_size: 1\n"
      "  pp_size: {}\n"
      "  sequence_parallel: {}\n"
      "  activation_checkpointing: {}\n"
      "  reshard_after_forward: {}\n"
      "  mp_policy:\n"
      "    _target_: torch.distributed.fsdp.MixedPrecisionPolicy\n"
      "    param_dtype: {}\n"
      "    reduce_dtype: {}\n"
      "    output_dtype: {}\n"
      "    cast_forward_inputs: true\n",
      p.dp, p.dp / p.shards(), p.tp, p.pp, p.sequence_parallel, repeats, p.zero == 3 && p.reshards(),
      computes, torch_type(t.gradient_type()), computes);
  if (p.pp > 1)
    out += fmt::format(
        "  pipeline:\n"
        "    pp_schedule: {}\n"
        "    pp_microbatch_size: {}\n"
        "    scale_grads_in_schedule: false\n"
        "    module_fqns_per_model_part:\n{}",
        pp_schedule(p.schedule), p.micro_batch, modules_of(p, problem.scenario.model.layers));
  return out;
}

std::string peft_lines(const Adapter& a, const Cursor& at) {
  std::string out = fmt::format(
      "peft:\n  _target_: nemo_automodel.components._peft.lora.PeftConfig\n  dim: {}\n  alpha: {:g}\n  "
      "dropout: 0.0\n",
      a.rank, a.alpha);
  out += "  target_modules:\n";
  if (a.targets.empty()) out += "    - \"*_proj\"\n";
  for (std::size_t i = 0; i < a.targets.size(); ++i)
    out += fmt::format("    - \"*{}\"\n",
                       module_of(a.targets[i], "NeMo AutoModel", at.child("targets").child(i)));
  if (a.base == BaseStorage::kAsComputed) return out;
  return out + fmt::format(
                   "quantization:\n"
                   "  load_in_4bit: true\n"
                   "  load_in_8bit: false\n"
                   "  bnb_4bit_compute_dtype: bfloat16\n"
                   "  bnb_4bit_use_double_quant: {}\n"
                   "  bnb_4bit_quant_type: nf4\n"
                   "  bnb_4bit_quant_storage: bfloat16\n",
                   a.base == BaseStorage::kNf4Double);
}

}  // namespace

Exported automodel_config(const Problem& problem, const Plan& p, const Cursor& scenario) {
  check_recipe(problem, p, scenario);
  const Training& t = problem.scenario.training;
  const Recipe r = recipe_of(problem);
  // FSDP2 keeps what it loads, and computes as mp_policy says.
  const bool fp32 =
      t.parameter_type() == DType::kFloat32 || (!t.adapter && bytes_per_parameter(t.precision).master > 0);
  Exported out;
  out.text = fmt::format(
      "# {} of {}, for {}: automodel THIS_FILE\n"
      "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
      "step_scheduler:\n"
      "  global_batch_size: {}\n"
      "  local_batch_size: {}\n"
      "  max_steps: {}\n"
      "model:\n"
      "  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
      "  pretrained_model_name_or_path: BASE_MODEL\n"
      "  torch_dtype: {}\n"
      "  attn_implementation: {}\n",
      short_name(p), printable(problem.scenario.model.name), kAutomodel, t.global_batch,
      p.micro_batch * (p.pp > 1 ? p.micro_batches : 1), r.steps > 0 ? std::to_string(r.steps) : "MAX_STEPS",
      fp32 ? "float32" : "bfloat16", t.parameter_type() == DType::kFloat32 ? "sdpa" : "flash_attention_2");
  out.text += distributed(problem, p);
  if (t.adapter) out.text += peft_lines(*t.adapter, scenario.child("training").child("adapter"));
  // The other packing strategy, thd, packs nothing where a model takes no lengths of sequences.
  out.text += fmt::format(
      "loss_fn:\n"
      "  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy\n"
      "dataset:\n"
      "  _target_: DATASET\n"
      "packed_sequence:\n"
      "  packed_sequence_size: {}\n"
      "  packing_strategy: neat\n"
      "dataloader:\n"
      "  _target_: torchdata.stateful_dataloader.StatefulDataLoader\n"
      "  collate_fn: nemo_automodel.components.datasets.utils.default_collater\n"
      "  shuffle: true\n"
      "optimizer:\n"
      "  _target_: torch.optim.AdamW\n"
      "  lr: {}\n"
      "  betas: [{}, {}]\n"
      "  eps: {}\n"
      "  weight_decay: {}\n"
      "clip_grad_norm:\n"
      "  max_norm: {}\n"
      "lr_scheduler:\n"
      "  lr_decay_style: cosine\n"
      "  lr_warmup_steps: {}\n",
      t.sequence, r.learning_rate ? fmt::format("{:.3e}", *r.learning_rate) : "LEARNING_RATE",
      t.optimizer.beta1, t.optimizer.beta2, yaml_number(t.optimizer.epsilon), kWeightDecay,
      t.clip > 0 ? t.clip : 1e9, r.warm_up_steps);
  if (r.learning_rate) out.text += fmt::format("  min_lr: {:.3e}\n", kLastRate * *r.learning_rate);
  out.file = "automodel.yaml";
  out.start = [](const Layout& of) {
    return "exec " + torchrun(of) + "  -m nemo_automodel.cli.app \"$FOLDER/automodel.yaml\"\n";
  };
  out.placeholders = {"BASE_MODEL", "DATASET"};
  if (r.steps == 0) out.placeholders.emplace_back("MAX_STEPS");
  if (!r.learning_rate) out.placeholders.emplace_back("LEARNING_RATE");
  out.notes.push_back(fmt::format(
      "in the configuration, {} are to be replaced; dataset wants the arguments of its class beside _target_",
      fmt::join(out.placeholders, ", ")));
  if (!t.adapter && t.optimizer.decay == Decay::kMatrices)
    out.notes.emplace_back("weight_decay shrinks norms and biases too");
  if (t.adapter) out.notes.emplace_back("target_modules has the names of models of Llama's kind");
  return out;
}

}  // namespace orrery::planner
