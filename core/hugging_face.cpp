// SPDX-License-Identifier: Apache-2.0
//
// Models from config.json in Hugging Face's format.
#include <algorithm>
#include <cmath>
#include <functional>

#include "core/model.h"

namespace orrery {
namespace {

class HuggingFaceReader {
 public:
  HuggingFaceReader(const Json& config, const Cursor& at, ImportedFields& places)
      : config_(config), at_(at), places_(places) {}

  // The field `ours` under any of its names (transformers 4 and 5 differ); null counts as absent.
  void integer(const char* ours, std::initializer_list<const char*> names, std::int64_t& out,
               bool required) const {
    Field field = declared<Model>(ours);
    field.min = std::max(field.min, 1.0);  // only in our files does 0 mean a default
    places_[ours] = at_.child(*names.begin());
    for (const char* name : names) {
      const auto found = config_.find(name);
      if (found == config_.end() || found->is_null()) continue;
      places_[ours] = at_.child(name);
      return read_value(*found, at_.child(name), field, out);
    }
    if (required) at_.fail(fmt::format("the field \"{}\" is missing", *names.begin()));
  }
  void number(const char* name, double& out, double least, double most) const {
    const auto found = config_.find(name);
    if (found != config_.end() && !found->is_null())
      read_value(*found, at_.child(name), Field{name, "", least, most}, out);
  }
  void whole(const char* name, std::int64_t& out, double least, double most) const {
    const auto found = config_.find(name);
    if (found != config_.end() && !found->is_null())
      read_value(*found, at_.child(name), Field{name, "", least, most}, out);
  }
  // A text field that our models have one meaning of, under several names.
  void text(const char* ours, const char* name, const std::vector<std::string>& known) const {
    places_[ours] = at_.child(name);
    const auto found = config_.find(name);
    if (found == config_.end() || found->is_null()) return;
    std::string value;
    read_value(*found, at_.child(name), Field{name, ""}, value);
    if (std::find(known.begin(), known.end(), value) == known.end())
      at_.child(name).fail(shown(*found) + " cannot be imported", allowed_names(value, known));
  }
  void boolean(const char* name, bool& out) const {
    const auto found = config_.find(name);
    if (found != config_.end() && !found->is_null())
      read_value(*found, at_.child(name), Field{name, ""}, out);
  }

 private:
  const Json& config_;
  const Cursor& at_;
  ImportedFields& places_;
};

Model import_gpt2(const HuggingFaceReader& read) {
  Model m;
  m.max_positions = 1024;
  read.integer("layers", {"n_layer", "num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"n_embd", "hidden_size"}, m.hidden, true);
  read.integer("heads", {"n_head", "num_attention_heads"}, m.heads, true);
  read.integer("ffn_hidden", {"n_inner", "intermediate_size"}, m.ffn_hidden, false);
  read.integer("max_positions", {"n_positions", "max_position_embeddings"}, m.max_positions, false);
  read.number("layer_norm_epsilon", m.norm_epsilon, 1e-20, 1);
  read.text("activation", "activation_function", {"gelu_new", "gelu", "gelu_pytorch_tanh"});
  return m;
}

Model llama_like(const std::string& type, const HuggingFaceReader& read) {
  Model m{.name = type,
          .norm = Norm::kRmsNorm,
          .norm_epsilon = 1e-6,
          .positions = Positions::kRotary,
          .activation = Activation::kSwiglu,
          .bias = false,
          .tied_embeddings = false};
  read.integer("layers", {"num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"hidden_size"}, m.hidden, true);
  read.integer("heads", {"num_attention_heads"}, m.heads, true);
  read.integer("kv_heads", {"num_key_value_heads"}, m.kv_heads, false);
  read.integer("head_dim", {"head_dim"}, m.head_dim, false);
  read.integer("ffn_hidden", {"intermediate_size"}, m.ffn_hidden, true);
  read.integer("max_positions", {"max_position_embeddings"}, m.max_positions, false);
  read.number("rms_norm_eps", m.norm_epsilon, 1e-20, 1);
  read.boolean("attention_bias", m.qkv_bias);
  return m;
}

// Which layers have a window: as "layer_types" says, or those from `first` on of each `every`.
std::vector<bool> windowed_layers(const Json& config, const Cursor& at, std::int64_t layers,
                                  const std::function<bool(std::int64_t)>& otherwise) {
  std::vector<bool> out;
  const auto found = config.find("layer_types");
  if (found == config.end() || found->is_null()) {
    for (std::int64_t i = 0; i < layers; ++i) out.push_back(otherwise(i));
    return out;
  }
  const Cursor here = at.child("layer_types");
  if (!found->is_array() || static_cast<std::int64_t>(found->size()) != layers)
    here.fail(shown(*found) + " does not name the kind of each layer",
              fmt::format("allowed: {} kinds", layers));
  static const std::vector<std::string> kKinds{"full_attention", "sliding_attention"};
  for (std::size_t i = 0; i < found->size(); ++i) {
    std::string kind;
    read_value((*found)[i], here.child(i), Field{"layer_types", ""}, kind);
    if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end())
      here.child(i).fail(shown((*found)[i]) + " cannot be imported", allowed_names(kind, kKinds));
    out.push_back(kind == kKinds[1]);
  }
  return out;
}

// The blocks `one` where `is_one` says so and `other` elsewhere: a pattern, so often, and what is left of it;
// or stretches of blocks that are alike, where there is no pattern.
std::vector<BlockRun> in_turn(const std::vector<bool>& is_one, const ModelBlock& one,
                              const ModelBlock& other) {
  const auto n = std::ssize(is_one);
  const auto block = [&](std::ptrdiff_t i) { return is_one[static_cast<std::size_t>(i)] ? one : other; };
  const auto blocks = [&](std::ptrdiff_t count) {
    std::vector<ModelBlock> out;
    for (std::ptrdiff_t i = 0; i < count; ++i) out.push_back(block(i));
    return out;
  };
  std::ptrdiff_t period = 1;
  while (!std::equal(is_one.begin() + period, is_one.end(), is_one.begin())) ++period;
  std::vector<BlockRun> out;
  if (2 * period <= n) {
    out.push_back({n / period, blocks(period)});
    if (n % period > 0) out.push_back({1, blocks(n % period)});
    return out;
  }
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    if (i > 0 && is_one[static_cast<std::size_t>(i)] == is_one[static_cast<std::size_t>(i - 1)])
      ++out.back().times;
    else
      out.push_back({1, {block(i)}});
  }
  return out;
}

// Blocks with a window where `windowed` says so, and the model's own elsewhere: a pattern, so often, and what
// is left of it. Nothing where all are alike, which the flat fields then say.
void set_windows(Model& m, std::int64_t window, const std::vector<bool>& windowed,
                 const Rotary& rotary_of_windows) {
  ModelBlock with = standard_block(m);
  auto& attention = std::get<AttentionLayer>(with.layers.front().is);
  attention.sliding_window = window;
  attention.rotary = rotary_of_windows;
  const auto n = static_cast<std::int64_t>(windowed.size());
  if (std::count(windowed.begin(), windowed.end(), true) == n) {
    m.sliding_window = window;
    m.rotary = rotary_of_windows;
    return;
  }
  if (std::count(windowed.begin(), windowed.end(), true) == 0) return;
  m.blocks = in_turn(windowed, with, standard_block(m));
}

void refuse_true(const HuggingFaceReader& read, const Cursor& at, const char* name) {
  bool given = false;
  read.boolean(name, given);
  if (given) at.child(name).fail("true cannot be imported", "allowed: false");
}

Model import_llama(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                   const std::string& type, ImportedFields& places) {
  Model m = llama_like(type, read);
  if (type == "seed_oss" && m.head_dim == 0) m.head_dim = 128;
  if (type == "phi3" && !config.contains("rms_norm_eps")) m.norm_epsilon = 1e-5;
  m.qkv_bias = type == "qwen2" || type == "seed_oss";
  m.qk_norm = type == "qwen3";
  read.boolean("attention_bias", m.qkv_bias);
  for (const char* const name : {"attention_out_bias", "mlp_bias"}) refuse_true(read, at, name);
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = import_rotary(config, at, m.max_positions, places);
  if (type == "llama" || type == "seed_oss") return m;
  if (type == "phi3") {
    read.whole("sliding_window", m.sliding_window, 1, 1 << 30);
    return m;
  }
  // As transformers does where a field is absent: Mistral has a window, Qwen has none unless it says so.
  bool used = type == "mistral";
  std::int64_t window = used ? 4096 : 0, first = used ? 0 : m.layers;
  if (const auto found = config.find("sliding_window"); found != config.end() && found->is_null()) return m;
  read.boolean("use_sliding_window", used);
  if (!used) return m;
  read.integer("sliding_window", {"sliding_window"}, window, false);
  if (type.starts_with("qwen")) {
    read.whole("max_window_layers", first, 0, 1 << 30);
  }
  if (window > 0) {
    set_windows(m, window, windowed_layers(config, at, m.layers, [&](std::int64_t i) { return i >= first; }),
                m.rotary);
  }
  return m;
}

// The model's block, whose tokens have no positions.
ModelBlock block_without_positions(const Model& m) {
  ModelBlock out = standard_block(m);
  auto& attention = std::get<AttentionLayer>(out.layers.front().is);
  attention.positions = Positions::kNone;
  attention.rotary = {};
  return out;
}

// SmolLM3: Llama's layers, some without positions.
Model import_smollm(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                    ImportedFields& places) {
  Model m = llama_like("smollm3", read);
  m.tied_embeddings = true;
  read.text("activation", "hidden_act", {"silu", "swish"});
  // As transformers does where a field is absent.
  if (m.kv_heads == 0) m.kv_heads = 4;
  for (const char* const name : {"use_sliding_window", "attention_bias", "mlp_bias"})
    refuse_true(read, at, name);
  m.rotary = import_rotary(config, at, m.max_positions, places);
  if (!config.contains("rope_theta") && !config.contains("rope_parameters")) m.rotary.base = 2e6;
  std::int64_t interval = 4;
  read.whole("no_rope_layer_interval", interval, 1, 1 << 20);
  std::vector<bool> without;
  for (std::int64_t i = 0; i < m.layers; ++i) without.push_back((i + 1) % interval == 0);
  if (const auto found = config.find("no_rope_layers"); found != config.end() && !found->is_null()) {
    std::vector<std::int64_t> turned;  // 1 where a layer has positions
    read_value(*found, at.child("no_rope_layers"), Field{"no_rope_layers", "", 0, 1}, turned);
    if (std::ssize(turned) != m.layers) {
      at.child("no_rope_layers")
          .fail(fmt::format("there are {} of them", turned.size()),
                fmt::format("allowed: {}, one for each layer", m.layers));
    }
    for (std::size_t i = 0; i < turned.size(); ++i) without[i] = turned[i] == 0;
  }
  if (std::count(without.begin(), without.end(), true) > 0)
    m.blocks = in_turn(without, block_without_positions(m), standard_block(m));
  return m;
}

// EXAONE 4: norms behind the layers, and where some have windows the others have no positions.
Model import_exaone(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                    ImportedFields& places) {
  Model m = llama_like("exaone4", read);
  m.form = BlockForm::kPostNorm;
  m.qk_norm = true;
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = import_rotary(config, at, m.max_positions, places);
  // As transformers does where a field is absent; null means that there are no windows.
  if (!config.contains("rms_norm_eps")) m.norm_epsilon = 1e-5;
  std::int64_t window = 4096;
  if (const auto found = config.find("sliding_window"); found != config.end() && found->is_null()) return m;
  read.whole("sliding_window", window, 1, 1 << 30);
  std::int64_t every = 4;
  if (const auto found = config.find("sliding_window_pattern"); found != config.end() && found->is_string())
    every = std::ssize(found->get_ref<const std::string&>());  // "LLLG": the last one sees everything
  else
    read.whole("sliding_window_pattern", every, 1, 1 << 20);
  const std::vector<bool> windowed = windowed_layers(
      config, at, m.layers, [&](std::int64_t i) { return (i + 1) % std::max<std::int64_t>(every, 1) != 0; });
  ModelBlock near = standard_block(m);
  std::get<AttentionLayer>(near.layers.front().is).sliding_window = window;
  m.blocks = in_turn(windowed, near, block_without_positions(m));
  return m;
}

// StarCoder 2, StableLM and Nemotron: LayerNorm with biases around layers of other kinds.
Model import_layer_norm(const std::string& type, const HuggingFaceReader& read, const Json& config,
                        const Cursor& at, ImportedFields& places) {
  Model m = llama_like(type, read);
  m.norm = Norm::kLayerNorm;
  m.norm_bias = true;
  m.norm_epsilon = 1e-5;
  const bool starcoder = type == "starcoder2", stable = type == "stablelm";
  read.number(starcoder ? "norm_epsilon" : stable ? "layer_norm_eps" : "norm_eps", m.norm_epsilon, 1e-20, 1);
  m.rotary = import_rotary(config, at, m.max_positions, places);
  const auto fraction = [&](double otherwise) {
    if (config.contains("partial_rotary_factor") || config.contains("rope_parameters")) return;
    m.rotary.fraction = otherwise;
    read.number("rope_pct", m.rotary.fraction, 0.001, 1);
  };
  if (starcoder) {
    m.activation = Activation::kGelu;
    m.bias = m.tied_embeddings = true;
    if (m.kv_heads == 0) m.kv_heads = 2;  // where the field is absent
    read.boolean("use_bias", m.bias);
    read.text("activation", "hidden_act", {"gelu_pytorch_tanh", "gelu", "gelu_new"});
    read.whole("sliding_window", m.sliding_window, 1, 1 << 30);
  } else if (stable) {
    fraction(0.25);
    read.boolean("use_qkv_bias", m.qkv_bias);
    read.text("activation", "hidden_act", {"silu", "swish"});
    refuse_true(read, at, "qk_layernorm");
    bool parallel = false;
    read.boolean("use_parallel_residual", parallel);
    if (parallel) m.form = BlockForm::kParallelOneNorm;
  } else {
    fraction(0.5);
    m.activation = Activation::kSquaredRelu;
    read.text("activation", "hidden_act", {"relu2"});
    refuse_true(read, at, "attention_bias");
    refuse_true(read, at, "mlp_bias");
  }
  return m;
}

// Blocks whose MLPs are mixtures of experts where `sparse` says so.
void set_experts(Model& m, const ExpertsLayer& experts, const std::vector<bool>& sparse) {
  ModelBlock with = standard_block(m);
  with.layers.back() = {experts};
  if (std::count(sparse.begin(), sparse.end(), true) > 0) m.blocks = in_turn(sparse, with, standard_block(m));
}

// Layers that a list of their numbers names.
std::vector<bool> listed_layers(const Json& config, const Cursor& at, const char* name, std::int64_t layers) {
  std::vector<bool> out(static_cast<std::size_t>(layers));
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return out;
  std::vector<std::int64_t> numbers;
  read_value(*found, at.child(name), Field{name, "", 0, static_cast<double>(layers - 1)}, numbers);
  for (const std::int64_t i : numbers) out[static_cast<std::size_t>(i)] = true;
  return out;
}

// The factor of the auxiliary loss, which transformers adds where it is asked for the router's logits.
double router_loss(const HuggingFaceReader& read, double otherwise) {
  bool asked = false;
  read.boolean("output_router_logits", asked);
  double factor = otherwise;
  read.number("router_aux_loss_coef", factor, 0, 1e3);
  return asked ? factor : 0;
}

// Mixtral, Qwen2-MoE and Qwen3-MoE.
Model import_sparse(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                    const std::string& type, ImportedFields& places) {
  Model m = llama_like(type, read);
  const bool mixtral = type == "mixtral";
  m.qkv_bias = type == "qwen2_moe";
  m.qk_norm = type == "qwen3_moe";
  read.boolean("attention_bias", m.qkv_bias);
  read.boolean("qkv_bias", m.qkv_bias);
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = import_rotary(config, at, m.max_positions, places);
  // As transformers does where a field is absent.
  ExpertsLayer e{.experts = mixtral               ? 8
                            : type == "qwen2_moe" ? 60
                                                  : 128,
                 .top_k = mixtral               ? 2
                          : type == "qwen2_moe" ? 4
                                                : 8,
                 .ffn_hidden = m.ffn_hidden,
                 .normalised = mixtral};
  const char* const count = mixtral || !config.contains("num_experts") ? "num_local_experts" : "num_experts";
  read.whole(count, e.experts, 1, 1 << 16);
  read.whole("num_experts_per_tok", e.top_k, 1, 64);
  places["experts"] = at.child(count);
  places["top_k"] = at.child("num_experts_per_tok");
  e.balance_loss = router_loss(read, 0.001);
  std::vector<bool> sparse(static_cast<std::size_t>(m.layers), true);
  if (!mixtral) {
    e.ffn_hidden = type == "qwen2_moe" ? 1408 : 768;
    read.whole("moe_intermediate_size", e.ffn_hidden, 1, 1 << 24);
    read.boolean("norm_topk_prob", e.normalised);
    if (type == "qwen2_moe") {
      e.shared_ffn_hidden = 5632;
      e.shared_gate = true;
      read.whole("shared_expert_intermediate_size", e.shared_ffn_hidden, 1, 1 << 24);
    }
    std::int64_t step = 1;
    read.whole("decoder_sparse_step", step, 1, 1 << 20);
    const std::vector<bool> dense = listed_layers(config, at, "mlp_only_layers", m.layers);
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
Model import_deepseek(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                      const std::string& type, ImportedFields& places) {
  Model m = llama_like(type, read);
  const bool second = type == "deepseek_v2";
  read.text("activation", "hidden_act", {"silu", "swish"});
  // As transformers does where a field is absent.
  LatentAttentionLayer a{
      .heads = m.heads, .q_rank = 1536, .kv_rank = 512, .turned = 64, .plain = 128, .value = 128};
  const auto width = [&](const char* ours, const char* theirs, std::int64_t& to) {
    places[ours] = at.child(theirs);
    read.whole(theirs, to, 1, 1 << 20);
  };
  if (const auto rank = config.find("q_lora_rank"); rank != config.end() && rank->is_null())
    a.q_rank = 0;
  else
    width("q_rank", "q_lora_rank", a.q_rank);
  width("kv_rank", "kv_lora_rank", a.kv_rank);
  width("turned", "qk_rope_head_dim", a.turned);
  width("plain", "qk_nope_head_dim", a.plain);
  width("value", "v_head_dim", a.value);
  m.kv_heads = m.head_dim = 0;  // of attention that these models have not
  if (m.qkv_bias) at.child("attention_bias").fail("true cannot be imported", "allowed: false");
  const std::vector<std::string> of_second{"greedy", "group_limited_greedy"}, of_third{"noaux_tc"};
  read.text("groups", "topk_method", second ? of_second : of_third);
  read.text("score", "scoring_func", {second ? "softmax" : "sigmoid"});
  a.rotary = import_rotary(config, at, m.max_positions, places);
  double scores = 0;
  for (const char* const name : {"rope_scaling", "rope_parameters"}) {
    if (const auto found = config.find(name); found != config.end() && found->is_object())
      HuggingFaceReader(*found, at.child(name), places).number("mscale_all_dim", scores, 0, 1e3);
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
  read.whole("n_routed_experts", e.experts, 1, 1 << 16);
  read.whole("num_experts_per_tok", e.top_k, 1, 64);
  read.whole("moe_intermediate_size", e.ffn_hidden, 1, 1 << 24);
  read.boolean("norm_topk_prob", e.normalised);
  read.number("routed_scaling_factor", e.weight_scale, 1e-6, 1e6);
  read.whole("n_shared_experts", shared, 0, 1024);
  read.whole("first_k_dense_replace", dense, 0, 1 << 20);
  read.whole("moe_layer_freq", step, 1, 1 << 20);
  const auto method = config.find("topk_method");
  const bool grouped = !second || (method != config.end() && *method == "group_limited_greedy");
  if (grouped) {
    read.whole("n_group", e.groups, 1, 64);
    read.whole("topk_group", e.top_groups, 1, 64);
  }
  if (second) read.number("aux_loss_alpha", e.balance_loss, 0, 1e3);
  e.shared_ffn_hidden = shared * e.ffn_hidden;
  places["experts"] = at.child("n_routed_experts");
  places["top_k"] = at.child("num_experts_per_tok");
  places["groups"] = at.child("n_group");

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
Model import_glm(const HuggingFaceReader& read, const Json& config, const Cursor& at, const std::string& type,
                 ImportedFields& places) {
  Model m = llama_like(type, read);
  read.text("activation", "hidden_act", {"silu", "swish"});
  const bool dots = type == "dots1";
  m.qk_norm = dots;
  read.boolean("use_qk_norm", m.qk_norm);
  m.rotary = import_rotary(config, at, m.max_positions, places);
  if (!dots && !config.contains("partial_rotary_factor") && !config.contains("rope_parameters"))
    m.rotary.fraction = 0.5;
  if (dots) {  // whose windows are those of "layer_types", where it has any
    const std::vector<bool> windowed =
        windowed_layers(config, at, m.layers, [](std::int64_t) { return false; });
    if (std::count(windowed.begin(), windowed.end(), true) > 0)
      at.child("layer_types").fail("layers with windows cannot be imported", "allowed: full_attention");
    std::int64_t whole = m.layers;
    read.whole("max_window_layers", whole, 0, 1 << 20);
    const auto window = config.find("sliding_window");
    if (whole < m.layers && window != config.end() && !window->is_null() && !config.contains("layer_types"))
      at.child("max_window_layers")
          .fail("layers with windows cannot be imported", fmt::format("allowed: {}", m.layers));
  }
  ExpertsLayer e{
      .experts = 128, .top_k = 8, .ffn_hidden = 1408, .score = RouterScore::kSigmoid, .bias_rate = 0.001};
  std::int64_t shared = 1, dense = dots ? 0 : 1;
  if (dots) e.normalised = false;
  read.whole("n_routed_experts", e.experts, 1, 1 << 16);
  read.whole("num_experts_per_tok", e.top_k, 1, 64);
  read.whole("moe_intermediate_size", e.ffn_hidden, 1, 1 << 24);
  read.boolean("norm_topk_prob", e.normalised);
  read.number("routed_scaling_factor", e.weight_scale, 1e-6, 1e6);
  read.whole("n_group", e.groups, 1, 64);
  read.whole("topk_group", e.top_groups, 1, 64);
  read.whole("n_shared_experts", shared, 0, 1024);
  read.whole("first_k_dense_replace", dense, 0, 1 << 20);
  e.shared_ffn_hidden = shared * e.ffn_hidden;
  places["experts"] = at.child("n_routed_experts");
  places["top_k"] = at.child("num_experts_per_tok");
  places["groups"] = at.child("n_group");
  std::vector<bool> sparse;
  for (std::int64_t i = 0; i < m.layers; ++i) sparse.push_back(i >= dense);
  set_experts(m, e, sparse);
  return m;
}

// GPT-OSS: attention with a learned score for each head and windows in every second layer, and experts with
// biases. The weights of a token's experts are a softmax over these, which is the softmax over all made to
// sum to 1.
Model import_gpt_oss(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                     ImportedFields& places) {
  Model m = llama_like("gpt_oss", read);
  read.text("activation", "hidden_act", {"silu", "swish"});
  bool biases = true;
  read.boolean("attention_bias", biases);
  if (!biases) at.child("attention_bias").fail("false cannot be imported", "allowed: true");
  m.qkv_bias = false;
  if (m.head_dim == 0) m.head_dim = 64;
  m.rotary = import_rotary(config, at, m.max_positions, places);
  double limit = 7;
  read.number("swiglu_limit", limit, 0, 1e6);
  if (limit != 7) at.child("swiglu_limit").fail(fmt::format("{} cannot be imported", limit), "allowed: 7");
  ExpertsLayer e{.experts = 128,
                 .top_k = 4,
                 .ffn_hidden = m.ffn_hidden,
                 .biases = true,
                 .activation = Activation::kClampedSwiglu};
  read.whole("num_local_experts", e.experts, 1, 1 << 16);
  read.whole(config.contains("experts_per_token") ? "experts_per_token" : "num_experts_per_tok", e.top_k, 1,
             64);
  places["experts"] = at.child("num_local_experts");
  places["top_k"] = at.child("num_experts_per_tok");
  e.balance_loss = router_loss(read, 0.9);
  std::int64_t window = 128;
  read.integer("sliding_window", {"sliding_window"}, window, false);
  ModelBlock all = standard_block(m);
  auto& attention = std::get<AttentionLayer>(all.layers.front().is);
  attention.bias = attention.sinks = true;
  all.layers.back() = {e};
  ModelBlock near = all;
  std::get<AttentionLayer>(near.layers.front().is).sliding_window = window;
  m.blocks =
      in_turn(windowed_layers(config, at, m.layers, [](std::int64_t i) { return i % 2 == 0; }), near, all);
  return m;
}

// Gemma 1, 2 and 3. A weight w of a norm multiplies by 1 + w there, and by w here.
Model import_gemma(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                   const std::string& type, ImportedFields& places) {
  Model m = llama_like(type, read);
  const bool second = type == "gemma2", third = type == "gemma3_text";
  m.activation = Activation::kGeglu;
  m.tied_embeddings = true;
  m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
  if (m.head_dim == 0) m.head_dim = 256;
  const char* activation = config.contains("hidden_activation") && !config["hidden_activation"].is_null()
                               ? "hidden_activation"
                               : "hidden_act";
  read.text("activation", activation, {"gelu_pytorch_tanh", "gelu", "gelu_new"});
  m.rotary = import_rotary(config, at, m.max_positions, places);
  if (!second && !third) return m;
  m.form = BlockForm::kSandwichNorm;
  m.qk_norm = third;
  if (second) {
    m.soft_cap = 50;
    m.logit_soft_cap = 30;
  }
  read.number("attn_logit_softcapping", m.soft_cap, 0, 1e6);
  read.number("final_logit_softcapping", m.logit_soft_cap, 0, 1e6);
  double scalar = 256;
  read.number("query_pre_attn_scalar", scalar, 1e-6, 1e12);
  if (scalar != static_cast<double>(m.head_dim)) m.query_scale = 1 / std::sqrt(scalar);
  std::int64_t window = 4096, pattern = third ? 6 : 2;
  read.integer("sliding_window", {"sliding_window"}, window, false);
  read.whole("sliding_window_pattern", pattern, 1, 1 << 20);
  // Tokens that are near turn by frequencies of their own.
  Rotary local = m.rotary;
  if (third) {
    if (const auto found = config.find("rope_parameters");
        found != config.end() && found->is_object() && found->contains("full_attention")) {
      at.child("rope_parameters")
          .fail("parameters by kind of attention cannot be imported",
                "allowed: rope_theta and rope_local_base_freq");
    }
    local = Rotary{};
    read.number("rope_local_base_freq", local.base, 1.0001, 1e15);
  }
  set_windows(m, window,
              windowed_layers(config, at, m.layers, [&](std::int64_t i) { return (i + 1) % pattern != 0; }),
              local);
  return m;
}

// GPT-NeoX and Pythia.
Model import_neox(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                  ImportedFields& places) {
  Model m{.name = "gpt_neox", .positions = Positions::kRotary, .tied_embeddings = false};
  read.integer("layers", {"num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"hidden_size"}, m.hidden, true);
  read.integer("heads", {"num_attention_heads"}, m.heads, true);
  read.integer("ffn_hidden", {"intermediate_size"}, m.ffn_hidden, true);
  read.integer("max_positions", {"max_position_embeddings"}, m.max_positions, false);
  read.number("layer_norm_eps", m.norm_epsilon, 1e-20, 1);
  read.text("activation", "hidden_act", {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"});
  m.rotary = import_rotary(config, at, m.max_positions, places);
  if (!config.contains("rope_parameters")) {
    m.rotary.fraction = 0.25;
    places["rotary/fraction"] = at.child("rotary_pct");
    read.number("rotary_pct", m.rotary.fraction, 0.001, 1);
    read.number("rotary_emb_base", m.rotary.base, 1.0001, 1e15);
  }
  bool parallel = true, biases = true;
  read.boolean("use_parallel_residual", parallel);
  read.boolean("attention_bias", biases);
  if (!biases)
    at.child("attention_bias").fail("false cannot be imported", "allowed: true, with biases on all products");
  if (parallel) m.form = BlockForm::kParallel;
  return m;
}

Model import_falcon(const HuggingFaceReader& read, const Json& config, const Cursor& at,
                    ImportedFields& places) {
  Model m{.name = "falcon", .positions = Positions::kRotary, .bias = false, .norm_bias = true};
  read.integer("layers", {"num_hidden_layers", "n_layer"}, m.layers, true);
  read.integer("hidden", {"hidden_size"}, m.hidden, true);
  read.integer("heads", {"num_attention_heads", "n_head"}, m.heads, true);
  read.integer("ffn_hidden", {"ffn_hidden_size"}, m.ffn_hidden, false);
  read.integer("max_positions", {"max_position_embeddings"}, m.max_positions, false);
  read.number("layer_norm_epsilon", m.norm_epsilon, 1e-20, 1);
  read.text("activation", "activation", {"gelu"});
  bool alibi = false, parallel = true, grouped = false, one_kv_head = true;
  read.boolean("alibi", alibi);
  read.boolean("bias", m.bias);
  read.boolean("parallel_attn", parallel);
  read.boolean("new_decoder_architecture", grouped);
  read.boolean("multi_query", one_kv_head);
  if (grouped)
    read.integer("kv_heads", {"num_kv_heads"}, m.kv_heads, false);
  else
    m.kv_heads = one_kv_head ? 1 : 0;
  if (alibi)
    at.child("alibi").fail("true cannot be imported, as ALiBi positions are neither run nor exported",
                           "allowed: false");
  m.rotary = import_rotary(config, at, m.max_positions, places);
  std::int64_t norms = grouped ? 2 : 1;
  read.whole("num_ln_in_parallel_attn", norms, 1, 2);
  if (parallel || grouped) m.form = norms == 2 ? BlockForm::kParallel : BlockForm::kParallelOneNorm;
  return m;
}

// ViT, and I-JEPA's, which has no class token and takes the mean of the patches.
Model import_image(const std::string& type, const HuggingFaceReader& read, const Json& config,
                   const Cursor& at) {
  Model m{.norm_epsilon = 1e-12, .causal = false, .tied_embeddings = false};
  read.integer("layers", {"num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"hidden_size"}, m.hidden, true);
  read.integer("heads", {"num_attention_heads"}, m.heads, true);
  read.integer("ffn_hidden", {"intermediate_size"}, m.ffn_hidden, true);
  read.number("layer_norm_eps", m.norm_epsilon, 1e-20, 1);
  read.text("activation", "hidden_act", {"gelu", "gelu_new", "gelu_pytorch_tanh"});
  bool biases = true;
  read.boolean("qkv_bias", biases);
  if (!biases)
    at.child("qkv_bias")
        .fail("false cannot be imported: biases of other products would stay", "allowed: true");
  PatchInput image{.class_token = type == "vit"};
  read.whole("image_size", image.image, 1, 1 << 13);
  read.whole("patch_size", image.patch, 1, 1 << 10);
  read.whole("num_channels", image.channels, 1, 64);
  ClassOutput output{.classes = 2, .pool = type == "vit" ? Pool::kClassToken : Pool::kMean};
  read.whole("num_labels", output.classes, 2, 1 << 24);
  if (const auto labels = config.find("id2label"); labels != config.end() && labels->is_object())
    output.classes = std::max<std::int64_t>(2, std::ssize(*labels));
  m.max_positions = image.tokens();
  m.inputs = {{image}};
  m.output = {output};
  return m;
}

}  // namespace

Model import_hugging_face(const Json& config, const Cursor& at) {
  if (!config.is_object()) at.fail(shown(config) + " is not an object");
  if (config.contains("text_config")) {
    return import_hugging_face(config["text_config"], at.child("text_config"));
  }
  static const std::vector<std::string> kKnown = {
      "deepseek_v2", "deepseek_v3", "dots1",    "exaone4",  "falcon",   "gemma",      "gemma2",
      "gemma3_text", "glm4_moe",    "gpt2",     "gpt_neox", "gpt_oss",  "ijepa",      "kimi_k2",
      "llama",       "mistral",     "mixtral",  "nemotron", "phi3",     "qwen2",      "qwen2_moe",
      "qwen3",       "qwen3_moe",   "seed_oss", "smollm3",  "stablelm", "starcoder2", "vit"};
  std::string type;
  const auto found = config.find("model_type");
  if (found == config.end()) at.fail("the field \"model_type\" is missing", allowed_names("", kKnown));
  read_value(*found, at.child("model_type"), Field{"model_type", ""}, type);
  if (type == "bloom" || type == "mpt") {
    at.child("model_type")
        .fail(
            fmt::format("\"{}\" has ALiBi positions, which are predicted for its presets but neither run nor "
                        "exported",
                        type),
            allowed_names("", kKnown));
  }
  if (std::find(kKnown.begin(), kKnown.end(), type) == kKnown.end()) {
    at.child("model_type")
        .fail(shown(*found) +
                  " cannot be imported; the model can be described by fields of ours (layers, hidden, heads "
                  "..)",
              allowed_names(type, kKnown));
  }
  ImportedFields places;
  places["positions"] = at.child("model_type");
  const HuggingFaceReader read(config, at, places);
  Model m = type == "gpt2"              ? import_gpt2(read)
            : type == "gpt_neox"        ? import_neox(read, config, at, places)
            : type == "falcon"          ? import_falcon(read, config, at, places)
            : type.starts_with("gemma") ? import_gemma(read, config, at, type, places)
            : type == "gpt_oss"         ? import_gpt_oss(read, config, at, places)
            : type == "smollm3"         ? import_smollm(read, config, at, places)
            : type == "exaone4"         ? import_exaone(read, config, at, places)
            : type == "starcoder2" || type == "stablelm" || type == "nemotron"
                ? import_layer_norm(type, read, config, at, places)
            : type == "glm4_moe" || type == "dots1" ? import_glm(read, config, at, type, places)
            : type.starts_with("deepseek") || type == "kimi_k2"
                ? import_deepseek(read, config, at, type, places)
            : type == "mixtral" || type.ends_with("_moe") ? import_sparse(read, config, at, type, places)
            : type == "vit" || type == "ijepa"            ? import_image(type, read, config, at)
                                                          : import_llama(read, config, at, type, places);
  m.name = type;
  if (m.has_tokens()) {
    read.integer("vocab", {"vocab_size"}, m.vocab, true);
    read.boolean("tie_word_embeddings", m.tied_embeddings);
  }
  if (!m.blocks.empty()) places["blocks"] = at;  // their fields are those of the config
  m.imported = std::move(places);
  check_model(m, at);
  return m;
}

}  // namespace orrery
