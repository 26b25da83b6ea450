// SPDX-License-Identifier: Apache-2.0
//
// Models of Hugging Face with mixtures of experts.
#include <algorithm>
#include <cmath>

#include "core/hugging_face/families.h"

namespace orrery {
namespace {

// Blocks whose MLPs are mixtures of experts where `sparse` says so; and everywhere.
void set_experts(Model& m, const ExpertsLayer& experts, const std::vector<bool>& sparse) {
  ModelBlock with = standard_block(m);
  with.layers.back() = {experts};
  if (std::count(sparse.begin(), sparse.end(), true) > 0) m.blocks = in_turn(sparse, with, standard_block(m));
}
void set_experts(Model& m, const ExpertsLayer& experts) {
  set_experts(m, experts, std::vector<bool>(static_cast<std::size_t>(m.layers), true));
}

// How many experts there are, and how many of them a token has.
void read_choice(const HuggingFaceReader& read, const char* all, ExpertsLayer& e,
                 const char* of_token = "num_experts_per_tok") {
  read.whole(all, e.experts, 1, 1 << 16);
  read.whole(of_token, e.top_k, 1, 64);
  read.places["experts"] = read.at.child(all);
  read.places["top_k"] = read.at.child(of_token);
}

// The factor of the auxiliary loss, which transformers adds where it is asked for the router's logits.
double router_loss(const HuggingFaceReader& read, double otherwise) {
  bool asked = false;
  read.boolean("output_router_logits", asked);
  double factor = otherwise;
  read.number("router_aux_loss_coef", factor, 0, 1e3);
  return asked ? factor : 0;
}

}  // namespace

// Mixtral, Qwen2-MoE and Qwen3-MoE.
Model import_sparse(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  const bool mixtral = read.type == "mixtral";
  m.qkv_bias = read.type == "qwen2_moe";
  if (read.type == "qwen3_moe") m.qk_norm = QkNorm::kPerHead;
  read.boolean("attention_bias", m.qkv_bias);
  read.boolean("qkv_bias", m.qkv_bias);
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = read.rotary(m.max_positions);
  // As transformers does where a field is absent.
  ExpertsLayer e{.experts = mixtral                    ? 8
                            : read.type == "qwen2_moe" ? 60
                                                       : 128,
                 .top_k = mixtral                    ? 2
                          : read.type == "qwen2_moe" ? 4
                                                     : 8,
                 .ffn_hidden = m.ffn_hidden,
                 .normalised = mixtral};
  const char* const count =
      mixtral || !read.config.contains("num_experts") ? "num_local_experts" : "num_experts";
  read_choice(read, count, e);
  e.balance_loss = router_loss(read, 0.001);
  std::vector<bool> sparse(static_cast<std::size_t>(m.layers), true);
  if (!mixtral) {
    e.ffn_hidden = read.type == "qwen2_moe" ? 1408 : 768;
    read.whole("moe_intermediate_size", e.ffn_hidden, 1, 1 << 24);
    read.boolean("norm_topk_prob", e.normalised);
    if (read.type == "qwen2_moe") {
      e.shared_ffn_hidden = 5632;
      e.shared_gate = true;
      read.whole("shared_expert_intermediate_size", e.shared_ffn_hidden, 1, 1 << 24);
    }
    std::int64_t step = 1;
    read.whole("decoder_sparse_step", step, 1, 1 << 20);
    const std::vector<bool> dense = read.listed_layers("mlp_only_layers", m.layers);
    for (std::int64_t i = 0; i < m.layers; ++i)
      sparse[static_cast<std::size_t>(i)] = !dense[static_cast<std::size_t>(i)] && (i + 1) % step == 0;
  }
  bool windows = mixtral;
  read.boolean("use_sliding_window", windows);
  if (windows) read.whole("sliding_window", m.sliding_window, 1, 1 << 30);
  set_experts(m, e, sparse);
  return m;
}

// DeepSeek-V2 and V3, and Moonlight and Kimi K2, which are of V3's kind.
Model import_deepseek(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  const bool second = read.type == "deepseek_v2";
  read.text("activation", "hidden_act", {"silu", "swish"});
  // As transformers does where a field is absent.
  LatentAttentionLayer a{
      .heads = m.heads, .q_rank = 1536, .kv_rank = 512, .turned = 64, .plain = 128, .value = 128};
  const auto width = [&](const char* ours, const char* theirs, std::int64_t& to) {
    read.places[ours] = read.at.child(theirs);
    read.whole(theirs, to, 1, 1 << 20);
  };
  if (const auto rank = read.config.find("q_lora_rank"); rank != read.config.end() && rank->is_null())
    a.q_rank = 0;
  else
    width("q_rank", "q_lora_rank", a.q_rank);
  width("kv_rank", "kv_lora_rank", a.kv_rank);
  width("turned", "qk_rope_head_dim", a.turned);
  width("plain", "qk_nope_head_dim", a.plain);
  width("value", "v_head_dim", a.value);
  m.kv_heads = m.head_dim = 0;  // of attention that these models have not
  if (m.qkv_bias) read.at.child("attention_bias").fail("true cannot be imported", "allowed: false");
  const std::vector<std::string> of_second{"greedy", "group_limited_greedy"}, of_third{"noaux_tc"};
  read.text("groups", "topk_method", second ? of_second : of_third);
  read.text("score", "scoring_func", {second ? "softmax" : "sigmoid"});
  a.rotary = read.rotary(m.max_positions);
  double scores = 0;
  for (const char* const name : {"rope_scaling", "rope_parameters"}) {
    if (const auto found = read.config.find(name); found != read.config.end() && found->is_object())
      HuggingFaceReader{*found, read.at.child(name), read.type, read.places}.number("mscale_all_dim", scores,
                                                                                    0, 1e3);
  }
  if (a.rotary.scaling == RotaryScaling::kYarn && scores > 0) {
    const double size = 0.1 * scores * std::log(a.rotary.factor) + 1;
    a.query_scale = size * size / std::sqrt(static_cast<double>(a.head()));
  }
  ExpertsLayer e{.experts = second ? 64 : 256,
                 .top_k = second ? 6 : 8,
                 .ffn_hidden = second ? 1408 : 2048,
                 .score = second ? RouterScore::kSoftmax : RouterScore::kSigmoid,
                 .normalised = !second,
                 .weight_scale = second ? 1 : 2.5,
                 .groups = second ? 1 : 8,
                 .top_groups = second ? 1 : 4,
                 .bias_rate = second ? 0 : 0.001};
  std::int64_t shared = second ? 2 : 1, dense = second ? 1 : 3, step = 1;
  read_choice(read, "n_routed_experts", e);
  read.whole("moe_intermediate_size", e.ffn_hidden, 1, 1 << 24);
  read.boolean("norm_topk_prob", e.normalised);
  read.number("routed_scaling_factor", e.weight_scale, 1e-6, 1e6);
  read.whole("n_shared_experts", shared, 0, 1024);
  read.whole("first_k_dense_replace", dense, 0, 1 << 20);
  read.whole("moe_layer_freq", step, 1, 1 << 20);
  const auto method = read.config.find("topk_method");
  const bool grouped = !second || (method != read.config.end() && *method == "group_limited_greedy");
  if (grouped) {
    read.whole("n_group", e.groups, 1, 64);
    read.whole("topk_group", e.top_groups, 1, 64);
  }
  if (second) read.number("aux_loss_alpha", e.balance_loss, 0, 1e3);
  e.shared_ffn_hidden = shared * e.ffn_hidden;
  read.places["groups"] = read.at.child("n_group");

  std::vector<bool> sparse;
  for (std::int64_t i = 0; i < m.layers; ++i) sparse.push_back(i >= dense && i % step == 0);
  ModelBlock plain = standard_block(m), with = plain;
  plain.layers.front() = with.layers.front() = {a};
  with.layers.back() = {e};
  m.blocks = in_turn(sparse, with, plain);
  return m;
}

// GLM-4.5: attention of GLM with half of a head turned, experts of DeepSeek-V3's kind. dots.llm1 has these
// experts too, and Qwen 3's attention.
Model import_glm(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  read.text("activation", "hidden_act", {"silu", "swish"});
  const bool dots = read.type == "dots1";
  bool norms = dots;
  read.boolean("use_qk_norm", norms);
  if (norms) m.qk_norm = QkNorm::kPerHead;
  m.rotary = read.rotary(m.max_positions);
  if (!dots && !read.config.contains("partial_rotary_factor") && !read.config.contains("rope_parameters"))
    m.rotary.fraction = 0.5;
  if (dots) {  // whose windows are those of "layer_types", where it has any
    const std::vector<bool> windowed = read.windowed_layers(m.layers, [](std::int64_t) { return false; });
    if (std::count(windowed.begin(), windowed.end(), true) > 0)
      read.at.child("layer_types").fail("layers with windows cannot be imported", "allowed: full_attention");
    std::int64_t whole = m.layers;
    read.whole("max_window_layers", whole, 0, 1 << 20);
    const auto window = read.config.find("sliding_window");
    if (whole < m.layers && window != read.config.end() && !window->is_null() &&
        !read.config.contains("layer_types"))
      read.at.child("max_window_layers")
          .fail("layers with windows cannot be imported", fmt::format("allowed: {}", m.layers));
  }
  ExpertsLayer e{
      .experts = 128, .top_k = 8, .ffn_hidden = 1408, .score = RouterScore::kSigmoid, .bias_rate = 0.001};
  std::int64_t shared = 1, dense = dots ? 0 : 1;
  if (dots) e.normalised = false;
  read_choice(read, "n_routed_experts", e);
  read.whole("moe_intermediate_size", e.ffn_hidden, 1, 1 << 24);
  read.boolean("norm_topk_prob", e.normalised);
  read.number("routed_scaling_factor", e.weight_scale, 1e-6, 1e6);
  read.whole("n_group", e.groups, 1, 64);
  read.whole("topk_group", e.top_groups, 1, 64);
  read.whole("n_shared_experts", shared, 0, 1024);
  read.whole("first_k_dense_replace", dense, 0, 1 << 20);
  e.shared_ffn_hidden = shared * e.ffn_hidden;
  read.places["groups"] = read.at.child("n_group");
  std::vector<bool> sparse;
  for (std::int64_t i = 0; i < m.layers; ++i) sparse.push_back(i >= dense);
  set_experts(m, e, sparse);
  return m;
}

// GPT-OSS: attention with a learned score for each head and windows in every second layer, and experts with
// biases. The weights of a token's experts are a softmax over these, which is the softmax over all made to
// sum to 1.
Model import_gpt_oss(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  read.text("activation", "hidden_act", {"silu", "swish"});
  bool biases = true;
  read.boolean("attention_bias", biases);
  if (!biases) read.at.child("attention_bias").fail("false cannot be imported", "allowed: true");
  m.qkv_bias = false;
  if (m.head_dim == 0) m.head_dim = 64;
  m.rotary = read.rotary(m.max_positions);
  double limit = 7;
  read.number("swiglu_limit", limit, 0, 1e6);
  if (limit != 7)
    read.at.child("swiglu_limit").fail(fmt::format("{} cannot be imported", limit), "allowed: 7");
  ExpertsLayer e{.experts = 128,
                 .top_k = 4,
                 .ffn_hidden = m.ffn_hidden,
                 .biases = true,
                 .activation = Activation::kClampedSwiglu};
  read_choice(read, "num_local_experts", e,
              read.config.contains("experts_per_token") ? "experts_per_token" : "num_experts_per_tok");
  e.balance_loss = router_loss(read, 0.9);
  std::int64_t window = 128;
  read.integer("sliding_window", {"sliding_window"}, window, false);
  ModelBlock all = standard_block(m);
  auto& attention = std::get<AttentionLayer>(all.layers.front().is);
  attention.bias = attention.sinks = true;
  all.layers.back() = {e};
  ModelBlock near = all;
  std::get<AttentionLayer>(near.layers.front().is).sliding_window = window;
  m.blocks = in_turn(read.windowed_layers(m.layers, [](std::int64_t i) { return i % 2 == 0; }), near, all);
  return m;
}

// OLMoE: norms of all heads together.
Model import_olmoe(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  if (!read.says("rms_norm_eps")) m.norm_epsilon = 1e-5;  // as transformers does where a field is absent
  m.qk_norm = QkNorm::kAllHeads;
  read.text("activation", "hidden_act", {"silu", "swish"});
  read.refuse_true("attention_bias");
  if (read.says("clip_qkv"))
    read.at.child("clip_qkv").fail(shown(read.config["clip_qkv"]) + " cannot be imported", "allowed: null");
  m.rotary = read.rotary(m.max_positions);
  ExpertsLayer e{.experts = 64, .top_k = 8, .ffn_hidden = m.ffn_hidden, .normalised = false};
  read_choice(read, "num_experts", e);
  read.boolean("norm_topk_prob", e.normalised);
  e.balance_loss = router_loss(read, 0.01);
  set_experts(m, e);
  return m;
}

// Granite's experts: the weights of a token's experts are a softmax over these.
Model import_granite_experts(const HuggingFaceReader& read) {
  Model m = import_granite(read);
  ExpertsLayer e{.experts = 8, .top_k = 2, .ffn_hidden = m.ffn_hidden};
  read_choice(read, "num_local_experts", e);
  read.whole("shared_intermediate_size", e.shared_ffn_hidden, 0,
             read.type == "granitemoeshared" ? 1 << 24 : 0);
  e.balance_loss = router_loss(read, 0.001);
  set_experts(m, e);
  return m;
}

// MiniMax-M2: norms of all heads together, so much of a head turned as rotary_dim says, experts of
// DeepSeek-V3's kind without groups.
Model import_minimax(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  m.qk_norm = QkNorm::kAllHeads;
  bool norms = true;
  read.boolean("use_qk_norm", norms);
  if (!norms) m.qk_norm = QkNorm::kNone;
  read.text("qk_norm", "qk_norm_type", {"per_layer"});
  read.text("activation", "hidden_act", {"silu", "swish"});
  read.text("score", "scoring_func", {"sigmoid"});
  read.refuse_true("attention_bias");
  // As transformers does where a field is absent.
  if (m.kv_heads == 0) m.kv_heads = 8;
  if (m.head_dim == 0) m.head_dim = 128;
  m.rotary = read.rotary(m.max_positions);
  if (!read.says("rope_theta") && !read.says("rope_parameters")) m.rotary.base = 5e6;
  std::int64_t turned = 0;
  read.whole("rotary_dim", turned, 1, static_cast<double>(m.head_dim));
  if (turned > 0) {
    m.rotary.fraction = static_cast<double>(turned) / static_cast<double>(m.head_dim);
    read.places["rotary/fraction"] = read.at.child("rotary_dim");
  }
  std::int64_t shared = 0;
  read.whole("shared_intermediate_size", shared, 0, 0);  // transformers has no shared experts of the model
  ExpertsLayer e{.experts = 256,
                 .top_k = 8,
                 .ffn_hidden = m.ffn_hidden,
                 .score = RouterScore::kSigmoid,
                 .bias_rate = 0.001};
  bool biased = true;
  read.boolean("use_routing_bias", biased);
  if (!biased) e.bias_rate = 0;
  read_choice(read, read.says("num_local_experts") ? "num_local_experts" : "num_experts", e);
  e.balance_loss = router_loss(read, 0.001);
  set_experts(m, e);
  return m;
}

// Llama 4: three of four layers see chunks alone, and their queries and keys are normed without weights; the
// others have no positions, and their queries grow. A token's one expert reads the token times its score.
// Positions turn elements as Cohere's do.
Model import_llama4(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  // As transformers does where a field is absent.
  if (!read.says("rms_norm_eps")) m.norm_epsilon = 1e-5;
  if (m.head_dim == 0 && !read.config.contains("head_dim")) m.head_dim = 128;
  if (m.kv_heads == 0) m.kv_heads = read.config.contains("num_key_value_heads") ? m.heads : 8;
  read.text("activation", "hidden_act", {"silu", "swish"});
  read.refuse_true("attention_bias");
  m.rotary = read.rotary(m.max_positions);
  if (!read.says("rope_theta") && !read.says("rope_parameters")) m.rotary.base = 5e5;
  ExpertsLayer e{.experts = 16,
                 .top_k = 1,
                 .ffn_hidden = m.ffn_hidden,
                 .shared_ffn_hidden = m.ffn_hidden,
                 .score = RouterScore::kSigmoid,
                 .normalised = false,
                 .weighs_inputs = true};
  read_choice(read, "num_local_experts", e);
  m.ffn_hidden = 16384;
  read.integer("ffn_hidden", {"intermediate_size_mlp"}, m.ffn_hidden, false);

  std::int64_t step = 1, chunk = 8192;
  read.whole("interleave_moe_layer_step", step, 1, 1 << 20);
  const bool listed = read.says("moe_layers");
  const std::vector<bool> sparse = read.listed_layers("moe_layers", m.layers);
  if (read.config.contains("attention_chunk_size") && !read.says("attention_chunk_size")) chunk = 0;
  read.whole("attention_chunk_size", chunk, 1, 1 << 30);
  bool norms = true, grows = true;
  read.boolean("use_qk_norm", norms);
  if (const auto given = read.config.find("attn_temperature_tuning");
      given != read.config.end() && given->is_number())
    grows = *given != 0;  // as older files say it
  else
    read.boolean("attn_temperature_tuning", grows);
  QueryGrowth growth{.rate = 0.1};
  read.number("attn_scale", growth.rate, 0, 1e3);
  read.whole("floor_scale", growth.positions, 1, 1 << 30);
  const std::vector<bool> still = read.layers_without_positions(m.layers);
  static const std::vector<std::string> kKinds{"full_attention", "chunked_attention"};
  const std::vector<std::string> kinds = read.kinds_of_layers(
      m.layers, kKinds, [&](std::int64_t i) { return kKinds[still[static_cast<std::size_t>(i)] ? 0 : 1]; });
  // By whether positions turn nothing, attention is in chunks, and there are experts.
  std::vector<ModelBlock> all;
  for (std::size_t kind = 0; kind < 8; ++kind) {
    const bool is_still = (kind & 1U) != 0;
    ModelBlock& block = all.emplace_back(is_still ? block_without_positions(m) : standard_block(m));
    auto& attention = std::get<AttentionLayer>(block.layers.front().is);
    if ((kind & 2U) != 0) attention.chunk = chunk;
    if (is_still && grows) attention.query_growth = growth;
    if (!is_still && norms) attention.qk_norm = QkNorm::kUnweighted;
    if ((kind & 4U) != 0) block.layers.back() = {e};
  }
  std::vector<std::size_t> kind_of;
  for (std::size_t i = 0; i < still.size(); ++i) {
    const bool has_experts = listed ? sparse[i] : (static_cast<std::int64_t>(i) + 1) % step == 0;
    kind_of.push_back((still[i] ? 1U : 0U) | (kinds[i] == kKinds[1] ? 2U : 0U) | (has_experts ? 4U : 0U));
  }
  m.blocks = runs_of(all, kind_of);
  return m;
}

}  // namespace orrery
