// SPDX-License-Identifier: Apache-2.0
//
// A configuration of DeepSpeed. The model is the user's code: what the file cannot say of it is in the notes.
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

Json optimizer(const Training& t, const Recipe& r) {
  const Json rate =
      r.learning_rate ? Json(std::stod(fmt::format("{:.3e}", *r.learning_rate))) : Json("LEARNING_RATE");
  if (t.precision == Precision::kSgd)
    return {{"type", "SGD"}, {"params", {{"lr", rate}, {"momentum", t.optimizer.beta1}}}};
  return {{"type", t.lamb ? "Lamb" : "AdamW"},
          {"params",
           {{"lr", rate},
            {"betas", {t.optimizer.beta1, t.optimizer.beta2}},
            {"eps", t.optimizer.epsilon},
            {"weight_decay", kWeightDecay}}}};
}

// Stands for a folder that the plan does not know.
constexpr const char* kDrives = "NVME_FOLDER";

// ZeRO-Offload and ZeRO-Infinity. A stage is theirs alone: one replica has the first, and the third where its
// state lies on drives.
void add_offload(const Plan& p, Json& out) {
  const auto in = [](bool drives) {
    Json where = {{"device", drives ? "nvme" : "cpu"}, {"pin_memory", true}};
    if (drives) where["nvme_path"] = kDrives;
    return where;
  };
  if (p.offloaded_optimizer() > 0) {
    Json& state = out["offload_optimizer"];
    state = in(p.optimizer_on_drives());
    if (p.offload->optimizer < 1 && !p.optimizer_on_drives()) state["ratio"] = p.offload->optimizer;
    if (p.optimizer_on_drives() && p.offload->overlap)
      state["pipeline_read"] = state["pipeline_write"] = true;
    out["stage"] = std::max<std::int64_t>(p.optimizer_on_drives() ? 3 : 1, p.zero);
  }
  if (p.offloads_parameters()) out["offload_param"] = in(p.parameters_on_drives());
}

Json zero(const Problem& problem, const Plan& p) {
  Json out = {{"stage", p.copies() > 1 ? p.zero : 0}};
  add_offload(p, out);
  if (p.copies() == 1 || p.zero == 0) return out;
  out["overlap_comm"] = problem.stack.overlap_grad_reduce;
  out["contiguous_gradients"] = true;
  out["reduce_scatter"] = true;
  if (p.shards() < p.copies()) out["mics_shard_size"] = p.shards();
  return out;
}

std::vector<std::string> notes(const Training& t, const Plan& p, const Recipe& r) {
  std::vector<std::string> out;
  if (t.precision != Precision::kSgd && t.optimizer.decay == Decay::kMatrices) {
    out.emplace_back(
        "DeepSpeed's weight_decay shrinks every parameter that it is given: pass norms and biases as a "
        "parameter group of their own with weight_decay 0");
  }
  if (!r.learning_rate)
    out.emplace_back("LEARNING_RATE is to be replaced by a number: no rate is advised for this optimizer");
  if (p.optimizer_on_drives() && p.offload->optimizer < 1)
    out.emplace_back("DeepSpeed takes offload_optimizer's ratio with device cpu: on drives it offloads all");
  if (p.optimizer_on_drives())
    out.push_back(fmt::format("{} is to be replaced by a folder on the node's drives", kDrives));
  if (r.steps == 0)
    out.emplace_back("the scenario has no tokens, so the file has no schedule of the learning rate");
  if (p.pp > 1) {
    out.push_back(
        fmt::format("build the model as PipelineModule(num_stages={}, partition_method=\"uniform\", "
                    "activation_checkpoint_interval={})",
                    p.pp, p.recompute == Recompute::kFull ? p.recompute_layers : 0));
  } else if (p.recompute == Recompute::kFull) {
    out.push_back(
        fmt::format("wrap every {} of the model in deepspeed.checkpointing.checkpoint",
                    p.recompute_layers == 1 ? "layer" : fmt::format("{} layers", p.recompute_layers)));
  }
  if (p.tp > 1 && (p.pp > 1 || p.sequence_parallel)) {
    out.push_back(
        fmt::format("tensor parallelism of {} comes from the model, as Megatron-DeepSpeed's, given as "
                    "mpu: DeepSpeed's own has no pipeline and no sequence parallelism",
                    p.tp));
  }
  if (p.loss_chunks > 1) {
    out.push_back(fmt::format(
        "compute the loss by deepspeed.runtime.sequence_parallel.ulysses_sp.TiledFusedLogitsLoss in {} tiles",
        p.loss_chunks));
  }
  if (p.cp > 1) {
    out.push_back(fmt::format(
        "wrap attention in deepspeed.sequence.layer.DistributedAttention over groups of {} ranks, "
        "which share sequences",
        p.cp));
  }
  if (p.splits_experts()) {
    out.push_back(fmt::format(
        "build layers with experts as deepspeed.moe.layer.MoE(ep_size={}), whose experts are {}", p.ep,
        p.expert_tp() == p.tp ? "split as other layers are"
                              : fmt::format("split over {} tensor ranks", p.expert_tp())));
  }
  if (p.offloaded_optimizer() > 0 && p.offload->optimizer < 1 && p.zero != 3)
    out.emplace_back("DeepSpeed takes offload_optimizer's ratio with stage 3: with others it offloads all");
  if (p.offloaded_optimizer() > 0 && !p.offload->overlap)
    out.emplace_back("DeepSpeed's copies run beside its updates: the plan's do not (offload.overlap)");
  if (p.offloaded_layers() > 0 && p.recompute != Recompute::kFull)
    out.emplace_back(
        "DeepSpeed offloads inputs of recomputed layers alone: the plan recomputes no whole layers");
  if (p.offloaded_layers() > 0)
    out.push_back(fmt::format("DeepSpeed offloads all recomputed layers: the plan, the first {} of a chunk",
                              p.offload->activation_layers));
  if (p.shards() < p.copies() && p.zero == 3)
    out.emplace_back("shard groups are MiCS: build the model inside deepspeed.zero.MiCS_Init");
  return out;
}

// Scripts take the configuration's path in options of their own: Hugging Face's Trainer by --deepspeed,
// deepspeed.add_config_arguments() by --deepspeed_config.
std::string starts(const Layout& layout) {
  return reads_train() +
         fmt::format(
             "if [[ \"${0}\" != *DEEPSPEED_CONFIG* ]]; then\n"
             "  echo \"say DEEPSPEED_CONFIG in {0} where the path of the configuration goes: train.py "
             "--deepspeed "
             "DEEPSPEED_CONFIG\" >&2\n"
             "  exit 2\n"
             "fi\n",
             kTrain) +
         "exec " + torchrun(layout) + "  \"${train[@]//DEEPSPEED_CONFIG/$FOLDER/deepspeed.json}\"\n";
}

}  // namespace

Exported deepspeed_config(const Problem& problem, const Plan& p) {
  const Training& t = problem.scenario.training;
  const Recipe r = recipe_of(problem);
  const bool bf16 = t.parameter_type() == DType::kBfloat16, fp16 = t.parameter_type() == DType::kFloat16;
  const bool own_tensor_parallelism = p.tp > 1 && p.pp == 1 && !p.sequence_parallel;
  Json j;
  // DeepSpeed compares the batch with all ranks, those of its own tensor parallelism among them.
  if (!own_tensor_parallelism) j["train_batch_size"] = t.global_batch;
  // Ranks that share sequences are one of the replicas that it compares the batch with.
  if (p.cp > 1) {
    j["sequence_parallel_size"] = p.cp;
    j["data_parallel_size"] = p.dp;
  }
  j["train_micro_batch_size_per_gpu"] = p.micro_batch;
  j["gradient_accumulation_steps"] = p.micro_batches;
  j["optimizer"] = optimizer(t, r);
  if (r.steps > 0) {
    j["scheduler"] = {{"type", "WarmupCosineLR"},
                      {"params",
                       {{"total_num_steps", r.steps},
                        {"warmup_num_steps", std::max<std::int64_t>(1, r.warm_up_steps)},
                        {"warmup_type", "linear"},
                        {"cos_min_ratio", kLastRate}}}};
  }
  j["gradient_clipping"] = t.clip;
  j["bf16"] = {{"enabled", bf16}};
  j["fp16"] = {{"enabled", fp16}};
  if (bf16) j["data_types"] = {{"grad_accum_dtype", t.gradient_type() == DType::kFloat32 ? "fp32" : "bf16"}};
  j["zero_optimization"] = zero(problem, p);
  if (p.offloaded_layers() > 0) j["activation_checkpointing"] = {{"cpu_checkpointing", true}};
  if (own_tensor_parallelism) j["tensor_parallel"] = {{"autotp_size", p.tp}};
  return {.text = j.dump(2) + "\n",
          .notes = notes(t, p, r),
          .variables = {kTrain},
          .file = "deepspeed.json",
          .start = [](const Layout& of) { return starts(of); }};
}

}  // namespace orrery::planner
