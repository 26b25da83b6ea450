// SPDX-License-Identifier: Apache-2.0
//
// A decoder-only transformer: the dimensions from which program/ derives its op list.
//
// Symbols used throughout: h hidden, a heads, k KV heads, d_h head size, f feed-forward width, L layers,
// V vocabulary, s sequence, b micro-batch, t tensor-parallel degree.
//
//   Model gpt3 = preset_model("gpt3-175b");
//   count_parameters(gpt3);                     // 174.6e9
//   model_flops_per_sequence(gpt3, 2048, AttentionFlops::kFull);
//
// In a file a model is a preset's name, {"preset": NAME, ...overrides}, {"config": "config.json"} in
// Hugging Face's format, or its explicit fields.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fields.h"
#include "core/rotary.h"

namespace orrery {

enum class Norm { kLayerNorm, kRmsNorm };
enum class Positions { kLearned, kRotary, kAlibi, kNone };
enum class Activation { kGelu, kSwiglu, kSquaredRelu };

constexpr auto enum_names(Norm) {
  return std::array{std::pair{Norm::kLayerNorm, "layernorm"}, std::pair{Norm::kRmsNorm, "rmsnorm"}};
}
constexpr auto enum_names(Positions) {
  return std::array{std::pair{Positions::kLearned, "learned"}, std::pair{Positions::kRotary, "rotary"},
                    std::pair{Positions::kAlibi, "alibi"}, std::pair{Positions::kNone, "none"}};
}
constexpr auto enum_names(Activation) {
  return std::array{std::pair{Activation::kGelu, "gelu"}, std::pair{Activation::kSwiglu, "swiglu"},
                    std::pair{Activation::kSquaredRelu, "squared-relu"}};
}

struct Model {
  std::string name = "custom";
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;    // 0: as many as heads
  std::int64_t head_dim = 0;    // 0: hidden / heads
  std::int64_t ffn_hidden = 0;  // 0: 4 * hidden
  std::int64_t vocab = 0;
  std::int64_t max_positions = 2048;
  Norm norm = Norm::kLayerNorm;
  double norm_epsilon = 1e-5;
  Positions positions = Positions::kLearned;
  Rotary rotary;                    // of rotary positions
  std::int64_t sliding_window = 0;  // positions that a token attends to, its own among them; 0: all before it
  Activation activation = Activation::kGelu;
  bool bias = true;       // on every linear layer and norm
  bool qkv_bias = false;  // on the QKV projection alone (Qwen2)
  bool qk_norm = false;   // RMSNorm per head on Q and K (Qwen3)
  bool tied_embeddings = true;
  ImportedFields imported;

  std::int64_t kv() const { return kv_heads > 0 ? kv_heads : heads; }
  std::int64_t head() const { return head_dim > 0 ? head_dim : (heads > 0 ? hidden / heads : 0); }
  std::int64_t ffn() const { return ffn_hidden > 0 ? ffn_hidden : 4 * hidden; }
  bool gated() const { return activation == Activation::kSwiglu; }
  // Whether tokens of such a sequence miss some of those before them.
  bool windowed(std::int64_t sequence) const { return sliding_window > 0 && sliding_window < sequence; }
  // Width of the fused QKV projection and of the first MLP matrix.
  std::int64_t qkv_width() const { return (heads + 2 * kv()) * head(); }
  std::int64_t fc1_width() const { return (gated() ? 2 : 1) * ffn(); }
  // Where a field stands of a model that was read at `at`.
  Cursor place(const Cursor& at, std::string_view field) const;
  friend bool operator==(const Model&, const Model&) = default;
};

template <class V>
void describe(V& v, Model& m) {
  v(Field{.name = "name", .help = "label used in reports"}, m.name);
  v(Field{.name = "layers", .help = "transformer blocks", .min = 1, .max = limits::kMostLayers}, m.layers);
  v(Field{.name = "hidden", .help = "model width h", .min = 1, .max = 1 << 20}, m.hidden);
  v(Field{.name = "heads", .help = "attention heads", .min = 1, .max = 65536}, m.heads);
  v(Field{.name = "kv_heads", .help = "key/value heads; 0 means as many as heads", .min = 0, .max = 65536},
    m.kv_heads);
  v(Field{.name = "head_dim", .help = "width of one head; 0 means hidden/heads", .min = 0, .max = 65536},
    m.head_dim);
  v(Field{.name = "ffn_hidden", .help = "feed-forward width; 0 means 4*hidden", .min = 0, .max = 1 << 24},
    m.ffn_hidden);
  v(Field{.name = "vocab", .help = "vocabulary size", .min = 1, .max = 1 << 24}, m.vocab);
  v(Field{.name = "max_positions",
          .help = "learned positions, or the longest context",
          .min = 1,
          .max = 1 << 30},
    m.max_positions);
  v(Field{.name = "norm", .help = "normalisation layer"}, m.norm);
  v(Field{.name = "norm_epsilon", .help = "added to the variance", .min = 1e-20, .max = 1}, m.norm_epsilon);
  v(Field{.name = "positions", .help = "position encoding"}, m.positions);
  v(Field{.name = "rotary", .help = "base and scaling of rotary positions"}, m.rotary);
  v(Field{.name = "sliding_window",
          .help = "positions that a token attends to, its own among them; 0 means all before it",
          .min = 0,
          .max = 1 << 30},
    m.sliding_window);
  v(Field{.name = "activation", .help = "MLP activation; swiglu has a gate matrix"}, m.activation);
  v(Field{.name = "bias", .help = "biases on linear layers and norms"}, m.bias);
  v(Field{.name = "qkv_bias", .help = "bias on the QKV projection only"}, m.qkv_bias);
  v(Field{.name = "qk_norm", .help = "RMSNorm per head on queries and keys"}, m.qk_norm);
  v(Field{.name = "tied_embeddings", .help = "the head shares the embedding's weight"}, m.tied_embeddings);
}
bool read_custom(const Json& json, const Cursor& at, Model& out);
// What an object may start from instead of naming every field.
constexpr auto base_fields(const Model&) {
  return std::array{"preset", "config"};
}

// Throws InputError at `at` when the dimensions do not fit each other.
void check_model(const Model& m, const Cursor& at);

// Known by name; throws InputError with the nearest name.
std::vector<std::string> preset_model_names();
Model preset_model(std::string_view name, const Cursor& at = {});

// Hugging Face config.json of transformers 4 and 5 (gpt2, llama, mistral, qwen2, qwen3).
Model import_hugging_face(const Json& config, const Cursor& at);

// All parameters, embeddings counted once when tied.
std::int64_t count_parameters(const Model& m);
std::int64_t parameters_per_layer(const Model& m);

// Whether the attention core counts s^2 positions (the usual convention in papers) or half of them.
enum class AttentionFlops { kFull, kCausal };
constexpr auto enum_names(AttentionFlops) {
  return std::array{std::pair{AttentionFlops::kFull, "full"}, std::pair{AttentionFlops::kCausal, "causal"}};
}

// Model FLOPs of one sequence, forward and backward, no recomputation:
// 3 * 2 * s * (L * matrix parameters per layer + h V) + 3 * L * 4 s^2 a d_h (halved when causal).
// For a GPT with f = 4h this is 72 s L h^2 (1 + s/(6h) + V/(12 h L)) (Narayanan et al. 2021, eq. 3 less
// recomputation; Korthikanti et al. 2022, eq. 7).
Flop model_flops_per_sequence(const Model& m, std::int64_t seq, AttentionFlops convention);

}  // namespace orrery
