// SPDX-License-Identifier: Apache-2.0
//
// Multi-head latent attention (DeepSeek-V2, section 2.1), as a layer of a block: queries, keys and values are
// made of latents, which are narrow; the part of a key that positions turn is the same for all heads. Not
// absorbed: as in training, keys and values of all heads stand in memory. Its shapes, h being the model's
// width and a the heads:
//
//   cq = norm(x Wdq')     [tokens, q_rank]                    Wdq [that, h]; or cq = x where q_rank is 0
//   q = cq Wuq'           [tokens, a (turned + plain)]        Wuq [that, q_rank]
//   c = norm(x Wdkv')     [tokens, kv_rank]                   Wdkv [that, h]
//   r = x Wkr'            [tokens, turned]                    Wkr [that, h]
//   kv = c Wukv'          [tokens, a (plain + value)]         Wukv [that, kv_rank]
//   o = ctx Wout'         [tokens, h]                         Wout [h, a value]
#pragma once

#include <array>
#include <cstdint>

#include "core/layers/attention.h"

namespace orrery {

struct LatentAttentionLayer {
  static constexpr const char *kName = "latent-attention", *kTensors = "latent";
  static constexpr bool kBeginsInProducts = false;
  static constexpr bool bias = false;
  std::int64_t heads = 0;
  std::int64_t q_rank = 0, kv_rank = 0;  // widths of latents; q_rank 0: queries have none
  std::int64_t turned = 0, plain = 0;    // of a query's or key's head, by positions and not
  std::int64_t value = 0;                // of a value's head
  Rotary rotary;
  double query_scale = 0;  // of scores; 0: 1 / sqrt(turned + plain)

  void resolve(std::int64_t) {}
  void check(std::int64_t hidden, const FieldPlace& place) const;

  // --- of a resolved layer -------------------------------------------------------------------------
  std::int64_t head() const { return turned + plain; }
  std::int64_t query_width() const { return heads * head(); }
  std::int64_t key_width() const { return heads * (plain + value); }
  std::int64_t context_width() const { return heads * value; }
  std::array<SharedCount, 2> shared() const {
    return {{{heads, "attention heads"}, {heads, "attention heads", Degree::kHeads}}};
  }
  std::array<SharedCount, 3> columns() const {
    return {{{query_width(), "columns of a rank's queries"},
             {key_width(), "columns of a rank's keys and values"},
             {context_width(), "columns of a rank's attention"}}};
  }
  std::int64_t matrix_elements(std::int64_t hidden) const;
  std::int64_t parameters(std::int64_t hidden) const { return matrix_elements(hidden) + q_rank + kv_rank; }
  std::vector<AdapterMatrix> adapter_matrices(std::int64_t hidden) const;
  double core_flops(const LayerTokens& t) const {
    return 2.0 * t.within * static_cast<double>(t.own) * static_cast<double>(t.own) *
           static_cast<double>(query_width() + context_width());
  }
  std::int64_t score_rows() const { return heads; }
  // From latents, or of queries without one from x, to all heads.
  std::int64_t up_elements(std::int64_t hidden) const {
    return (q_rank == 0 ? hidden : q_rank) * query_width() + kv_rank * key_width();
  }
  RecomputeParts parts() const {
    return RecomputeParts(RecomputePart::kCoreAttention) | RecomputePart::kLatentProjection;
  }
  double flops_of(RecomputeParts parts, const LayerTokens& t, std::int64_t hidden) const {
    return (parts.has(RecomputePart::kCoreAttention) ? core_flops(t) : 0) +
           (parts.has(RecomputePart::kLatentProjection) ? product_flops(t.own, up_elements(hidden)) : 0);
  }
  friend bool operator==(const LatentAttentionLayer&, const LatentAttentionLayer&) = default;
};

template <class V>
void describe(V& v, LatentAttentionLayer& a) {
  const auto width = [](const char* name, const char* help, bool required = true) {
    return Field{
        .name = name, .help = help, .min = required ? 1.0 : 0.0, .max = 1 << 20, .required = required};
  };
  v(declared<AttentionLayer>("heads"), a.heads);
  v(width("q_rank", "width of the queries' latent; 0 means none", false), a.q_rank);
  v(width("kv_rank", "width of the latent of keys and values"), a.kv_rank);
  v(width("turned", "elements of a query's head that positions turn, even"), a.turned);
  v(width("plain", "elements of a query's head that they do not turn"), a.plain);
  v(width("value", "width of a value's head"), a.value);
  v(declared<AttentionLayer>("rotary"), a.rotary);
  v(declared<AttentionLayer>("query_scale"), a.query_scale);
}

}  // namespace orrery
