// SPDX-License-Identifier: Apache-2.0
//
// Attention to another tower of the model (Vaswani et al. 2017, section 3.2.3), all tokens of which a token
// sees. Its shapes, h being the model's width:
//
//   q = x Wq' + b       [tokens, heads head_dim]           Wq [that, h]
//   kv = y Wkv' + b     [tokens of y, 2 kv_heads head_dim] Wkv [that, h]
//   o = ctx Wout' + b   [tokens, h]                        Wout [h, heads head_dim]
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/layers/attention.h"

namespace orrery {

struct CrossAttentionLayer {
  static constexpr const char *kName = "cross-attention", *kTensors = "cross";
  static constexpr bool kBeginsInProducts = false;
  std::string reads;  // the tower with keys and values
  // As of AttentionLayer.
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double query_scale = 0;
  bool bias = true;  // on all products

  void resolve(std::int64_t hidden);
  void check(std::int64_t hidden, const FieldPlace& place) const;

  // --- of a resolved layer -------------------------------------------------------------------------
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return 2 * kv_heads * head_dim; }
  std::array<SharedCount, 2> shared() const {
    return {{{heads, "attention heads"}, {kv_heads, "key/value heads"}}};
  }
  std::array<SharedCount, 2> columns() const {
    return {{{query_width(), "columns of a rank's attention"},
             {kv_width(), "columns of a rank's keys and values"}}};
  }
  std::int64_t matrix_elements(std::int64_t hidden) const { return 2 * hidden * query_width(); }
  std::int64_t read_elements(std::int64_t hidden) const { return hidden * kv_width(); }
  std::int64_t parameters(std::int64_t hidden) const;
  std::vector<AdapterMatrix> adapter_matrices(std::int64_t hidden) const {
    using enum AdapterTarget;
    return {{kQuery, query_width(), hidden},
            {kKey, kv_width() / 2, hidden, true},
            {kValue, kv_width() / 2, hidden, true},
            {kOutput, hidden, query_width()}};
  }
  double core_flops(const LayerTokens& t) const {
    return 4.0 * static_cast<double>(t.own) * static_cast<double>(t.read) *
           static_cast<double>(query_width());
  }
  std::int64_t score_rows() const { return heads; }
  RecomputeParts parts() const { return RecomputePart::kCoreAttention; }
  double flops_of(RecomputeParts parts, const LayerTokens& t, std::int64_t) const {
    return parts.has(RecomputePart::kCoreAttention) ? core_flops(t) : 0;
  }
  friend bool operator==(const CrossAttentionLayer&, const CrossAttentionLayer&) = default;
};

template <class V>
void describe(V& v, CrossAttentionLayer& a) {
  v(Field{.name = "reads", .help = "the tower with keys and values", .required = true}, a.reads);
  v(declared<AttentionLayer>("heads"), a.heads);
  v(declared<AttentionLayer>("kv_heads"), a.kv_heads);
  v(declared<AttentionLayer>("head_dim"), a.head_dim);
  v(declared<AttentionLayer>("query_scale"), a.query_scale);
  v(declared<AttentionLayer>("bias"), a.bias);
}

}  // namespace orrery
