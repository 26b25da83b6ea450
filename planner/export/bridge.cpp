// SPDX-License-Identifier: Apache-2.0
//
// A script of Python that trains a plan with Megatron Bridge, NeMo's library over Megatron-core: its recipe
// with Megatron-LM's own defaults, and a field for each argument that Megatron-LM would get.
#include <algorithm>
#include <array>
#include <map>

#include "core/text.h"
#include "planner/export/megatron.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

// How an argument's value is written in Python.
enum class Form {
  kTrue,     // of a flag
  kFalse,    // of a flag that takes something away
  kNumber,   // as it is
  kWhole,    // the same, a whole one
  kText,     // between quotation marks, or a variable of the environment
  kPattern,  // an expression between quotation marks, such as "([0]*3+[1]*58)"
  kPair,     // numbers with a comma
  kTexts,    // words with spaces
  kNumbers,  // numbers with spaces
  kType,     // a type of PyTorch
  kImplied   // said by other fields
};

// A part of the configuration, as the script calls it, and a field of it.
struct BridgeField {
  const char *flag, *part, *field;
  Form form;
};

// Megatron Bridge v0.6.0: scripts/translate_mlm_to_bridge.py, and the dataclasses of its configuration and of
// Megatron-core's.
constexpr std::array kBridgeFields{
    BridgeField{"num-layers", "model", "num_layers", Form::kNumber},
    BridgeField{"hidden-size", "model", "hidden_size", Form::kNumber},
    BridgeField{"ffn-hidden-size", "model", "ffn_hidden_size", Form::kNumber},
    BridgeField{"num-attention-heads", "model", "num_attention_heads", Form::kNumber},
    BridgeField{"kv-channels", "model", "kv_channels", Form::kNumber},
    BridgeField{"group-query-attention", "", "", Form::kImplied},
    BridgeField{"num-query-groups", "model", "num_query_groups", Form::kNumber},
    BridgeField{"multi-latent-attention", "model", "multi_latent_attention", Form::kTrue},
    BridgeField{"q-lora-rank", "model", "q_lora_rank", Form::kNumber},
    BridgeField{"kv-lora-rank", "model", "kv_lora_rank", Form::kNumber},
    BridgeField{"qk-head-dim", "model", "qk_head_dim", Form::kNumber},
    BridgeField{"qk-pos-emb-head-dim", "model", "qk_pos_emb_head_dim", Form::kNumber},
    BridgeField{"v-head-dim", "model", "v_head_dim", Form::kNumber},
    BridgeField{"rope-type", "model", "rope_type", Form::kText},
    BridgeField{"no-rope-fusion", "", "", Form::kImplied},
    BridgeField{"qk-layernorm", "model", "qk_layernorm", Form::kTrue},
    BridgeField{"max-position-embeddings", "", "", Form::kImplied},
    BridgeField{"position-embedding-type", "model", "position_embedding_type", Form::kText},
    BridgeField{"rotary-base", "model", "rotary_base", Form::kNumber},
    BridgeField{"rotary-percent", "model", "rotary_percent", Form::kNumber},
    BridgeField{"rotary-seq-len-interpolation-factor", "model", "seq_len_interpolation_factor",
                Form::kNumber},
    BridgeField{"use-rope-scaling", "model", "rope_scaling", Form::kTrue},
    BridgeField{"rope-scaling-factor", "model", "rope_scaling_factor", Form::kNumber},
    BridgeField{"rotary-scaling-factor", "model", "yarn_rotary_scaling_factor", Form::kNumber},
    BridgeField{"yarn-original-max-position-embeddings", "model", "yarn_original_max_position_embeddings",
                Form::kNumber},
    BridgeField{"yarn-beta-fast", "model", "yarn_beta_fast", Form::kNumber},
    BridgeField{"yarn-beta-slow", "model", "yarn_beta_slow", Form::kNumber},
    BridgeField{"no-yarn-correction-range-round-to-int", "model", "yarn_correction_range_round_to_int",
                Form::kFalse},
    BridgeField{"window-size", "model", "window_size", Form::kPair},
    BridgeField{"window-attn-skip-freq", "model", "window_attn_skip_freq", Form::kPattern},
    BridgeField{"softmax-type", "model", "softmax_type", Form::kText},
    BridgeField{"normalization", "model", "normalization", Form::kText},
    BridgeField{"norm-epsilon", "model", "layernorm_epsilon", Form::kNumber},
    BridgeField{"glu-linear-offset", "model", "glu_linear_offset", Form::kNumber},
    BridgeField{"activation-func-clamp-value", "model", "activation_func_clamp_value", Form::kNumber},
    BridgeField{"disable-bias-linear", "model", "add_bias_linear", Form::kFalse},
    BridgeField{"add-qkv-bias", "model", "add_qkv_bias", Form::kTrue},
    BridgeField{"untie-embeddings-and-output-weights", "model", "share_embeddings_and_output_weights",
                Form::kFalse},
    BridgeField{"mtp-num-layers", "model", "mtp_num_layers", Form::kNumber},
    BridgeField{"mtp-loss-scaling-factor", "model", "mtp_loss_scaling_factor", Form::kNumber},
    BridgeField{"make-vocab-size-divisible-by", "model", "make_vocab_size_divisible_by", Form::kNumber},
    BridgeField{"padded-vocab-size", "model", "vocab_size", Form::kNumber},
    BridgeField{"attention-dropout", "model", "attention_dropout", Form::kNumber},
    BridgeField{"hidden-dropout", "model", "hidden_dropout", Form::kNumber},
    BridgeField{"init-method-std", "model", "init_method_std", Form::kNumber},
    BridgeField{"num-experts", "model", "num_moe_experts", Form::kNumber},
    BridgeField{"moe-layer-freq", "model", "moe_layer_freq", Form::kPattern},
    BridgeField{"moe-ffn-hidden-size", "model", "moe_ffn_hidden_size", Form::kNumber},
    BridgeField{"moe-router-topk", "model", "moe_router_topk", Form::kNumber},
    BridgeField{"moe-router-score-function", "model", "moe_router_score_function", Form::kText},
    BridgeField{"moe-router-pre-softmax", "model", "moe_router_pre_softmax", Form::kTrue},
    BridgeField{"moe-router-dtype", "model", "moe_router_dtype", Form::kText},
    BridgeField{"moe-router-topk-scaling-factor", "model", "moe_router_topk_scaling_factor", Form::kNumber},
    BridgeField{"moe-router-num-groups", "model", "moe_router_num_groups", Form::kNumber},
    BridgeField{"moe-router-group-topk", "model", "moe_router_group_topk", Form::kNumber},
    BridgeField{"moe-router-enable-expert-bias", "model", "moe_router_enable_expert_bias", Form::kTrue},
    BridgeField{"moe-router-bias-update-rate", "model", "moe_router_bias_update_rate", Form::kNumber},
    BridgeField{"moe-router-load-balancing-type", "model", "moe_router_load_balancing_type", Form::kText},
    BridgeField{"moe-aux-loss-coeff", "model", "moe_aux_loss_coeff", Form::kNumber},
    BridgeField{"moe-z-loss-coeff", "model", "moe_z_loss_coeff", Form::kNumber},
    BridgeField{"moe-shared-expert-intermediate-size", "model", "moe_shared_expert_intermediate_size",
                Form::kNumber},
    BridgeField{"moe-shared-expert-gate", "model", "moe_shared_expert_gate", Form::kTrue},
    BridgeField{"moe-grouped-gemm", "model", "moe_grouped_gemm", Form::kTrue},
    BridgeField{"moe-token-dispatcher-type", "model", "moe_token_dispatcher_type", Form::kText},
    BridgeField{"moe-flex-dispatcher-backend", "model", "moe_flex_dispatcher_backend", Form::kText},
    BridgeField{"overlap-moe-expert-parallel-comm", "model", "overlap_moe_expert_parallel_comm", Form::kTrue},
    BridgeField{"tensor-model-parallel-size", "model", "tensor_model_parallel_size", Form::kNumber},
    BridgeField{"sequence-parallel", "model", "sequence_parallel", Form::kTrue},
    BridgeField{"context-parallel-size", "model", "context_parallel_size", Form::kNumber},
    BridgeField{"cp-comm-type", "model", "cp_comm_type", Form::kText},
    BridgeField{"hierarchical-context-parallel-sizes", "model", "hierarchical_context_parallel_sizes",
                Form::kNumbers},
    BridgeField{"expert-model-parallel-size", "model", "expert_model_parallel_size", Form::kNumber},
    BridgeField{"expert-tensor-parallel-size", "model", "expert_tensor_parallel_size", Form::kNumber},
    BridgeField{"pipeline-model-parallel-size", "model", "pipeline_model_parallel_size", Form::kNumber},
    BridgeField{"pipeline-model-parallel-layout", "model", "pipeline_model_parallel_layout", Form::kText},
    BridgeField{"num-virtual-stages-per-pipeline-rank", "model", "virtual_pipeline_model_parallel_size",
                Form::kNumber},
    BridgeField{"use-tp-pp-dp-mapping", "dist", "use_tp_pp_dp_mapping", Form::kTrue},
    BridgeField{"recompute-granularity", "model", "recompute_granularity", Form::kText},
    BridgeField{"recompute-modules", "model", "recompute_modules", Form::kTexts},
    BridgeField{"recompute-method", "model", "recompute_method", Form::kText},
    BridgeField{"recompute-num-layers", "model", "recompute_num_layers", Form::kNumber},
    BridgeField{"init-model-with-meta-device", "model", "init_model_with_meta_device", Form::kTrue},
    BridgeField{"overlap-grad-reduce", "ddp", "overlap_grad_reduce", Form::kTrue},
    BridgeField{"overlap-param-gather", "ddp", "overlap_param_gather", Form::kTrue},
    BridgeField{"num-distributed-optimizer-instances", "ddp", "num_distributed_optimizer_instances",
                Form::kNumber},
    BridgeField{"data-parallel-sharding-strategy", "ddp", "data_parallel_sharding_strategy", Form::kText},
    BridgeField{"optimizer-cpu-offload", "optimizer", "optimizer_cpu_offload", Form::kTrue},
    BridgeField{"optimizer-offload-fraction", "optimizer", "optimizer_offload_fraction", Form::kNumber},
    BridgeField{"use-precision-aware-optimizer", "optimizer", "use_precision_aware_optimizer", Form::kTrue},
    BridgeField{"exp-avg-dtype", "optimizer", "exp_avg_dtype", Form::kType},
    BridgeField{"exp-avg-sq-dtype", "optimizer", "exp_avg_sq_dtype", Form::kType},
    BridgeField{"main-grads-dtype", "optimizer", "main_grads_dtype", Form::kType},
    BridgeField{"overlap-cpu-optimizer-d2h-h2d", "optimizer", "overlap_cpu_optimizer_d2h_h2d", Form::kTrue},
    BridgeField{"optimizer", "optimizer", "optimizer", Form::kText},
    BridgeField{"sgd-momentum", "optimizer", "sgd_momentum", Form::kNumber},
    BridgeField{"adam-beta1", "optimizer", "adam_beta1", Form::kNumber},
    BridgeField{"adam-beta2", "optimizer", "adam_beta2", Form::kNumber},
    BridgeField{"adam-eps", "optimizer", "adam_eps", Form::kNumber},
    BridgeField{"weight-decay", "optimizer", "weight_decay", Form::kNumber},
    BridgeField{"clip-grad", "optimizer", "clip_grad", Form::kNumber},
    BridgeField{"lr", "optimizer", "lr", Form::kNumber},
    BridgeField{"min-lr", "optimizer", "min_lr", Form::kNumber},
    BridgeField{"lr-decay-style", "scheduler", "lr_decay_style", Form::kText},
    BridgeField{"lr-warmup-iters", "scheduler", "lr_warmup_iters", Form::kNumber},
    BridgeField{"train-iters", "train", "train_iters", Form::kWhole},
    BridgeField{"micro-batch-size", "train", "micro_batch_size", Form::kNumber},
    BridgeField{"global-batch-size", "train", "global_batch_size", Form::kNumber},
    BridgeField{"num-workers", "dataset", "num_workers", Form::kNumber},
    BridgeField{"data-path", "dataset", "data_path", Form::kText},
    BridgeField{"split", "dataset", "split", Form::kText},
    BridgeField{"tokenizer-type", "tokenizer", "tokenizer_type", Form::kText},
    BridgeField{"tokenizer-model", "tokenizer", "tokenizer_model", Form::kText},
    BridgeField{"eval-iters", "validation", "eval_iters", Form::kNumber},
    BridgeField{"save", "checkpoint", "save", Form::kText},
    BridgeField{"load", "checkpoint", "load", Form::kText},
    BridgeField{"save-interval", "checkpoint", "save_interval", Form::kNumber},
    BridgeField{"ckpt-format", "checkpoint", "ckpt_format", Form::kText},
    BridgeField{"log-interval", "logger", "log_interval", Form::kNumber},
    BridgeField{"log-throughput", "logger", "log_throughput", Form::kTrue},
    BridgeField{"fp8-format", "precision", "fp8", Form::kText},
    BridgeField{"fp8-recipe", "precision", "fp8_recipe", Form::kText},
    BridgeField{"fp4-format", "precision", "fp4", Form::kText},
    BridgeField{"fp4-recipe", "precision", "fp4_recipe", Form::kText}};

// A variable of the environment, as the shell takes it: "$NAME", in quotation marks or without.
std::string environment_name(std::string value) {
  std::erase(value, '"');
  return value.starts_with('$') ? value.substr(1) : "";
}

std::string python(const std::string& value, Form form) {
  const auto listed = [&](const char* quote) {
    std::string out, word;
    for (const char c : value + " ") {
      if (c != ' ') {
        word += c;
        continue;
      }
      if (!word.empty()) out += (out.empty() ? "" : ", ") + (quote + word) + quote;
      word.clear();
    }
    return "[" + out + "]";
  };
  if (const std::string name = environment_name(value); !name.empty()) {
    const std::string read = "os.environ[\"" + name + "\"]";
    return form == Form::kWhole ? "int(" + read + ")" : form == Form::kNumber ? "float(" + read + ")" : read;
  }
  std::string bare = value;
  std::erase(bare, '"');
  switch (form) {
    case Form::kNumber:
    case Form::kWhole:
    case Form::kPattern:
      return bare;
    case Form::kText:
      return "\"" + bare + "\"";
    case Form::kPair:
      return "(" + bare + ")";
    case Form::kTexts:
      return listed("\"");
    case Form::kNumbers:
      return listed("");
    case Form::kType:
      return bare == "bf16" ? "torch.bfloat16" : "torch.float32";
    case Form::kTrue:
    case Form::kFalse:
    case Form::kImplied:
      break;
  }
  throw std::logic_error("a flag has no value to write");
}

class Script {
 public:
  void set(const char* part, const char* field, const std::string& value) {
    parts_[part].push_back(fmt::format("    {}={},\n", field, value));
  }

  // The fields that an argument stands for.
  void add(const MegatronArgument& a) {
    given_.emplace(a.flag, a.value.value_or(""));
    const auto known = std::find_if(kBridgeFields.begin(), kBridgeFields.end(),
                                    [&](const BridgeField& f) { return a.flag == f.flag; });
    if (known != kBridgeFields.end()) {
      if (known->form == Form::kImplied) return;
      return set(known->part, known->field,
                 known->form == Form::kTrue    ? "True"
                 : known->form == Form::kFalse ? "False"
                                               : python(*a.value, known->form));
    }
    if (a.flag == "seq-length") {
      set("model", "seq_length", *a.value);
      return set("dataset", "seq_length", *a.value);
    }
    if (a.flag == "swiglu") return set_gate("torch.nn.functional.silu");
    if (a.flag == "quick-geglu") return set_gate("quick_gelu");
    if (a.flag == "squared-relu") return set("model", "activation_func", "squared_relu");
    if (a.flag == "use-megatron-fsdp") {
      set("ddp", "use_megatron_fsdp", "True");
      return set("dist", "use_megatron_fsdp", "True");
    }
    // What finish() looks at.
    for (const char* const flag : {"use-distributed-optimizer", "bf16", "fp16",
                                   "accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16"})
      if (a.flag == flag) return;
    throw std::logic_error("Megatron Bridge has no field for --" + a.flag);
  }

  // Fields that several arguments decide together, and defaults of Megatron-LM's that the recipe has not.
  void finish() {
    const char* const sharded = truth(has("use-distributed-optimizer"));
    for (const char* part : {"ddp", "optimizer"}) set(part, "use_distributed_optimizer", sharded);
    // One kind of layer is made for all blocks unless blocks are asked for one by one.
    if (latent() || has("num-experts"))
      set("model", "transformer_layer_spec",
          "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)");
    if (latent() && !has("q-lora-rank")) set("model", "q_lora_rank", "None");
    const std::string& positions = given_.at("position-embedding-type");
    if (positions == "yarn" && !has("no-yarn-correction-range-round-to-int"))
      set("model", "yarn_correction_range_round_to_int", "True");
    const bool gated = has("swiglu") || has("quick-geglu");
    set("model", "bias_activation_fusion",
        truth(gated || (!has("squared-relu") && !has("disable-bias-linear"))));
    set("model", "bias_dropout_fusion", "True");
    set("model", "apply_rope_fusion", truth(positions == "rope" && !latent()));
    // The scheduler sets the decay in each step.
    for (const char* field : {"start_weight_decay", "end_weight_decay"})
      set("scheduler", field, given_.at("weight-decay"));
    if (!has("min-lr")) set("optimizer", "min_lr", "0");
    if (base().empty()) {
      for (const char* field : {"params_dtype", "pipeline_dtype"}) set("model", field, "torch.float32");
      for (const char* field : {"bf16", "fp16"}) set("optimizer", field, "False");
    } else {
      set("precision", "grad_reduce_in_fp32", truth(has("accumulate-allreduce-grads-in-fp32")));
      // Its default, tensorwise, would keep whole master copies in bf16 too.
      if (has("use-precision-aware-optimizer") && !has("fp8-recipe"))
        set("precision", "fp8_recipe", "\"delayed\"");
    }
  }

  bool has(const char* flag) const { return given_.contains(flag); }

  std::string text() const {
    std::string out;
    if (latent()) out += "cfg.model = MLAModelProvider()\n";
    out += base().empty() ? std::string("cfg.mixed_precision = None\n")
                          : fmt::format("cfg.mixed_precision = get_mixed_precision_config(\"{}\")\n", base());
    for (const char* part : {"model", "dist", "ddp", "optimizer", "scheduler", "train", "validation",
                             "dataset", "tokenizer", "checkpoint", "logger", "precision"}) {
      const auto found = parts_.find(part);
      if (found == parts_.end()) continue;
      const std::string name = found->first == "precision" ? "mixed_precision" : found->first;
      out += fmt::format("set_fields(\n    cfg.{},\n", name);
      for (const std::string& line : found->second) out += line;
      out += ")\n";
    }
    return out;
  }

 private:
  void set_gate(const char* activation) {
    set("model", "gated_linear_unit", "True");
    set("model", "activation_func", activation);
  }

  static const char* truth(bool x) { return x ? "True" : "False"; }
  bool latent() const { return has("multi-latent-attention"); }
  // The recipe of mixed precision; none for fp32.
  std::string base() const { return has("bf16") ? "bf16_mixed" : has("fp16") ? "fp16_mixed" : ""; }

  std::map<std::string, std::vector<std::string>> parts_;
  std::map<std::string, std::string, std::less<>> given_;  // by flag
};

constexpr const char* kHead = R"(import os
import sys
from functools import partial

CONNECTIONS
import torch
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.activations import squared_relu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.recipes.gpt.h100.vanilla_gpt import vanilla_gpt_pretrain_1gpu_h100_bf16_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain


def set_fields(part, **fields):
    for name, value in fields.items():
        if not hasattr(part, name):
            sys.exit(f"this version of Megatron Bridge has no field {name} in {type(part).__name__}")
        setattr(part, name, value)


)";

}  // namespace

Exported bridge_script(const Problem& problem, const Plan& p, const Cursor& scenario) {
  check_megatron(problem, scenario);
  const Training& t = problem.scenario.training;
  if (t.muon)
    scenario.child("training")
        .child("muon")
        .fail("Muon is not written for Megatron Bridge", "allowed: no such field; or the target megatron");
  const Model& m = problem.scenario.model;
  if (m.positions == Positions::kLearned && m.max_positions != t.sequence) {
    m.place(scenario.child("model"), "max_positions")
        .fail(
            fmt::format("Megatron Bridge learns as many positions as a sequence has tokens, {}", t.sequence),
            fmt::format("allowed: {}", t.sequence));
  }
  const Layout layout = layout_of(problem, p, scenario.child("cluster"));
  Script script;
  for (const MegatronArgument& a : megatron_arguments(problem, p)) script.add(a);
  script.finish();
  std::string head = kHead;
  const std::string mark = "CONNECTIONS";
  head.replace(head.find(mark), mark.size(),
               !script.has("use-megatron-fsdp") ? "os.environ[\"CUDA_DEVICE_MAX_CONNECTIONS\"] = \"1\"\n"
                                                : "os.environ.pop(\"CUDA_DEVICE_MAX_CONNECTIONS\", None)\n");
  std::string asked;
  Exported out;
  out.notes = megatron_notes(problem, p, layout);
  for (const AskedVariable& v : megatron_variables(problem)) {
    if (std::string_view(v.name) == "MEGATRON") continue;
    asked += fmt::format("    \"{}\": \"{}\",\n", v.name, v.wanted);
    out.variables.emplace_back(v.name);
  }
  out.text = fmt::format(
      "# {} of {}, for Megatron Bridge v0.6.0. On each of {} node{}:\n"
      "# torchrun --nnodes={} --nproc_per_node={}{} THIS_FILE\n",
      short_name(p), printable(m.name), layout.nodes, layout.nodes == 1 ? "" : "s", layout.nodes,
      layout.per_node,
      layout.nodes == 1 ? ""
                        : " --node_rank=\"$NODE_RANK\" --master_addr=\"$MASTER_ADDR\" --master_port=29500");
  out.text += head + "for name, wanted in {\n" + asked +
              "}.items():\n    if not os.environ.get(name):\n        sys.exit(f\"set {name} to {wanted}\")\n"
              "os.environ.setdefault(\"CHECKPOINTS\", \"checkpoints\")\n\n"
              "cfg = vanilla_gpt_pretrain_1gpu_h100_bf16_config()\n" +
              script.text() + "\nif __name__ == \"__main__\":\n    pretrain(cfg, forward_step)\n";
  out.file = "train.py";
  out.start = [](const Layout& of) { return "exec " + torchrun(of) + "  \"$FOLDER/train.py\"\n"; };
  out.notes.emplace_back("the script ends where the installed version has no such field");
  return out;
}

}  // namespace orrery::planner
