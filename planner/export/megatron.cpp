// SPDX-License-Identifier: Apache-2.0
//
// A script that starts Megatron-LM's pretrain_gpt.py, alone or as a Slurm job. Its arguments are checked by
// Megatron-LM's own parser in tests/planner/launchers.py.
#include <cmath>
#include <optional>
#include <type_traits>

#include "core/text.h"
#include "planner/export/megatron.h"
#include "planner/export/recipe.h"
#include "planner/export/targets.h"

namespace orrery::planner {
namespace {

// Arguments of pretrain_gpt.py.
class Arguments {
 public:
  void add(const char* flag) { list_.push_back({flag, std::nullopt}); }
  template <class T>
  void add(const char* flag, const T& value) {
    list_.push_back({flag, fmt::format("{}", value)});
  }
  void add_if(bool wanted, const char* flag) {
    if (wanted) add(flag);
  }
  std::vector<MegatronArgument> take() { return std::move(list_); }

 private:
  std::vector<MegatronArgument> list_;
};

// --- what its options can describe ------------------------------------------------------------------

// One kind of attention, and of what follows it one MLP, one mixture of experts, or both in turn.
struct Layers {
  std::optional<AttentionLayer> attention;
  std::optional<LatentAttentionLayer> latent;
  std::optional<MlpLayer> mlp;
  std::optional<ExpertsLayer> experts;
  std::vector<bool> sparse, windowed;  // by layer

  const Rotary& rotary() const { return latent ? latent->rotary : attention->rotary; }
  bool rotates() const { return latent || attention->positions == Positions::kRotary; }
  bool biased() const { return attention && attention->bias; }
  Activation activation() const { return experts ? experts->activation : mlp->activation; }
};

// Nothing where blocks are of other layers, or of more kinds of them.
std::optional<Layers> layers_of(const Model& m) {
  if (!m.inputs.empty() || m.classes() != nullptr) return {};
  const Depth depth = depth_of(m);
  Layers out;
  bool fits = true;
  const auto take = [&]<class T>(std::optional<T>& known, const T& layer) {
    if (!known) known = layer;
    fits &= *known == layer;
  };
  std::optional<AttentionLayer> attention;
  std::optional<std::int64_t> window_of;
  const auto first = [&](const auto& layer) {
    using T = std::decay_t<decltype(layer)>;
    if constexpr (std::is_same_v<T, AttentionLayer>) {
      // Some may have a window, all of them the same one.
      AttentionLayer like = layer;
      const std::int64_t window = std::exchange(like.sliding_window, 0);
      take(attention, like);
      if (window > 0) take(window_of, window);
    } else if constexpr (std::is_same_v<T, LatentAttentionLayer>)
      take(out.latent, layer);
    else
      fits = false;
  };
  const auto second = [&](const auto& layer) {
    using T = std::decay_t<decltype(layer)>;
    if constexpr (std::is_same_v<T, MlpLayer>)
      take(out.mlp, layer);
    else if constexpr (std::is_same_v<T, ExpertsLayer>)
      take(out.experts, layer);
    else
      fits = false;
  };
  for (const ModelBlock& block : depth.kinds) {
    if (block.form != BlockForm::kPreNorm || block.layers.size() != 2) return {};
    std::visit(first, block.layers[0].is);
    std::visit(second, block.layers[1].is);
  }
  fits &= attention.has_value() != out.latent.has_value();
  out.attention = attention;
  if (attention) out.attention->sliding_window = window_of.value_or(0);
  if (out.mlp && out.experts) fits &= out.mlp->activation == out.experts->activation && !out.mlp->bias;
  if (!fits) return {};
  for (std::int64_t l = 0; l < depth.blocks(); ++l) {
    const std::vector<Layer>& layers = depth.kind(l).layers;
    const auto* own = std::get_if<AttentionLayer>(&layers[0].is);
    out.windowed.push_back(own != nullptr && own->sliding_window > 0);
    out.sparse.push_back(std::holds_alternative<ExpertsLayer>(layers[1].is));
  }
  return out;
}

// --- what Megatron-LM would silently do in another way ------------------------------------------------

void check_fits(const Training& t, const Model& m, const Cursor& at) {
  if (t.precision != Precision::kSgd && t.optimizer.decay == Decay::kAll) {
    at.child("optimizer")
        .child("decay")
        .fail("Megatron-LM leaves norms and biases out of weight decay", "allowed: matrices");
  }
  bool gated = false;
  depth_of(m).for_each_layer([&](const auto& layer, std::int64_t) {
    if constexpr (requires { layer.gated(); }) gated |= layer.gated();
  });
  if (t.muon && gated && t.muon->gates == MuonGates::kApart) {
    at.child("muon").child("gates").fail("Megatron-LM updates the two halves of a gated MLP as one matrix",
                                         "allowed: together");
  }
}

void check_fits(const ExpertsLayer& l, const Cursor& at) {
  const auto fail = [&](const char* what, const char* allowed) {
    at.fail(what, fmt::format("allowed: {}", allowed));
  };
  const bool sigmoid = l.score == RouterScore::kSigmoid;
  if (l.bias_rate > 0 && !sigmoid)
    fail("Megatron-LM's biases of experts go with sigmoid scores", "bias_rate 0, or score \"sigmoid\"");
  if (sigmoid && !l.normalised && l.top_k > 1)
    fail("Megatron-LM's sigmoid scores of a token's experts sum to 1", "normalised true");
  if (l.biases && l.shared_ffn_hidden > 0)
    fail("Megatron-LM's shared experts have biases where experts have them",
         "shared_ffn_hidden 0, or biases false");
  if (l.capacity_factor != 0) fail("Megatron-LM drops other tokens than this model", "capacity_factor 0");
  // Megatron-LM's groups count by so many of their best experts as each chosen group gives on the mean.
  if (l.groups > 1 && l.top_k / l.top_groups != (l.bias_rate > 0 ? 2 : 1))
    fail("Megatron-LM's groups count by other experts than this model's", "groups 1");
}

void check_fits(const Model& m, const Cursor& at) {
  const std::optional<Layers> layers = layers_of(m);
  if (!layers) {
    at.child(m.blocks.empty() ? "form" : "blocks")
        .fail(
            "Megatron-LM's options describe blocks of one attention, and of one MLP or mixture of experts, "
            "with norms before them",
            "allowed: such blocks of form \"pre-norm\"");
  }
  if (layers->experts) check_fits(*layers->experts, at.child("blocks"));
  if (layers->latent && layers->latent->rotary.scaling != RotaryScaling::kNone) {
    at.child("blocks").fail(
        "Megatron-LM scales positions of latent attention by factors that this model has not",
        "allowed: rotary scaling \"none\"");
  }
  if (m.norm == Norm::kLayerNorm && !m.has_norm_bias()) {
    at.child("norm").fail("Megatron-LM's LayerNorm has biases, and the model's has none",
                          "allowed: rmsnorm, or bias true");
  }
  const auto none = [&](const char* field, bool has, const char* allowed) {
    if (has) m.place(at, field).fail("Megatron-LM has no option for it", fmt::format("allowed: {}", allowed));
  };
  const auto& attention = layers->attention;
  none("soft_cap", attention && attention->soft_cap != 0, "0");
  none("query_scale", (attention ? attention->query_scale : layers->latent->query_scale) != 0, "0");
  none("causal", attention && !attention->causal, "true");
  const bool biased = layers->biased();
  if ((layers->experts && layers->experts->biases != biased) ||
      (layers->mlp && layers->mlp->bias != biased)) {
    at.child("blocks").fail("Megatron-LM's products have biases in all layers or in none",
                            "allowed: biases of attention, MLPs and experts, or none");
  }
  none("activation", layers->activation() == Activation::kGeglu,
       "gelu, swiglu, squared-relu, clamped-swiglu");
  none("embedding_scale", m.embedding_scale != 1, "1");
  none("residual_scale", m.residual_scale != 1, "1");
  none("logit_scale", m.logit_scale != 1, "1");
  none("chunk", attention && attention->chunk != 0, "0");
  none("query_growth", attention && attention->query_growth.rate != 0, "no such field");
  none("weighs_inputs", layers->experts && layers->experts->weighs_inputs, "false");
  none("qk_norm", attention && attention->qk_norm != QkNorm::kNone && attention->qk_norm != QkNorm::kPerHead,
       "none, per-head");
  none("logit_soft_cap", m.logit_soft_cap != 0, "0");
  if (attention && attention->qk_norm != QkNorm::kNone && m.norm != Norm::kRmsNorm) {
    at.child("qk_norm").fail("Megatron-LM normalises queries and keys as layers, and this model does not",
                             "allowed: norm rmsnorm with it");
  }
  if (!layers->rotates()) return;
  const Rotary& r = layers->rotary();
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

void add_positions(Arguments& x, const Layers& layers) {
  if (!layers.rotates()) {
    const bool learned = layers.attention->positions == Positions::kLearned;
    return x.add("position-embedding-type", learned ? "learned_absolute" : "none");
  }
  const Rotary& r = layers.rotary();
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
    x.add_if(!r.rounded_ramp, "no-yarn-correction-range-round-to-int");
  }
}

void add_attention(Arguments& x, const AttentionLayer& a) {
  x.add("num-attention-heads", a.heads);
  x.add("kv-channels", a.head_dim);
  if (a.kv_heads == a.heads) return;
  x.add("group-query-attention");
  x.add("num-query-groups", a.kv_heads);
}

void add_attention(Arguments& x, const LatentAttentionLayer& a) {
  x.add("num-attention-heads", a.heads);
  x.add("multi-latent-attention");
  if (a.q_rank > 0) x.add("q-lora-rank", a.q_rank);
  x.add("kv-lora-rank", a.kv_rank);
  x.add("qk-head-dim", a.plain);
  x.add("qk-pos-emb-head-dim", a.turned);
  x.add("v-head-dim", a.value);
  x.add("rope-type", "rope");
  x.add("no-rope-fusion");  // which is for YaRN alone with latents
  x.add("qk-layernorm");    // of latents
}

// "([0]*3+[1]*58)": layers without something and with it, as they follow each other.
std::string pattern(const std::vector<bool>& sparse) {
  std::string out;
  for (std::size_t i = 0; i < sparse.size();) {
    const auto end = static_cast<std::size_t>(
        std::find(sparse.begin() + static_cast<std::ptrdiff_t>(i), sparse.end(), !sparse[i]) -
        sparse.begin());
    out += fmt::format("{}[{}]*{}", out.empty() ? "" : "+", sparse[i] ? 1 : 0, end - i);
    i = end;
  }
  return "\"(" + out + ")\"";
}

void add_experts(Arguments& x, const Layers& layers) {
  if (!layers.experts) return;
  const ExpertsLayer& l = *layers.experts;
  x.add("num-experts", l.experts);
  if (layers.mlp) x.add("moe-layer-freq", pattern(layers.sparse));
  x.add("moe-ffn-hidden-size", l.ffn_hidden);
  x.add("moe-router-topk", l.top_k);
  const bool sigmoid = l.score == RouterScore::kSigmoid;
  x.add("moe-router-score-function", sigmoid ? "sigmoid" : "softmax");
  x.add_if(!sigmoid && !l.normalised, "moe-router-pre-softmax");
  x.add("moe-router-dtype", "fp32");
  if (l.weight_scale != 1) x.add("moe-router-topk-scaling-factor", l.weight_scale);
  if (l.groups > 1) {
    x.add("moe-router-num-groups", l.groups);
    x.add("moe-router-group-topk", l.top_groups);
  }
  if (l.bias_rate > 0) {
    x.add("moe-router-enable-expert-bias");
    x.add("moe-router-bias-update-rate", l.bias_rate);
  }
  x.add("moe-router-load-balancing-type", l.balance_loss > 0 ? "seq_aux_loss" : "none");
  if (l.balance_loss > 0) x.add("moe-aux-loss-coeff", l.balance_loss);
  if (l.z_loss > 0) x.add("moe-z-loss-coeff", l.z_loss);
  if (l.shared_ffn_hidden > 0) {
    x.add("moe-shared-expert-intermediate-size", l.shared_ffn_hidden);
    x.add_if(l.shared_gate, "moe-shared-expert-gate");
  }
  x.add("moe-grouped-gemm");
}

// Every N-th layer without a window, or which layers have one.
void add_windows(Arguments& x, const Layers& layers, std::int64_t sequence) {
  if (!layers.attention || !layers.attention->windowed(sequence)) return;
  x.add("window-size", fmt::format("{},0", layers.attention->sliding_window - 1));
  const std::vector<bool>& windowed = layers.windowed;
  const auto whole = std::find(windowed.begin(), windowed.end(), false);
  if (whole == windowed.end()) return;
  const std::ptrdiff_t every = whole - windowed.begin() + 1;
  bool in_turn = every > 1;
  for (std::ptrdiff_t l = 0; l < std::ssize(windowed); ++l)
    in_turn &= windowed[static_cast<std::size_t>(l)] == ((l + 1) % every != 0);
  if (in_turn)
    x.add("window-attn-skip-freq", every);
  else
    x.add("window-attn-skip-freq", pattern(windowed));
}

void add_model(Arguments& x, const Model& m, const Training& t, const Plan& p) {
  x.add("num-layers", m.layers);
  x.add("hidden-size", m.hidden);
  const Layers layers = layers_of(m).value();
  x.add("ffn-hidden-size", layers.mlp ? layers.mlp->ffn_hidden : layers.experts->ffn_hidden);
  if (layers.latent)
    add_attention(x, *layers.latent);
  else
    add_attention(x, *layers.attention);
  x.add("seq-length", t.sequence);
  x.add("max-position-embeddings",
        m.positions == Positions::kLearned ? m.max_positions : std::max(t.sequence, m.max_positions));
  add_positions(x, layers);
  add_windows(x, layers, t.sequence);
  x.add("normalization", m.norm == Norm::kRmsNorm ? "RMSNorm" : "LayerNorm");
  x.add("norm-epsilon", m.norm_epsilon);
  x.add_if(layers.activation() == Activation::kSwiglu, "swiglu");
  x.add_if(layers.activation() == Activation::kSquaredRelu, "squared-relu");
  if (layers.activation() == Activation::kClampedSwiglu) {
    x.add("quick-geglu");
    x.add("glu-linear-offset", 1);
    x.add("activation-func-clamp-value", 7);
  }
  if (layers.attention && layers.attention->sinks) x.add("softmax-type", "learnable");
  x.add_if(!layers.biased(), "disable-bias-linear");
  x.add_if(layers.attention && layers.attention->qkv_bias && !layers.biased(), "add-qkv-bias");
  x.add_if(layers.attention && layers.attention->qk_norm != QkNorm::kNone, "qk-layernorm");
  add_experts(x, layers);
  x.add_if(!m.tied_embeddings, "untie-embeddings-and-output-weights");
  if (m.mtp_layers > 0) {
    x.add("mtp-num-layers", m.mtp_layers);
    x.add("mtp-loss-scaling-factor", m.mtp_loss_scale);
  }
  // Rows that only fill the tensor ranks' shares up, and no others.
  x.add("make-vocab-size-divisible-by", 1);
  x.add("padded-vocab-size", (m.vocab + p.tp - 1) / p.tp * p.tp);
  x.add("attention-dropout", t.dropout);
  x.add("hidden-dropout", t.dropout);
  x.add("init-method-std", 0.02);
}

// --- the plan ---------------------------------------------------------------------------------------

// Layers of each chunk in model order: E embedding, t layer, m module of multi-token prediction, L loss.
std::string chunks(const std::vector<std::int64_t>& layers, std::int64_t mtp) {
  std::string out = "\"E";
  for (std::size_t c = 0; c < layers.size(); ++c) {
    if (c > 0) out += "|";
    if (layers[c] > 0) out += fmt::format("t*{}", layers[c]);
  }
  return out + std::string(static_cast<std::size_t>(mtp), 'm') + "L\"";
}

bool sharded_parameters(const Plan& p) {
  return p.copies() > 1 && p.zero >= 2;
}

void add_pipeline(Arguments& x, const Plan& p, const Model& m) {
  x.add("pipeline-model-parallel-size", p.pp);
  const auto by_chunk = layers_by_chunk(p, m.layers);
  const bool equal =
      std::adjacent_find(by_chunk.begin(), by_chunk.end(), std::not_equal_to<>()) == by_chunk.end();
  if (!equal)
    x.add("pipeline-model-parallel-layout", chunks(by_chunk, m.mtp_layers));
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
    case ContextWay::kAllGatherUlysses:
      throw Error("Megatron-LM has no context parallelism that exchanges heads and gathers keys");
    case ContextWay::kRingUlysses:
      x.add("cp-comm-type", "a2a+p2p");
      x.add("hierarchical-context-parallel-sizes", fmt::format("{} {}", p.ulysses, p.ring()));
      return;
  }
}

void add_expert_ranks(Arguments& x, const Plan& p) {
  if (!p.splits_experts()) return;
  x.add("expert-model-parallel-size", p.ep);
  x.add("expert-tensor-parallel-size", p.expert_tp());
  x.add("moe-token-dispatcher-type", p.exchanges_by_node() ? "flex" : "alltoall");
  if (p.exchanges_by_node()) x.add("moe-flex-dispatcher-backend", "deepep");
  x.add_if(p.overlap_exchanges, "overlap-moe-expert-parallel-comm");
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

bool has_narrow_moments(const Training& t) {
  return bytes_per_parameter(t.precision).moment < 4;
}

void add_plan(Arguments& x, const Plan& p, const Problem& problem) {
  x.add("tensor-model-parallel-size", p.tp);
  x.add_if(p.sequence_parallel && p.tp > 1, "sequence-parallel");
  add_context(x, p);
  add_expert_ranks(x, p);
  add_pipeline(x, p, problem.scenario.model);
  add_replicas(x, p, problem.stack.overlap_grad_reduce);
  if (p.offloaded_optimizer() > 0) {
    x.add("optimizer-cpu-offload");
    x.add("optimizer-offload-fraction", p.offload->optimizer);
    x.add("use-precision-aware-optimizer");
    x.add_if(p.offload->overlap, "overlap-cpu-optimizer-d2h-h2d");
  }
  // Of one replica too, which shares nothing.
  if (p.copies() == 1 && (p.offloaded_optimizer() > 0 || has_narrow_moments(problem.scenario.training)))
    x.add("use-distributed-optimizer");
  x.add("micro-batch-size", p.micro_batch);
  x.add("global-batch-size", problem.scenario.training.global_batch);
  if (const auto& loading = problem.scenario.loading) x.add("num-workers", loading->workers);
  if (p.recompute == Recompute::kSelective) {
    x.add("recompute-granularity", "selective");
    std::string modules;  // their names are ours, with underscores
    for (const RecomputePart part : p.repeated().list())
      modules.append(modules.empty() ? "" : " ").append(name_of(part));
    std::replace(modules.begin(), modules.end(), '-', '_');
    x.add("recompute-modules", modules);
  }
  if (p.recompute == Recompute::kFull) {
    x.add("recompute-granularity", "full");
    // Of a chunk, with the method "block".
    const bool some = p.recompute_first > 0;
    x.add("recompute-method", some ? "block" : "uniform");
    x.add("recompute-num-layers", some ? p.recompute_first : p.recompute_layers);
  }
}

// --- numbers and the run ----------------------------------------------------------------------------

// Gradients are in E5M2 ("hybrid") where a tensor has one factor.
void add_rounding(Arguments& x, Math math) {
  const auto eight = [&](const char* format, const char* recipe) {
    x.add("fp8-format", format);
    x.add("fp8-recipe", recipe);
  };
  switch (math) {
    case Math::kBf16:
    case Math::kFp16:
    case Math::kTf32:
    case Math::kFp32:
      return;
    case Math::kFp8:
      return eight("hybrid", "tensorwise");
    case Math::kFp8Delayed:
      return eight("hybrid", "delayed");
    case Math::kFp8Blockwise:
      return eight("e4m3", "blockwise");
    case Math::kMxfp8:
      return eight("e4m3", "mxfp8");
    case Math::kNvfp4:
      x.add("fp4-format", "e2m1");
      x.add("fp4-recipe", "nvfp4");
      return;
    case Math::kFp8Rowwise:
      throw std::logic_error("no recipe of Megatron-core has a factor for each row");
  }
}

void add_numbers(Arguments& x, const Training& t) {
  const DType type = t.parameter_type();
  x.add_if(type == DType::kBfloat16, "bf16");
  x.add_if(type == DType::kFloat16, "fp16");
  add_rounding(x, t.math);
  if (type == DType::kFloat32) return;
  if (t.gradient_type() == DType::kFloat32)
    x.add("accumulate-allreduce-grads-in-fp32");
  else if (type == DType::kBfloat16)
    x.add("grad-reduce-in-bf16");
}

void add_muon(Arguments& x, const Muon& muon) {
  x.add("muon-momentum", muon.momentum);
  x.add_if(muon.nesterov, "muon-nesterov");
  x.add("muon-coefficient-type", "simple");  // one triple of coefficients for all iterations
  x.add("muon-num-ns-steps", muon.iterations);
  x.add("muon-scale-mode", "spectral");
  x.add("muon-extra-scale-factor", muon.scale);
  x.add("muon-tp-mode", name_of(muon.tp_mode));
}

void add_optimizer(Arguments& x, const Training& t, const Recipe& r) {
  if (t.precision == Precision::kSgd) {
    x.add("optimizer", "sgd");
    x.add("sgd-momentum", t.optimizer.beta1);
  } else {
    x.add("optimizer", t.muon ? "muon" : "adam");
    if (t.muon) add_muon(x, *t.muon);
    x.add("adam-beta1", t.optimizer.beta1);
    x.add("adam-beta2", t.optimizer.beta2);
    x.add("adam-eps", t.optimizer.epsilon);
    // Whether masters are 16 bits beside parameters in bf16 follows from the format of products.
    if (has_narrow_moments(t)) {
      x.add("use-precision-aware-optimizer");
      x.add("exp-avg-dtype", "bf16");
      x.add("exp-avg-sq-dtype", "bf16");
      if (t.gradient_type() != DType::kFloat32) x.add("main-grads-dtype", "bf16");
    }
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

// As the shell takes them, one a line.
std::string arguments(const Problem& problem, const Plan& p) {
  std::string out;
  for (const MegatronArgument& a : megatron_arguments(problem, p)) {
    out += fmt::format(" \\\n  --{}", a.flag);
    if (a.value) out += " " + *a.value;
  }
  return out + "\n";
}

// --- the script -------------------------------------------------------------------------------------

// Lines that end the script where a variable is not set, before ranks are started.
std::string wanted(const std::vector<AskedVariable>& variables) {
  std::string out = "# To be set here or in the environment; the script ends where one of them is missing.\n";
  for (const AskedVariable& v : variables)
    out += fmt::format(": \"${{{0}:?set {0} to {1}}}\"\n", v.name, v.wanted);
  return out + "CHECKPOINTS=${CHECKPOINTS:-checkpoints}\n\n";
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

}  // namespace

std::vector<MegatronArgument> megatron_arguments(const Problem& problem, const Plan& p) {
  Arguments x;
  const Training& t = problem.scenario.training;
  add_model(x, problem.scenario.model, t, p);
  add_plan(x, p, problem);
  add_numbers(x, t);
  add_optimizer(x, t, recipe_of(problem));
  add_data(x, p);
  return x.take();
}

std::vector<AskedVariable> megatron_variables(const Problem& problem) {
  std::vector<AskedVariable> out = {
      {"MEGATRON", "the folder of Megatron-LM"},
      {"TOKENIZER_MODEL", "the name or folder of the tokenizer, as Hugging Face has it"},
      {"DATA_PATH", "the prefix of the tokens that tools/preprocess_data.py wrote"}};
  const Recipe r = recipe_of(problem);
  if (!r.learning_rate) out.push_back({"LR", "the learning rate: none is advised for this optimizer"});
  if (r.steps == 0) out.push_back({"TRAIN_ITERS", "the number of steps: the scenario has no tokens"});
  return out;
}

std::vector<std::string> megatron_notes(const Problem& problem, const Plan& p, const Layout& layout) {
  std::vector<std::string> out;
  const Model& m = problem.scenario.model;
  if (m.activation == Activation::kGelu && !m.bias)
    out.emplace_back(
        "Megatron-LM computes GELU by the error function where layers have no biases, not by tanh");
  bool latent = false;
  depth_of(problem.scenario.model).for_each_layer([&]<class T>(const T&, std::int64_t) {
    latent |= std::is_same_v<T, LatentAttentionLayer>;
  });
  if (problem.scenario.training.muon && latent)
    out.emplace_back(
        "Megatron-LM updates the down projection of latent attention's keys and values as one matrix with "
        "the "
        "part that positions turn; the prediction has two");
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

void check_megatron(const Problem& problem, const Cursor& scenario) {
  check_fits(problem.scenario.model, scenario.child("model"));
  check_fits(problem.scenario.training, problem.scenario.model, scenario.child("training"));
}

Exported megatron_script(const Problem& problem, const Plan& p, const Cursor& scenario) {
  check_megatron(problem, scenario);
  const Layout at = layout_of(problem, p, scenario.child("cluster"));
  std::vector<AskedVariable> variables = megatron_variables(problem);
  std::vector<std::string> asked;
  for (const AskedVariable& v : variables) asked.emplace_back(v.name);
  if (at.nodes > 1) {
    variables.push_back({"MASTER_ADDR", "the host name of the first node"});
    variables.push_back({"NODE_RANK", "the number of this node, from 0"});
  }
  return {.text = "#!/bin/bash\n" + title(problem, p) + "set -euo pipefail\n\n" + wanted(variables) +
                  connections(p) + "exec " + torchrun(at) + "  \"$MEGATRON/pretrain_gpt.py\"" +
                  arguments(problem, p),
          .notes = megatron_notes(problem, p, at),
          .variables = std::move(asked)};
}

}  // namespace orrery::planner
