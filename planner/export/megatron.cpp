// SPDX-License-Identifier: Apache-2.0
//
// A script that starts Megatron-LM's pretrain_gpt.py, alone or as a Slurm job. Its arguments are checked by
// Megatron-LM's own parser in tests/planner/launchers.py.
#include <cmath>

#include "core/text.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

// Arguments of pretrain_gpt.py, one a line.
class Arguments {
 public:
  void add(const char* flag) { text_ += fmt::format(" \\\n  --{}", flag); }
  template <class T>
  void add(const char* flag, const T& value) {
    text_ += fmt::format(" \\\n  --{} {}", flag, value);
  }
  void add_if(bool wanted, const char* flag) {
    if (wanted) add(flag);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// --- what Megatron-LM would silently do in another way ------------------------------------------------

void check_fits(const Training& t, const Cursor& at) {
  if (t.precision != Precision::kSgd && t.optimizer.decay == Decay::kAll) {
    at.child("optimizer")
        .child("decay")
        .fail("Megatron-LM leaves norms and biases out of weight decay", "allowed: matrices");
  }
}

void check_fits(const Model& m, const Cursor& at) {
  if (!plain_layers(m)) {
    at.child(m.blocks.empty() ? "form" : "blocks")
        .fail("Megatron-LM's options describe one block of attention and MLP with norms before them",
              "allowed: form \"pre-norm\", and no blocks");
  }
  if (m.norm == Norm::kLayerNorm && !m.has_norm_bias()) {
    at.child("norm").fail("Megatron-LM's LayerNorm has biases, and the model's has none",
                          "allowed: rmsnorm, or bias true");
  }
  const auto none = [&](const char* field, bool has, const char* allowed) {
    if (has) m.place(at, field).fail("Megatron-LM has no option for it", fmt::format("allowed: {}", allowed));
  };
  none("soft_cap", m.soft_cap != 0, "0");
  none("query_scale", m.query_scale != 0, "0");
  none("causal", !m.causal, "true");
  none("activation", m.activation == Activation::kGeglu, "gelu, swiglu, squared-relu");
  none("embedding_scale", m.embedding_scale != 1, "1");
  none("logit_soft_cap", m.logit_soft_cap != 0, "0");
  if (m.qk_norm && m.norm != Norm::kRmsNorm) {
    at.child("qk_norm").fail("Megatron-LM normalises queries and keys as layers, and this model does not",
                             "allowed: norm rmsnorm with it");
  }
  if (m.positions != Positions::kRotary) return;
  const Rotary& r = m.rotary;
  if (r.base != std::floor(r.base))
    m.place(at, "rotary/base")
        .fail(fmt::format("Megatron-LM's rotary base is a whole number, not {}", r.base));
  if (r.scaling == RotaryScaling::kLinear && r.factor != std::floor(r.factor))
    m.place(at, "rotary/factor")
        .fail(fmt::format("Megatron-LM's linear factor is a whole number, not {}", r.factor));
  const Rotary llama31{
      .base = r.base, .fraction = r.fraction, .scaling = RotaryScaling::kLlama3, .factor = 8};
  if (r.scaling == RotaryScaling::kLlama3 && !(r == llama31)) {
    m.place(at, "rotary")
        .fail("Megatron-LM's llama3 scaling is that of Llama 3.1",
              "allowed: factor 8, original_positions 8192, low_frequency_factor 1, high_frequency_factor 4");
  }
  if (r.scaling == RotaryScaling::kYarn && (r.fraction != 1 || r.amplitude != 0)) {
    m.place(at, "rotary")
        .fail("Megatron-LM's yarn turns whole heads and takes its amplitude from the factor",
              "allowed: fraction 1, amplitude 0");
  }
}

// --- the model --------------------------------------------------------------------------------------

void add_positions(Arguments& x, const Model& m) {
  if (m.positions == Positions::kLearned) return x.add("position-embedding-type", "learned_absolute");
  if (m.positions == Positions::kNone) return x.add("position-embedding-type", "none");
  const Rotary& r = m.rotary;
  const bool yarn = r.scaling == RotaryScaling::kYarn;
  x.add("position-embedding-type", yarn ? "yarn" : "rope");
  x.add("rotary-base", static_cast<std::int64_t>(r.base));
  x.add("rotary-percent", r.fraction);
  if (r.scaling == RotaryScaling::kLinear)
    x.add("rotary-seq-len-interpolation-factor", static_cast<std::int64_t>(r.factor));
  if (r.scaling == RotaryScaling::kLlama3) {
    x.add("use-rope-scaling");
    x.add("rope-scaling-factor", r.factor);
  }
  if (yarn) {
    x.add("rotary-scaling-factor", r.factor);
    x.add("yarn-original-max-position-embeddings", r.original_positions);
    x.add("yarn-beta-fast", r.beta_fast);
    x.add("yarn-beta-slow", r.beta_slow);
  }
}

void add_model(Arguments& x, const Model& m, const Training& t, const Plan& p) {
  x.add("num-layers", m.layers);
  x.add("hidden-size", m.hidden);
  const auto [attention, mlp] = plain_layers(m).value();
  x.add("ffn-hidden-size", mlp.ffn_hidden);
  x.add("num-attention-heads", attention.heads);
  x.add("kv-channels", attention.head_dim);
  if (attention.kv_heads != attention.heads) {
    x.add("group-query-attention");
    x.add("num-query-groups", attention.kv_heads);
  }
  x.add("seq-length", t.sequence);
  x.add("max-position-embeddings",
        m.positions == Positions::kLearned ? m.max_positions : std::max(t.sequence, m.max_positions));
  add_positions(x, m);
  if (attention.windowed(t.sequence)) x.add("window-size", fmt::format("{},0", attention.sliding_window - 1));
  x.add("normalization", m.norm == Norm::kRmsNorm ? "RMSNorm" : "LayerNorm");
  x.add("norm-epsilon", m.norm_epsilon);
  x.add_if(m.activation == Activation::kSwiglu, "swiglu");
  x.add_if(m.activation == Activation::kSquaredRelu, "squared-relu");
  x.add_if(!m.bias, "disable-bias-linear");
  x.add_if(m.qkv_bias && !m.bias, "add-qkv-bias");
  x.add_if(m.qk_norm, "qk-layernorm");
  x.add_if(!m.tied_embeddings, "untie-embeddings-and-output-weights");
  // Rows that only fill the tensor ranks' shares up, and no others.
  x.add("make-vocab-size-divisible-by", 1);
  x.add("padded-vocab-size", (m.vocab + p.tp - 1) / p.tp * p.tp);
  x.add("attention-dropout", t.dropout);
  x.add("hidden-dropout", t.dropout);
  x.add("init-method-std", 0.02);
}

// --- the plan ---------------------------------------------------------------------------------------

// Layers of each chunk in model order: E embedding, t layer, L loss.
std::string chunks(const std::vector<std::int64_t>& layers) {
  std::string out = "\"E";
  for (std::size_t c = 0; c < layers.size(); ++c) out += fmt::format("{}t*{}", c > 0 ? "|" : "", layers[c]);
  return out + "L\"";
}

bool sharded_parameters(const Plan& p) {
  return p.copies() > 1 && p.zero >= 2;
}

void add_pipeline(Arguments& x, const Plan& p, std::int64_t layers) {
  x.add("pipeline-model-parallel-size", p.pp);
  const auto by_chunk = layers_by_chunk(p, layers);
  const bool equal =
      std::adjacent_find(by_chunk.begin(), by_chunk.end(), std::not_equal_to<>()) == by_chunk.end();
  if (!equal)
    x.add("pipeline-model-parallel-layout", chunks(by_chunk));
  else if (p.vpp > 1)
    x.add("num-virtual-stages-per-pipeline-rank", p.vpp);
  x.add_if(placement(p, p.rank_order) != placement(p, RankOrder::kTpDpPp), "use-tp-pp-dp-mapping");
}

void add_context(Arguments& x, const Plan& p) {
  if (p.cp == 1) return;
  x.add("context-parallel-size", p.cp);
  switch (p.context_way()) {
    case ContextWay::kRing:
      x.add("cp-comm-type", "p2p");
      return;
    case ContextWay::kAllGather:
      x.add("cp-comm-type", "all_gather");
      return;
    case ContextWay::kUlysses:
      x.add("cp-comm-type", "a2a");
      return;
    case ContextWay::kRingUlysses:
    case ContextWay::kAllGatherUlysses:  // the stack has no such way (profiles/stacks/megatron-core.json)
      x.add("cp-comm-type", "a2a+p2p");
      x.add("hierarchical-context-parallel-sizes", fmt::format("{} {}", p.ulysses, p.ring()));
      return;
  }
}

void add_replicas(Arguments& x, const Plan& p, bool overlap) {
  if (p.copies() == 1) return;
  x.add_if(overlap, "overlap-grad-reduce");
  if (p.zero == 0) return;
  x.add("use-distributed-optimizer");
  x.add_if(overlap, "overlap-param-gather");
  if (p.shards() < p.copies()) x.add("num-distributed-optimizer-instances", p.copies() / p.shards());
  if (!sharded_parameters(p)) return;
  x.add("use-megatron-fsdp");
  x.add("data-parallel-sharding-strategy", p.zero == 2 ? "optim_grads" : "optim_grads_params");
  x.add("init-model-with-meta-device");
}

void add_plan(Arguments& x, const Plan& p, const Problem& problem) {
  x.add("tensor-model-parallel-size", p.tp);
  x.add_if(p.sequence_parallel && p.tp > 1, "sequence-parallel");
  add_context(x, p);
  add_pipeline(x, p, problem.scenario.model.layers);
  add_replicas(x, p, problem.stack.overlap_grad_reduce);
  x.add("micro-batch-size", p.micro_batch);
  x.add("global-batch-size", problem.scenario.training.global_batch);
  if (p.recompute == Recompute::kSelective) {
    x.add("recompute-granularity", "selective");
    x.add("recompute-modules", "core_attn");
  }
  if (p.recompute == Recompute::kFull) {
    x.add("recompute-granularity", "full");
    x.add("recompute-method", "uniform");
    x.add("recompute-num-layers", p.recompute_layers);
  }
}

// --- numbers and the run ----------------------------------------------------------------------------

void add_numbers(Arguments& x, const Training& t) {
  const DType type = t.parameter_type();
  x.add_if(type == DType::kBfloat16, "bf16");
  x.add_if(type == DType::kFloat16, "fp16");
  if (t.math == Math::kFp8) {
    x.add("fp8-format", "hybrid");
    x.add("fp8-recipe", "delayed");
  }
  if (type == DType::kFloat32) return;
  if (t.gradient_type() == DType::kFloat32)
    x.add("accumulate-allreduce-grads-in-fp32");
  else if (type == DType::kBfloat16)
    x.add("grad-reduce-in-bf16");
}

void add_optimizer(Arguments& x, const Training& t, const Recipe& r) {
  if (t.precision == Precision::kSgd) {
    x.add("optimizer", "sgd");
    x.add("sgd-momentum", t.optimizer.beta1);
  } else {
    x.add("optimizer", "adam");
    x.add("adam-beta1", t.optimizer.beta1);
    x.add("adam-beta2", t.optimizer.beta2);
    x.add("adam-eps", t.optimizer.epsilon);
  }
  x.add("weight-decay", t.precision == Precision::kSgd ? 0 : kWeightDecay);
  x.add("clip-grad", t.clip);
  x.add("lr", r.learning_rate ? fmt::format("{:.3e}", *r.learning_rate) : "\"$LR\"");
  if (r.learning_rate) x.add("min-lr", fmt::format("{:.3e}", kLastRate * *r.learning_rate));
  x.add("lr-decay-style", "cosine");
  x.add("lr-warmup-iters", r.warm_up_steps);
  x.add("train-iters", r.steps > 0 ? std::to_string(r.steps) : "\"$TRAIN_ITERS\"");
}

void add_data(Arguments& x, const Plan& p) {
  x.add("tokenizer-type", "HuggingFaceTokenizer");
  x.add("tokenizer-model", "\"$TOKENIZER_MODEL\"");
  x.add("data-path", "$DATA_PATH");
  x.add("split", "100,0,0");
  x.add("eval-iters", 0);
  x.add("save", "\"$CHECKPOINTS\"");
  x.add("load", "\"$CHECKPOINTS\"");
  x.add("save-interval", 1000);
  x.add("ckpt-format", sharded_parameters(p) ? "fsdp_dtensor" : "torch_dist");
  x.add("log-interval", 1);
  x.add("log-throughput");
}

std::string arguments(const Problem& problem, const Plan& p) {
  Arguments x;
  const Training& t = problem.scenario.training;
  add_model(x, problem.scenario.model, t, p);
  add_plan(x, p, problem);
  add_numbers(x, t);
  add_optimizer(x, t, recipe_of(problem));
  add_data(x, p);
  return x.text() + "\n";
}

// --- the script -------------------------------------------------------------------------------------

struct Variable {
  const char *name, *wanted;
};

// Lines that end the script where a variable is not set, before anything is started.
std::string wanted(const std::vector<Variable>& variables) {
  std::string out = "# To be set here or in the environment; the script ends where one of them is missing.\n";
  for (const Variable& v : variables)
    out += fmt::format(": \"${{{0}:?set {0} to {1}}}\"\n", v.name, v.wanted);
  return out + "CHECKPOINTS=${CHECKPOINTS:-checkpoints}\n\n";
}

std::vector<Variable> variables_of(const Problem& problem) {
  std::vector<Variable> out = {
      {"MEGATRON", "the folder of Megatron-LM"},
      {"TOKENIZER_MODEL", "the name or folder of the tokenizer, as Hugging Face has it"},
      {"DATA_PATH", "the prefix of the tokens that tools/preprocess_data.py wrote"}};
  const Recipe r = recipe_of(problem);
  if (!r.learning_rate) out.push_back({"LR", "the learning rate: none is advised for this optimizer"});
  if (r.steps == 0) out.push_back({"TRAIN_ITERS", "the number of steps: the scenario has no tokens"});
  return out;
}

std::string title(const Problem& problem, const Plan& p) {
  const Scenario& s = problem.scenario;
  return fmt::format("# {} of {} on {} {}, for {}.\n# The tokenizer has at most {} tokens.\n", short_name(p),
                     printable(s.model.name), p.ranks(), printable(problem.device_names()),
                     printable(problem.stack.runs->software), s.model.vocab);
}

// Tensor parallelism beside its transfers wants one queue to the device; sharded parameters want several.
std::string connections(const Plan& p) {
  if (sharded_parameters(p)) return "unset CUDA_DEVICE_MAX_CONNECTIONS\n";
  return "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
}

std::vector<std::string> notes(const Problem& problem, const Plan& p, const Layout& layout) {
  std::vector<std::string> out;
  const Model& m = problem.scenario.model;
  if (m.activation == Activation::kGelu && !m.bias)
    out.emplace_back(
        "Megatron-LM computes GELU by the error function where layers have no biases, not by tanh");
  if (problem.scenario.training.drops())
    out.emplace_back("Megatron-LM drops out the sum of the embeddings too");
  const std::int64_t filled = problem.cluster.devices_per_node;
  if (layout.nodes > 1 && layout.per_node < filled) {
    out.push_back(
        fmt::format("{} of the {} devices of each node are used; the prediction fills nodes one by one",
                    layout.per_node, filled));
  }
  if (sharded_parameters(p) && p.tp > 1)
    out.emplace_back(
        "Megatron-FSDP leaves CUDA_DEVICE_MAX_CONNECTIONS unset, which slows tensor parallelism");
  return out;
}

}  // namespace

Exported megatron_script(const Problem& problem, const Plan& p, const Cursor& scenario) {
  check_fits(problem.scenario.model, scenario.child("model"));
  check_fits(problem.scenario.training, scenario.child("training"));
  const Layout at = layout_of(problem, p, scenario.child("cluster"));
  std::vector<Variable> variables = variables_of(problem);
  std::string launch =
      fmt::format("exec torchrun --nnodes={} --nproc_per_node={} \\\n", at.nodes, at.per_node);
  if (at.nodes > 1) {
    variables.push_back({"MASTER_ADDR", "the host name of the first node"});
    variables.push_back({"NODE_RANK", "the number of this node, from 0"});
    launch +=
        "  --node_rank=\"$NODE_RANK\" --master_addr=\"$MASTER_ADDR\" --master_port=\"${MASTER_PORT:-29500}\" "
        "\\\n";
  }
  return {"#!/bin/bash\n" + title(problem, p) + "set -euo pipefail\n\n" + wanted(variables) + connections(p) +
              launch + "  \"$MEGATRON/pretrain_gpt.py\"" + arguments(problem, p),
          notes(problem, p, at)};
}

Exported slurm_script(const Problem& problem, const Plan& p, const Cursor& scenario) {
  check_fits(problem.scenario.model, scenario.child("model"));
  check_fits(problem.scenario.training, scenario.child("training"));
  const Layout at = layout_of(problem, p, scenario.child("cluster"));
  const std::string job = fmt::format(
      "#SBATCH --job-name=orrery\n"
      "#SBATCH --nodes={0}\n"
      "#SBATCH --ntasks-per-node=1\n"
      "#SBATCH --gpus-per-node={1}\n"
      "#SBATCH --export=ALL\n",
      at.nodes, at.per_node);
  const std::string launch = fmt::format(
      "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\n"
      "srun torchrun --nnodes={0} --nproc_per_node={1} --rdzv_id=\"$SLURM_JOB_ID\" --rdzv_backend=c10d \\\n"
      "  --rdzv_endpoint=\"$head:${{MASTER_PORT:-29500}}\" \\\n",
      at.nodes, at.per_node);
  return {"#!/bin/bash\n" + job + title(problem, p) + "set -euo pipefail\n\n" +
              wanted(variables_of(problem)) + connections(p) + launch + "  \"$MEGATRON/pretrain_gpt.py\"" +
              arguments(problem, p),
          notes(problem, p, at)};
}

}  // namespace orrery::planner
