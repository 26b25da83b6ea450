// SPDX-License-Identifier: Apache-2.0
//
// A configuration of Accelerate, which starts PyTorch's FSDP2: accelerate launch --config_file FILE train.py.
// The model and the optimizer are the user's code: what the file cannot say of them is in the notes.
#include "core/text.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

const char* mixed_precision(const Training& t) {
  if (rounds(t.math)) return "fp8";
  if (t.precision == Precision::kPureBf16 || t.precision == Precision::kPureBf16Adam8bit)
    return "'no'";  // the model is loaded in bf16
  switch (t.parameter_type()) {
    case DType::kBfloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    default:
      return "'no'";  // quoted: a bare no is false in YAML
  }
}

// One process has shards too, where they lie in the host's memory.
bool is_sharded(const Plan& p) {
  return (p.dp > 1 && p.zero > 0) || p.offloads_parameters();
}

// Lines of fsdp_config, and of parallelism_config where shards are shared by fewer ranks than all.
std::string sharding(const Plan& p) {
  if (!is_sharded(p)) return {};
  std::string out = fmt::format(
      "fsdp_config:\n"
      "  fsdp_version: 2\n"
      "  fsdp_reshard_after_forward: {}\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_activation_checkpointing: {}\n"
      "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
      "  fsdp_cpu_ram_efficient_loading: true\n"
      "  fsdp_offload_params: {}\n",
      p.zero == 3 && p.reshards(), p.recompute == Recompute::kFull, p.offloads_parameters());
  if (p.shards() < p.dp) {
    out += fmt::format(
        "parallelism_config:\n"
        "  parallelism_config_dp_replicate_size: {}\n"
        "  parallelism_config_dp_shard_size: {}\n",
        p.dp / p.shards(), p.shards());
  }
  return out;
}

std::vector<std::string> notes(const Training& t, const Plan& p, const Recipe& r) {
  std::vector<std::string> out;
  out.push_back(
      fmt::format("the training script sets {} sequences of {} tokens per device, {} gradient "
                  "accumulation steps and gradient clipping of {}",
                  p.micro_batch, t.sequence, p.micro_batches, t.clip));
  if (r.learning_rate) {
    const Optimizer& o = t.optimizer;
    out.push_back(
        fmt::format("the training script sets AdamW with learning rate {:.2e}, betas {} and {}, epsilon {}, "
                    "weight decay {}{}, {} warm-up steps{}",
                    *r.learning_rate, o.beta1, o.beta2, o.epsilon, kWeightDecay,
                    o.decay == Decay::kMatrices ? " (not of norms and biases)" : "", r.warm_up_steps,
                    r.steps > 0 ? fmt::format(" of {}", r.steps) : ""));
  }
  if (p.offloaded_optimizer() > 0 && !p.offloads_parameters()) {
    out.push_back(fmt::format(
        "the training script wraps its optimizer for the host: torchao.optim.CPUOffloadOptimizer(.., "
        "{}), of {:g} % of the parameters",
        "torch.optim.AdamW", 100 * p.offload->optimizer));
  }
  if (p.offloaded_layers() > 0) {
    out.push_back(
        fmt::format("the forward passes of the first {} layers run in "
                    "torch.autograd.graph.save_on_cpu(pin_memory=True), or "
                    "in torchtune.training.OffloadActivations, which copies beside compute",
                    p.offload->activation_layers));
  }
  if (p.loss_chunks > 1)
    out.emplace_back(
        "the model takes the loss in parts: transformers.TrainingArguments(use_liger_kernel=True), which "
        "chooses "
        "their number itself");
  if (p.update_in_backward)
    out.emplace_back(
        "the training script gives each parameter an optimizer of its own, which "
        "register_post_accumulate_grad_hook steps");
  if (bytes_per_parameter(t.precision).moment == 1)
    out.emplace_back("the optimizer is bitsandbytes.optim.AdamW8bit");
  if (p.zero == 0 && p.recompute == Recompute::kFull)
    out.emplace_back("the model itself recomputes activations: gradient_checkpointing_enable()");
  return out;
}

}  // namespace

Exported accelerate_config(const Problem& problem, const Plan& p, const Cursor& scenario) {
  const Training& t = problem.scenario.training;
  const Layout layout = layout_of(problem, p, scenario.child("cluster"));
  const bool sharded = is_sharded(p);
  std::string text = fmt::format(
      "# {} of {}, for {}. On each of {} node{}:\n"
      "# accelerate launch --config_file THIS_FILE{} TRAINING_SCRIPT\n"
      "compute_environment: LOCAL_MACHINE\n"
      "distributed_type: {}\n"
      "mixed_precision: {}\n"
      "num_machines: {}\n"
      "num_processes: {}\n"
      "machine_rank: 0\n"
      "main_training_function: main\n"
      "rdzv_backend: static\n"
      "same_network: true\n"
      "use_cpu: false\n",
      short_name(p), printable(problem.scenario.model.name), printable(problem.stack.runs->software),
      layout.nodes, layout.nodes == 1 ? "" : "s",
      layout.nodes == 1 ? "" : " --machine_rank N --main_process_ip ADDRESS",
      sharded ? "FSDP" : (p.dp > 1 ? "MULTI_GPU" : "'NO'"), mixed_precision(t), layout.nodes, p.ranks());
  if (rounds(t.math))
    text += fmt::format("fp8_config:\n  backend: {}\n", t.math == Math::kFp8Delayed ? "TE" : "AO");
  return {.text = text + sharding(p),
          .notes = notes(t, p, recipe_of(problem)),
          .variables = {kTrain},
          .file = "fsdp.yaml",
          .start = [](const Layout& of) {
            const char* machine = of.nodes > 1
                                      ? "  --machine_rank \"$NODE_RANK\" --main_process_ip \"$MASTER_ADDR\" "
                                        "--main_process_port \"${MASTER_PORT:-29500}\" \\\n"
                                      : "";
            return fmt::format(
                "{}exec accelerate launch --config_file \"$FOLDER/fsdp.yaml\" \\\n{}  \"${{train[@]}}\"\n",
                reads_train(), machine);
          }};
}

}  // namespace orrery::planner
