// SPDX-License-Identifier: Apache-2.0
//
// Models of Hugging Face whose tokens all pass the same weights.
#include <algorithm>
#include <cmath>

#include "core/hugging_face/families.h"

namespace orrery {
namespace {

// Blocks with a window where `windowed` says so, and the model's own elsewhere. Nothing where all are alike,
// which the flat fields then say.
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

}  // namespace

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

Model import_llama(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  if (read.type == "seed_oss" && m.head_dim == 0) m.head_dim = 128;
  if (read.type == "phi3" && !read.config.contains("rms_norm_eps")) m.norm_epsilon = 1e-5;
  m.qkv_bias = read.type == "qwen2" || read.type == "seed_oss";
  if (read.type == "qwen3") m.qk_norm = QkNorm::kPerHead;
  read.boolean("attention_bias", m.qkv_bias);
  for (const char* const name : {"attention_out_bias", "mlp_bias"}) read.refuse_true(name);
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = read.rotary(m.max_positions);
  if (read.type == "llama" || read.type == "seed_oss") return m;
  if (read.type == "phi3") {
    read.whole("sliding_window", m.sliding_window, 1, 1 << 30);
    return m;
  }
  // As transformers does where a field is absent: Mistral has a window, Qwen has none unless it says so.
  bool used = read.type == "mistral";
  std::int64_t window = used ? 4096 : 0, first = used ? 0 : m.layers;
  if (const auto found = read.config.find("sliding_window"); found != read.config.end() && found->is_null())
    return m;
  read.boolean("use_sliding_window", used);
  if (!used) return m;
  read.integer("sliding_window", {"sliding_window"}, window, false);
  if (read.type.starts_with("qwen")) {
    read.whole("max_window_layers", first, 0, 1 << 30);
  }
  if (window > 0) {
    set_windows(m, window, read.windowed_layers(m.layers, [&](std::int64_t i) { return i >= first; }),
                m.rotary);
  }
  return m;
}

// SmolLM3: Llama's layers, some without positions.
Model import_smollm(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  m.tied_embeddings = true;
  read.text("activation", "hidden_act", {"silu", "swish"});
  // As transformers does where a field is absent.
  if (m.kv_heads == 0) m.kv_heads = 4;
  for (const char* const name : {"use_sliding_window", "attention_bias", "mlp_bias"}) read.refuse_true(name);
  m.rotary = read.rotary(m.max_positions);
  if (!read.config.contains("rope_theta") && !read.config.contains("rope_parameters")) m.rotary.base = 2e6;
  const std::vector<bool> without = read.layers_without_positions(m.layers);
  if (std::count(without.begin(), without.end(), true) > 0)
    m.blocks = in_turn(without, block_without_positions(m), standard_block(m));
  return m;
}

// EXAONE 4: norms behind the layers, and where some have windows the others have no positions.
Model import_exaone(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  m.form = BlockForm::kPostNorm;
  m.qk_norm = QkNorm::kPerHead;
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = read.rotary(m.max_positions);
  // As transformers does where a field is absent; null means that there are no windows.
  if (!read.config.contains("rms_norm_eps")) m.norm_epsilon = 1e-5;
  std::int64_t window = 4096;
  if (const auto found = read.config.find("sliding_window"); found != read.config.end() && found->is_null())
    return m;
  read.whole("sliding_window", window, 1, 1 << 30);
  std::int64_t every = 4;
  if (const auto found = read.config.find("sliding_window_pattern");
      found != read.config.end() && found->is_string())
    every = std::ssize(found->get_ref<const std::string&>());  // "LLLG": the last one sees everything
  else
    read.whole("sliding_window_pattern", every, 1, 1 << 20);
  const std::vector<bool> windowed = read.windowed_layers(
      m.layers, [&](std::int64_t i) { return (i + 1) % std::max<std::int64_t>(every, 1) != 0; });
  ModelBlock near = standard_block(m);
  std::get<AttentionLayer>(near.layers.front().is).sliding_window = window;
  m.blocks = in_turn(windowed, near, block_without_positions(m));
  return m;
}

// OLMo 2 and 3: norms behind the layers, and of all heads together. Of OLMo 3 three of four layers have
// windows, whose positions stay as they are where those of the others are scaled.
Model import_olmo(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  if (!read.says("rms_norm_eps")) m.norm_epsilon = 1e-5;  // as transformers does where a field is absent
  m.form = BlockForm::kPostNorm;
  m.qk_norm = QkNorm::kAllHeads;
  read.text("activation", "hidden_act", {"silu", "swish"});
  read.refuse_true("attention_bias");
  if (const auto given = read.config.find("rope_parameters");
      given != read.config.end() && given->is_object() && given->contains("full_attention"))
    read.at.child("rope_parameters")
        .fail("parameters by kind of attention cannot be imported", "allowed: rope_theta and rope_scaling");
  m.rotary = read.rotary(m.max_positions);
  if (read.type == "olmo2") return m;
  std::int64_t window = 4096;
  if (read.config.contains("sliding_window") && !read.says("sliding_window")) return m;
  read.whole("sliding_window", window, 1, 1 << 30);
  set_windows(m, window, read.windowed_layers(m.layers, [](std::int64_t i) { return (i + 1) % 4 != 0; }),
              Rotary{.base = m.rotary.base, .fraction = m.rotary.fraction});
  return m;
}

// Granite: Llama's layers, with factors on embedding, scores, what layers add, and logits.
void read_granite_factors(const HuggingFaceReader& read, Model& m) {
  double logits = 1;
  m.query_scale = 1;  // as transformers does where a field is absent
  read.number("embedding_multiplier", m.embedding_scale, 1e-6, 1e6);
  read.number("attention_multiplier", m.query_scale, 1e-6, 1e6);
  read.number("residual_multiplier", m.residual_scale, 1e-6, 1e6);
  read.number("logits_scaling", logits, 1e-6, 1e6);
  m.logit_scale = 1 / logits;
}
Model import_granite(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  read.text("activation", "hidden_act", {"silu", "swish"});
  for (const char* const name : {"attention_bias", "mlp_bias"}) read.refuse_true(name);
  m.rotary = read.rotary(m.max_positions);
  read_granite_factors(read, m);
  return m;
}

// Command R and R7B: LayerNorm without biases before layers that stand beside each other, and a factor on
// logits. Of R7B three of four layers have windows, and the others have no positions. Positions turn elements
// 2 j and 2 j + 1 together, which is ours with the rows of two weights in another order.
Model import_cohere(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  m.norm = Norm::kLayerNorm;
  m.norm_epsilon = 1e-5;
  m.form = BlockForm::kParallelOneNorm;
  m.tied_embeddings = true;
  m.logit_scale = 0.0625;
  read.number("layer_norm_eps", m.norm_epsilon, 1e-20, 1);
  read.number("logit_scale", m.logit_scale, 1e-6, 1e6);
  read.text("activation", "hidden_act", {"silu", "swish"});
  for (const char* const name : {"attention_bias", "use_qk_norm"}) read.refuse_true(name);
  m.rotary = read.rotary(m.max_positions);
  if (read.type == "cohere") return m;
  std::int64_t window = 4096, every = 4;
  if (read.config.contains("sliding_window") && !read.says("sliding_window"))
    read.at.child("sliding_window")
        .fail("null cannot be imported: then no layer has positions", "allowed: a number of tokens");
  read.whole("sliding_window", window, 1, 1 << 30);
  read.whole("sliding_window_pattern", every, 1, 1 << 20);
  ModelBlock near = standard_block(m);
  std::get<AttentionLayer>(near.layers.front().is).sliding_window = window;
  m.blocks = in_turn(read.windowed_layers(m.layers, [&](std::int64_t i) { return (i + 1) % every != 0; }),
                     near, block_without_positions(m));
  return m;
}

// GLM-4 of 9 and 32 billion parameters: norms before and behind the layers, of half a head turned as
// Cohere's.
Model import_glm_dense(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  // As transformers does where a field is absent.
  if (!read.says("rms_norm_eps")) m.norm_epsilon = 1.5625e-7;
  if (m.kv_heads == 0) m.kv_heads = 2;
  if (m.head_dim == 0) m.head_dim = 128;
  m.form = BlockForm::kSandwichNorm;
  m.qkv_bias = true;
  read.boolean("attention_bias", m.qkv_bias);
  read.text("activation", "hidden_act", {"silu", "swish"});
  m.rotary = read.rotary(m.max_positions);
  const auto parameters = read.config.find("rope_parameters");
  const bool given =
      read.says("partial_rotary_factor") || (parameters != read.config.end() && parameters->is_object() &&
                                             parameters->contains("partial_rotary_factor"));
  if (!given) m.rotary.fraction = 0.5;
  return m;
}

// StarCoder 2, StableLM and Nemotron: LayerNorm with biases around layers of other kinds.
Model import_layer_norm(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  m.norm = Norm::kLayerNorm;
  m.norm_bias = true;
  m.norm_epsilon = 1e-5;
  const bool starcoder = read.type == "starcoder2", stable = read.type == "stablelm";
  read.number(starcoder ? "norm_epsilon" : stable ? "layer_norm_eps" : "norm_eps", m.norm_epsilon, 1e-20, 1);
  m.rotary = read.rotary(m.max_positions);
  const auto fraction = [&](double otherwise) {
    if (read.config.contains("partial_rotary_factor") || read.config.contains("rope_parameters")) return;
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
    read.refuse_true("qk_layernorm");
    bool parallel = false;
    read.boolean("use_parallel_residual", parallel);
    if (parallel) m.form = BlockForm::kParallelOneNorm;
  } else {
    fraction(0.5);
    m.activation = Activation::kSquaredRelu;
    read.text("activation", "hidden_act", {"relu2"});
    read.refuse_true("attention_bias");
    read.refuse_true("mlp_bias");
  }
  return m;
}

// Gemma 1, 2 and 3. A weight w of a norm multiplies by 1 + w there, and by w here.
Model import_gemma(const HuggingFaceReader& read) {
  Model m = llama_like(read);
  const bool second = read.type == "gemma2", third = read.type == "gemma3_text";
  m.activation = Activation::kGeglu;
  m.tied_embeddings = true;
  m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
  if (m.head_dim == 0) m.head_dim = 256;
  const char* activation =
      read.config.contains("hidden_activation") && !read.config["hidden_activation"].is_null()
          ? "hidden_activation"
          : "hidden_act";
  read.text("activation", activation, {"gelu_pytorch_tanh", "gelu", "gelu_new"});
  m.rotary = read.rotary(m.max_positions);
  if (!second && !third) return m;
  m.form = BlockForm::kSandwichNorm;
  if (third) m.qk_norm = QkNorm::kPerHead;
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
    if (const auto found = read.config.find("rope_parameters");
        found != read.config.end() && found->is_object() && found->contains("full_attention")) {
      read.at.child("rope_parameters")
          .fail("parameters by kind of attention cannot be imported",
                "allowed: rope_theta and rope_local_base_freq");
    }
    local = Rotary{};
    read.number("rope_local_base_freq", local.base, 1.0001, 1e15);
  }
  set_windows(m, window,
              read.windowed_layers(m.layers, [&](std::int64_t i) { return (i + 1) % pattern != 0; }), local);
  return m;
}

// GPT-NeoX and Pythia.
Model import_neox(const HuggingFaceReader& read) {
  Model m{.name = "gpt_neox", .positions = Positions::kRotary, .tied_embeddings = false};
  read.integer("layers", {"num_hidden_layers"}, m.layers, true);
  read.integer("hidden", {"hidden_size"}, m.hidden, true);
  read.integer("heads", {"num_attention_heads"}, m.heads, true);
  read.integer("ffn_hidden", {"intermediate_size"}, m.ffn_hidden, true);
  read.integer("max_positions", {"max_position_embeddings"}, m.max_positions, false);
  read.number("layer_norm_eps", m.norm_epsilon, 1e-20, 1);
  read.text("activation", "hidden_act", {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"});
  m.rotary = read.rotary(m.max_positions);
  if (!read.config.contains("rope_parameters")) {
    m.rotary.fraction = 0.25;
    read.places["rotary/fraction"] = read.at.child("rotary_pct");
    read.number("rotary_pct", m.rotary.fraction, 0.001, 1);
    read.number("rotary_emb_base", m.rotary.base, 1.0001, 1e15);
  }
  bool parallel = true, biases = true;
  read.boolean("use_parallel_residual", parallel);
  read.boolean("attention_bias", biases);
  if (!biases)
    read.at.child("attention_bias")
        .fail("false cannot be imported", "allowed: true, with biases on all products");
  if (parallel) m.form = BlockForm::kParallel;
  return m;
}

Model import_falcon(const HuggingFaceReader& read) {
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
    read.at.child("alibi").fail("true cannot be imported, as ALiBi positions are neither run nor exported",
                                "allowed: false");
  m.rotary = read.rotary(m.max_positions);
  std::int64_t norms = grouped ? 2 : 1;
  read.whole("num_ln_in_parallel_attn", norms, 1, 2);
  if (parallel || grouped) m.form = norms == 2 ? BlockForm::kParallel : BlockForm::kParallelOneNorm;
  return m;
}

// ViT, and I-JEPA's, which has no class token and takes the mean of the patches.
Model import_image(const HuggingFaceReader& read) {
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
    read.at.child("qkv_bias")
        .fail("false cannot be imported: biases of other products would stay", "allowed: true");
  PatchInput image{.class_token = read.type == "vit"};
  read.whole("image_size", image.image, 1, 1 << 13);
  read.whole("patch_size", image.patch, 1, 1 << 10);
  read.whole("num_channels", image.channels, 1, 64);
  ClassOutput output{.classes = 2, .pool = read.type == "vit" ? Pool::kClassToken : Pool::kMean};
  read.whole("num_labels", output.classes, 2, 1 << 24);
  if (const auto labels = read.config.find("id2label"); labels != read.config.end() && labels->is_object())
    output.classes = std::max<std::int64_t>(2, std::ssize(*labels));
  m.max_positions = image.tokens();
  m.inputs = {{image}};
  m.output = {output};
  return m;
}

}  // namespace orrery
