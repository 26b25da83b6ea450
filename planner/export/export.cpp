// SPDX-License-Identifier: Apache-2.0
#include "planner/export/export.h"

namespace orrery::planner {
namespace {

class Flags {
 public:
  void add(const char* flag) { text_ += fmt::format("{}--{}", text_.empty() ? "" : " \\\n  ", flag); }
  template <class T>
  void add(const char* flag, const T& value) {
    text_ += fmt::format("{}--{} {}", text_.empty() ? "" : " \\\n  ", flag, value);
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

// Megatron's layout string: E embedding, t layer, L loss, | between chunks in model order.
std::string layout(const Plan& p) {
  std::string out;
  for (std::size_t c = 0; c < p.chunk_layers.size(); ++c) {
    if (c > 0) out += '|';
    if (c == 0) out += 'E';
    out += fmt::format("t*{}", p.chunk_layers[c]);
    if (c + 1 == p.chunk_layers.size()) out += 'L';
  }
  return out;
}

}  // namespace

std::string to_megatron(const PlanFile& f) {
  const Model& m = f.scenario.model;
  const Training& t = f.scenario.training;
  const Plan& p = f.plan;
  Flags x;
  x.add("num-layers", m.layers);
  x.add("hidden-size", m.hidden);
  x.add("ffn-hidden-size", m.ffn());
  x.add("num-attention-heads", m.heads);
  if (m.kv() != m.heads) {
    x.add("group-query-attention");
    x.add("num-query-groups", m.kv());
  }
  if (m.head() * m.heads != m.hidden) x.add("kv-channels", m.head());
  x.add("seq-length", t.sequence);
  x.add("max-position-embeddings", std::max(t.sequence, m.max_positions));
  if (m.norm == Norm::kRmsNorm) x.add("normalization", "RMSNorm");
  if (m.positions == Positions::kRotary) x.add("position-embedding-type", "rope");
  if (m.gated()) x.add("swiglu");
  if (!m.bias) x.add("disable-bias-linear");
  if (m.qkv_bias) x.add("add-qkv-bias");
  if (m.qk_norm) x.add("qk-layernorm");
  if (!m.tied_embeddings) x.add("untie-embeddings-and-output-weights");
  x.add("tensor-model-parallel-size", p.tp);
  x.add("pipeline-model-parallel-size", p.pp);
  if (!p.chunk_layers.empty())
    x.add("pipeline-model-parallel-layout", fmt::format("\"{}\"", layout(p)));
  else if (p.vpp > 1)
    x.add("num-virtual-stages-per-pipeline-rank", p.vpp);
  if (p.sequence_parallel && p.tp > 1) x.add("sequence-parallel");
  if (p.rank_order == RankOrder::kTpPpDp) x.add("use-tp-pp-dp-mapping");
  x.add("micro-batch-size", p.micro_batch);
  x.add("global-batch-size", t.global_batch);
  if (p.zero == 1) x.add("use-distributed-optimizer");
  if (p.zero >= 2) {
    x.add("use-megatron-fsdp");
    x.add("data-parallel-sharding-strategy", p.zero == 2 ? "optim_grads" : "optim_grads_params");
  }
  if (p.zero > 0 && p.shards() < p.dp) x.add("num-distributed-optimizer-instances", p.dp / p.shards());
  if (p.dp > 1) x.add("overlap-grad-reduce");
  if (p.zero >= 1) x.add("overlap-param-gather");
  if (p.recompute == Recompute::kSelective) x.add("recompute-granularity", "selective");
  if (p.recompute == Recompute::kFull) {
    x.add("recompute-granularity", "full");
    x.add("recompute-method", "uniform");
    x.add("recompute-num-layers", p.recompute_layers);
  }
  if (t.math == Math::kBf16) x.add("bf16");
  if (t.math == Math::kFp16) x.add("fp16");
  if (t.math == Math::kFp8) x.add("fp8-format", "hybrid");
  x.add("clip-grad", t.clip);
  if (t.precision == Precision::kMegatron) x.add("accumulate-allreduce-grads-in-fp32");
  if (t.precision == Precision::kMixed) x.add("grad-reduce-in-bf16");
  return std::move(x).text() + "\n";
}

std::string to_deepspeed(const PlanFile& f) {
  const Plan& p = f.plan;
  Json j;
  j["train_batch_size"] = f.scenario.training.global_batch;
  j["train_micro_batch_size_per_gpu"] = p.micro_batch;
  j["gradient_accumulation_steps"] = p.micro_batches;
  Json zero = {
      {"stage", p.zero}, {"overlap_comm", true}, {"contiguous_gradients", true}, {"reduce_scatter", true}};
  if (p.zero == 3 && p.shards() < p.dp) zero["zero_hpz_partition_size"] = p.shards();
  j["zero_optimization"] = zero;
  j["gradient_clipping"] = f.scenario.training.clip;
  const Math math = f.scenario.training.math;
  j["bf16"] = {{"enabled", math == Math::kBf16 || math == Math::kFp8}};
  j["fp16"] = {{"enabled", math == Math::kFp16}};
  if (p.recompute != Recompute::kNone) {
    j["activation_checkpointing"] = {{"partition_activations", p.tp > 1},
                                     {"contiguous_memory_optimization", false}};
  }
  if (p.tp > 1) j["tensor_parallel"] = {{"autotp_size", p.tp}};
  return j.dump(2) + "\n";
}

std::string to_slurm(const PlanFile& f, std::int64_t devices_per_node) {
  const std::int64_t nodes = (f.plan.ranks() + devices_per_node - 1) / devices_per_node;
  const std::int64_t per_node = std::min(devices_per_node, f.plan.ranks());
  return fmt::format(
      "#!/bin/bash\n"
      "#SBATCH --job-name=orrery\n"
      "#SBATCH --nodes={0}\n"
      "#SBATCH --ntasks-per-node=1\n"
      "#SBATCH --gpus-per-node={1}\n"
      "# Ranks are placed {2}, fastest axis first; one node holds ranks 0 to {3}.\n"
      "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
      "srun torchrun --nnodes={0} --nproc_per_node={1} --rdzv_id=\"$SLURM_JOB_ID\" --rdzv_backend=c10d \\\n"
      "  --rdzv_endpoint=\"$head:29500\" pretrain_gpt.py \\\n"
      "  {4}",
      nodes, per_node, name_of(f.plan.rank_order), per_node - 1, to_megatron(f));
}

std::vector<std::string> export_losses(const PlanFile& f, const std::string& target) {
  const Plan& p = f.plan;
  std::vector<std::string> out;
  if (f.scenario.training.lamb)
    out.push_back("LAMB is not a setting of this target; its own optimizer will run");
  if (target == "megatron" || target == "slurm") {
    if ((p.schedule == Schedule::kZeroBubbleH1 || p.schedule == Schedule::kZeroBubbleV))
      out.push_back(
          fmt::format("the schedule {} has no Megatron-LM flag; 1F1B will run", name_of(p.schedule)));
    if (p.schedule == Schedule::kGPipe || p.schedule == Schedule::kNaive)
      out.push_back(fmt::format("Megatron-LM has no {} schedule; 1F1B will run", name_of(p.schedule)));
    if (p.rank_order == RankOrder::kDpTpPp || p.rank_order == RankOrder::kPpTpDp)
      out.push_back(fmt::format("Megatron-LM cannot place ranks {}", name_of(p.rank_order)));
  }
  if (target == "deepspeed") {
    if (p.pp > 1)
      out.push_back("pipeline stages are set in the model code (PipelineModule), not in this file");
    if (p.sequence_parallel && p.tp > 1)
      out.push_back("Megatron's sequence parallelism is not a DeepSpeed setting");
  }
  return out;
}

}  // namespace orrery::planner
