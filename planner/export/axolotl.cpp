// SPDX-License-Identifier: Apache-2.0
//
// A configuration of Axolotl, which fine-tunes with PyTorch's FSDP2: axolotl train FILE --launcher torchrun.
#include <cmath>

#include "core/text.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

constexpr const char* kVersion = "Axolotl v0.18.0";

// What its configuration cannot say.
void check_fits(const Problem& problem, const Plan& p, const Cursor& scenario) {
  const Training& t = problem.scenario.training;
  const Cursor plan = scenario.child("plan"), training = scenario.child("training");
  const auto refuse = [](const Cursor& at, const char* what, const char* allowed) {
    at.fail(fmt::format("{} {}", kVersion, what), fmt::format("allowed: {}", allowed));
  };
  if (p.dp > 1 && p.zero == 0 && !t.adapter)
    refuse(plan.child("zero"), "shares what replicas train by FSDP2", "2 or 3");
  if (p.offloaded_optimizer() > 0 && !p.offloads_parameters())
    refuse(plan.child("offload").child("parameters"), "offloads the optimizer with its parameters", "true");
  if (p.offloaded_layers() > 0 && p.offloaded_layers() < problem.scenario.model.layers)
    refuse(plan.child("offload").child("activation_layers"), "offloads the activations of all layers",
           fmt::format("0 or {}", problem.scenario.model.layers).c_str());
  if (p.offloaded_layers() > 0 && (t.adapter || p.recompute != Recompute::kFull))
    refuse(plan.child("offload").child("activation_layers"),
           "offloads what full recomputation keeps, and with an adapter it does so in place of recomputation",
           "0, or recompute full without an adapter");
  // It loads weights in bf16 and updates what it has loaded.
  if (!t.adapter && t.precision == Precision::kMixed)
    refuse(training.child("precision"), "has no fp32 copies of weights that it trains",
           "pure-bf16, pure-bf16-8bit, fp32, or an adapter");
  if (t.math == Math::kFp16)
    refuse(training.child("math"), "trains in bf16 where it does not in fp32", "bf16, fp8, fp32");
  if (p.update_in_backward)
    refuse(plan.child("update_in_backward"), "updates parameters after the backward pass", "false");
  if (t.math == Math::kFp8Delayed)
    refuse(training.child("math"), "has a factor for each tensor of a step", "bf16, fp8");
  if (t.adapter && t.adapter->alpha != std::floor(t.adapter->alpha))
    refuse(training.child("adapter").child("alpha"), "has whole numbers for it", "whole numbers");
  if (t.optimizer.decay == Decay::kAll)
    refuse(training.child("optimizer").child("decay"), "leaves norms and biases out of weight decay",
           "matrices");
}

// FSDP2 goes with torchao's 8-bit moments, and not with bitsandbytes'.
const char* optimizer(Precision precision, bool sharded) {
  if (bytes_per_parameter(precision).moment > 1) return "adamw_torch_fused";
  return sharded ? "adamw_torch_8bit" : "adamw_bnb_8bit";
}

bool is_fully_sharded(const Plan& p) {
  return p.zero > 0 && (p.dp > 1 || p.offloads_parameters());
}

std::string adapter_lines(const Adapter& a, const Cursor& at) {
  const bool narrow = a.base != BaseStorage::kAsComputed;
  std::string out =
      fmt::format("adapter: {}\nload_in_4bit: {}\nlora_r: {}\nlora_alpha: {:g}\nlora_dropout: 0.0\n",
                  narrow ? "qlora" : "lora", narrow, a.rank, a.alpha);
  if (narrow)
    out += fmt::format("bnb_config_kwargs:\n  bnb_4bit_quant_type: nf4\n  bnb_4bit_use_double_quant: {}\n",
                       a.base == BaseStorage::kNf4Double);
  if (a.targets.empty()) return out + "lora_target_linear: true\n";
  out += "lora_target_modules:\n";
  for (std::size_t i = 0; i < a.targets.size(); ++i)
    out += fmt::format("  - {}\n", module_of(a.targets[i], "Axolotl", at.child("targets").child(i)));
  return out;
}

std::string fsdp_lines(const Plan& p) {
  if (!is_fully_sharded(p)) return {};
  std::string out;
  if (p.shards() < p.dp)
    out += fmt::format("dp_shard_size: {}\ndp_replicate_size: {}\n", p.shards(), p.dp / p.shards());
  return out + fmt::format(
                   "fsdp_version: 2\n"
                   "fsdp_config:\n"
                   "  reshard_after_forward: {}\n"
                   "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                   "  state_dict_type: SHARDED_STATE_DICT\n"
                   "  cpu_ram_efficient_loading: true\n"
                   "  offload_params: {}\n",
                   p.zero == 3 && p.reshards(), p.offloads_parameters());
}

}  // namespace

Exported axolotl_config(const Problem& problem, const Plan& p, const Cursor& scenario) {
  check_fits(problem, p, scenario);
  const Training& t = problem.scenario.training;
  const Layout layout = layout_of(problem, p, scenario.child("cluster"));
  const Recipe r = recipe_of(problem);
  const DType type = t.parameter_type();
  Exported out;
  out.text = fmt::format(
      "# {} of {}, for {}. On each of {} node{}:\n"
      "# axolotl train THIS_FILE --launcher torchrun -- --nnodes={} --nproc_per_node={}{}\n"
      "base_model: BASE_MODEL\n"
      "datasets:\n"
      "  - path: DATASET\n"
      "    type: DATASET_TYPE\n"
      "output_dir: OUTPUT_DIR\n"
      "sequence_len: {}\n"
      "sample_packing: true\n"
      "pad_to_sequence_len: true\n"
      "micro_batch_size: {}\n"
      "gradient_accumulation_steps: {}\n"
      "max_steps: {}\n",
      short_name(p), printable(problem.scenario.model.name), kVersion, layout.nodes,
      layout.nodes == 1 ? "" : "s", layout.nodes, layout.per_node,
      layout.nodes == 1 ? "" : " --node_rank=N --master_addr=HEAD --master_port=29500", t.sequence,
      p.micro_batch, p.micro_batches, r.steps > 0 ? std::to_string(r.steps) : "MAX_STEPS");
  out.text += fmt::format(
      "optimizer: {}\n"
      "learning_rate: {}\n"
      "lr_scheduler: cosine\n"
      "cosine_min_lr_ratio: {}\n"
      "warmup_steps: {}\n"
      "weight_decay: {}\n"
      "adam_beta1: {}\n"
      "adam_beta2: {}\n"
      "adam_epsilon: {}\n"
      "max_grad_norm: {}\n",
      optimizer(t.precision, is_fully_sharded(p)),
      r.learning_rate ? fmt::format("{:.3e}", *r.learning_rate) : "LEARNING_RATE", kLastRate, r.warm_up_steps,
      kWeightDecay, t.optimizer.beta1, t.optimizer.beta2, yaml_number(t.optimizer.epsilon), t.clip);
  out.text += fmt::format("bf16: {}\nfp16: {}\ntf32: {}\n", type == DType::kBfloat16, type == DType::kFloat16,
                          t.math == Math::kTf32);
  if (t.math == Math::kFp8) out.text += "fp8: true\ntorch_compile: true\n";
  out.text +=
      fmt::format("attn_implementation: {}\n", type == DType::kFloat32 ? "sdpa" : "flash_attention_2");
  const bool offloads = p.offloaded_layers() > 0;
  out.text += fmt::format("gradient_checkpointing: {}\nactivation_offloading: {}\n",
                          p.recompute == Recompute::kFull, offloads);
  if (p.loss_chunks > 1)
    out.text +=
        fmt::format("chunked_cross_entropy: true\nchunked_cross_entropy_num_chunks: {}\n", p.loss_chunks);
  if (t.adapter) out.text += adapter_lines(*t.adapter, scenario.child("training").child("adapter"));
  out.text += fsdp_lines(p);
  out.file = "axolotl.yaml";
  out.start = [](const Layout& of) {
    return "exec axolotl train \"$FOLDER/axolotl.yaml\" --launcher torchrun -- \\\n  " +
           torchrun_arguments(of) + "\n";
  };
  out.placeholders = {"BASE_MODEL", "DATASET", "DATASET_TYPE", "OUTPUT_DIR"};
  if (r.steps == 0) out.placeholders.emplace_back("MAX_STEPS");
  if (!r.learning_rate) out.placeholders.emplace_back("LEARNING_RATE");
  out.notes.push_back(
      fmt::format("in the configuration, {} are to be replaced", fmt::join(out.placeholders, ", ")));
  if (t.adapter && !t.adapter->targets.empty())
    out.notes.emplace_back("lora_target_modules has the names of models of Llama's kind");
  return out;
}

}  // namespace orrery::planner
