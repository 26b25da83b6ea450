// SPDX-License-Identifier: Apache-2.0
//
// A command that starts MaxText's pre-training: fields of base.yml as NAME=VALUE. Axes of the mesh lie inside
// nodes (ici_) as far as there is room, tensor ranks first, and between them (dcn_) from there.
#include <numeric>

#include "core/text.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

class Fields {
 public:
  template <class T>
  void add(const char* name, const T& value) {
    text_ += fmt::format(" \\\n  {}={}", name, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_model(Fields& x, const Model& m, const Cursor& at) {
  const auto layers = plain_layers(m);
  const auto refuse = [&](const char* why) {
    at.fail(fmt::format("\"{}\": {}", m.name, why),
            "allowed: models of Llama's and Qwen 3's kind: RMSNorm, rotary positions, SwiGLU, no biases");
  };
  if (!layers || m.norm != Norm::kRmsNorm) return refuse("its blocks are not written for MaxText");
  const auto& [a, mlp] = *layers;
  if (a.positions != Positions::kRotary || a.bias || a.qkv_bias || a.sliding_window > 0 || a.sinks ||
      !a.causal || mlp.activation != Activation::kSwiglu || mlp.bias || m.logit_soft_cap > 0 ||
      m.embedding_scale != 1 || m.residual_scale != 1 || m.logit_scale != 1 ||
      (a.qk_norm != QkNorm::kNone && a.qk_norm != QkNorm::kPerHead))
    return refuse("its layers are not written for MaxText");
  if (a.rotary.scaling != RotaryScaling::kNone && a.rotary.scaling != RotaryScaling::kLlama3)
    return refuse("its scaling of rotary positions is not written for MaxText");
  const bool norms = a.qk_norm == QkNorm::kPerHead;
  x.add("decoder_block", norms ? "qwen3" : "llama2");
  x.add("base_emb_dim", m.hidden);
  x.add("base_num_decoder_layers", m.layers);
  x.add("base_num_query_heads", a.heads);
  x.add("base_num_kv_heads", a.kv_heads);
  x.add("head_dim", a.head_dim);
  x.add("base_mlp_dim", mlp.ffn_hidden);
  x.add("vocab_size", m.vocab);
  x.add("mlp_activations", "\"['silu','linear']\"");
  x.add("use_qk_norm", norms);
  x.add("logits_via_embedding", m.tied_embeddings);
  if (m.mtp_layers > 0) {
    x.add("mtp_num_layers", m.mtp_layers);
    x.add("mtp_loss_scaling_factor", m.mtp_loss_scale);
  }
  x.add("rope_max_timescale", static_cast<std::int64_t>(a.rotary.base));
  x.add("rope_type", a.rotary.scaling == RotaryScaling::kLlama3 ? "llama3.1" : "default");
}

// So many ranks of an axis: inside nodes and between them.
void add_axis(Fields& x, const char* name, std::int64_t ranks, std::int64_t& room) {
  const std::int64_t inside = std::gcd(ranks, room);
  room /= inside;
  x.add(fmt::format("ici_{}_parallelism", name).c_str(), inside);
  x.add(fmt::format("dcn_{}_parallelism", name).c_str(), ranks / inside);
}

void add_mesh(Fields& x, const Plan& p, const Layout& layout) {
  std::int64_t room = layout.per_node;
  add_axis(x, p.sequence_parallel && p.tp > 1 ? "tensor_sequence" : "tensor", p.tp, room);
  add_axis(x, "context", p.cp, room);
  // Shards of ZeRO-3, and ranks that have copies of them.
  const std::int64_t shards = p.zero == 3 ? (p.shard_group > 0 ? p.shard_group : p.dp) : 1;
  add_axis(x, "fsdp", shards, room);
  add_axis(x, "data", p.dp / shards, room);
  add_axis(x, "pipeline", p.pp, room);
}

const char* remat_policy(Recompute r) {
  switch (r) {
    case Recompute::kNone:
      return "minimal_with_context";
    case Recompute::kSelective:
      return "minimal";
    case Recompute::kFull:
      break;
  }
  return "full";
}

std::string jax_variables(std::int64_t nodes) {
  return fmt::format(
      "export NNODES={} NODE_RANK=\"${{NODE_RANK:?set NODE_RANK to the number of this node, from 0}}\"\n"
      "export JAX_COORDINATOR_IP=\"${{MASTER_ADDR:?set MASTER_ADDR to the host name of the first node}}\"\n"
      "export JAX_COORDINATOR_PORT=\"${{MASTER_PORT:-29500}}\"\n",
      nodes);
}

}  // namespace

Exported maxtext_command(const Problem& problem, const Plan& p, const Cursor& scenario) {
  const Training& t = problem.scenario.training;
  const Layout layout = layout_of(problem, p, scenario.child("cluster"));
  const Recipe r = recipe_of(problem);
  Fields x;
  x.add("run_name", "\"${RUN_NAME:?set RUN_NAME}\"");
  x.add("base_output_directory", "\"${OUTPUT:?set OUTPUT to a folder or a bucket}\"");
  x.add("hardware", "gpu");  // a process for each node
  add_model(x, problem.scenario.model, scenario.child("model"));
  add_mesh(x, p, layout);
  x.add("shard_optimizer_over_data", p.zero == 1);
  // Sequences of a step over all devices; a pipeline takes its micro-batches at once.
  const std::int64_t at_once = p.micro_batch * p.dp * (p.pp > 1 ? p.micro_batches : 1);
  x.add("per_device_batch_size", static_cast<double>(at_once) / static_cast<double>(p.ranks()));
  x.add("gradient_accumulation_steps", p.pp > 1 ? 1 : p.micro_batches);
  if (p.pp > 1) {
    x.add("num_pipeline_microbatches", p.micro_batches);
    x.add("num_layers_per_pipeline_stage", problem.scenario.model.layers / (p.pp * p.vpp));
  }
  x.add("max_target_length", t.sequence);
  x.add("remat_policy", remat_policy(p.recompute));
  x.add("num_vocab_tiling", p.loss_chunks);
  if (p.cp > 1) x.add("context_parallel_strategy", "all_gather");
  x.add("dtype", t.parameter_type() == DType::kFloat32 ? "float32" : "bfloat16");
  x.add("weight_dtype", "float32");
  if (rounds(t.math)) x.add("quantization", t.math == Math::kFp8Delayed ? "te_fp8_delayedscaling" : "fp8");
  x.add("opt_type", "adamw");
  x.add("adam_b1", t.optimizer.beta1);
  x.add("adam_b2", t.optimizer.beta2);
  x.add("adam_eps", t.optimizer.epsilon);
  x.add("adam_weight_decay", kWeightDecay);
  x.add("gradient_clipping_threshold", t.clip);
  x.add("learning_rate", r.learning_rate ? fmt::format("{:.3e}", *r.learning_rate) : "\"${LR:?set LR}\"");
  x.add("learning_rate_final_fraction", kLastRate);
  if (r.steps > 0)
    x.add("warmup_steps_fraction", static_cast<double>(r.warm_up_steps) / static_cast<double>(r.steps));
  x.add("steps", r.steps > 0 ? std::to_string(r.steps) : "\"${STEPS:?set STEPS}\"");
  x.add("enable_dropout", false);
  x.add("tokenizer_type", "huggingface");
  x.add("tokenizer_path", "\"${TOKENIZER:?set TOKENIZER}\"");
  x.add("dataset_path", "\"${DATASET:?set DATASET}\"");
  std::string text = fmt::format(
      "#!/usr/bin/env bash\n"
      "# {} of {}, for {}: once on each of {} nodes with {} GPUs.\n"
      "set -euo pipefail\n"
      "{}"
      "exec python3 -m maxtext.trainers.pre_train.train \"${{MAXTEXT:?set MAXTEXT to its "
      "checkout}}\"/src/maxtext/configs/base.yml",
      short_name(p), printable(problem.scenario.model.name), printable(problem.stack.runs->software),
      layout.nodes, layout.per_node, layout.nodes > 1 ? jax_variables(layout.nodes) : "");
  std::vector<std::string> variables{"MAXTEXT", "RUN_NAME", "OUTPUT", "TOKENIZER", "DATASET"};
  if (!r.learning_rate) variables.emplace_back("LR");
  if (r.steps == 0) variables.emplace_back("STEPS");
  return {.text = text + x.text() + "\n", .variables = std::move(variables)};
}

}  // namespace orrery::planner
