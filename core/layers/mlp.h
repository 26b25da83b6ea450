// SPDX-License-Identifier: Apache-2.0
//
// Two products with an activation between them, as a layer of a block. Its shapes, h being the model's width
// and f its own:
//
//   u = x W1' + b     [tokens, f], gated [tokens, 2 f]     W1 [that, h]
//   o = act(u) W2' + b     [tokens, h]                     W2 [h, f]
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/fields.h"
#include "core/layers/common.h"

namespace orrery {

// The clamped one is GPT-OSS's, of g = min(gate, 7) and u = min(max(up, -7), 7):
//   g sigmoid(1.702 g) (u + 1)
enum class Activation { kGelu, kSwiglu, kSquaredRelu, kGeglu, kClampedSwiglu };
constexpr auto enum_names(Activation) {
  return std::array{std::pair{Activation::kGelu, "gelu"}, std::pair{Activation::kSwiglu, "swiglu"},
                    std::pair{Activation::kSquaredRelu, "squared-relu"},
                    std::pair{Activation::kGeglu, "geglu"},
                    std::pair{Activation::kClampedSwiglu, "clamped-swiglu"}};
}
constexpr bool is_gated(Activation a) {
  return a == Activation::kSwiglu || a == Activation::kGeglu || a == Activation::kClampedSwiglu;
}

struct MlpLayer {
  static constexpr const char *kName = "mlp", *kTensors = "mlp";
  static constexpr bool kBeginsInProducts = true;
  std::int64_t ffn_hidden = 0;  // 0: 4 * hidden
  Activation activation = Activation::kGelu;
  bool bias = true;  // on both products

  bool gated() const { return is_gated(activation); }
  // As of AttentionLayer.
  void resolve(std::int64_t hidden);
  void check(std::int64_t, const FieldPlace&) const {}

  // --- of a resolved layer -------------------------------------------------------------------------
  std::int64_t fc1_width() const { return (gated() ? 2 : 1) * ffn_hidden; }
  std::array<SharedCount, 1> shared() const { return {{{ffn_hidden, "feed-forward columns"}}}; }
  std::array<SharedCount, 1> columns() const { return {{{ffn_hidden, "feed-forward columns of a rank"}}}; }
  std::int64_t matrix_elements(std::int64_t hidden) const { return hidden * (fc1_width() + ffn_hidden); }
  std::int64_t parameters(std::int64_t hidden) const;
  std::vector<AdapterMatrix> adapter_matrices(std::int64_t hidden) const;
  double core_flops(const LayerTokens&) const { return 0; }
  std::int64_t score_rows() const { return 0; }
  RecomputeParts parts() const { return RecomputePart::kMlp; }
  double flops_of(RecomputeParts parts, const LayerTokens& t, std::int64_t hidden) const {
    return parts.has(RecomputePart::kMlp) ? product_flops(t.own, matrix_elements(hidden)) : 0;
  }
  friend bool operator==(const MlpLayer&, const MlpLayer&) = default;
};

template <class V>
void describe(V& v, MlpLayer& l) {
  v(Field{.name = "ffn_hidden", .help = "feed-forward width; 0 means 4*hidden", .min = 0, .max = 1 << 24},
    l.ffn_hidden);
  v(Field{.name = "activation", .help = "MLP activation; those named glu have a gate matrix"}, l.activation);
  v(Field{.name = "bias", .help = "biases on linear layers and norms"}, l.bias);
}

}  // namespace orrery
