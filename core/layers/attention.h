// SPDX-License-Identifier: Apache-2.0
//
// Self-attention with grouped query heads, as a layer of a block. Its shapes, h being the model's width:
//
//   qkv = x Wqkv' + b     [tokens, (heads + 2 kv_heads) head_dim]     Wqkv [that, h]
//   o = ctx Wout' + b     [tokens, h]                                 Wout [h, heads head_dim]
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/fields.h"
#include "core/layers/common.h"
#include "core/rotary.h"

namespace orrery {

enum class Positions { kLearned, kRotary, kAlibi, kNone };
constexpr auto enum_names(Positions) {
  return std::array{std::pair{Positions::kLearned, "learned"}, std::pair{Positions::kRotary, "rotary"},
                    std::pair{Positions::kAlibi, "alibi"}, std::pair{Positions::kNone, "none"}};
}

// RMSNorm of queries and keys: of each head, with one weight for all query heads and one for all key heads
// (Qwen 3); of all query heads together, and of all key heads (OLMo 2); or of each head without weights
// (Llama 4).
enum class QkNorm { kNone, kPerHead, kAllHeads, kUnweighted };
constexpr auto enum_names(QkNorm) {
  return std::array{std::pair{QkNorm::kNone, "none"}, std::pair{QkNorm::kPerHead, "per-head"},
                    std::pair{QkNorm::kAllHeads, "all-heads"}, std::pair{QkNorm::kUnweighted, "unweighted"}};
}

struct AttentionLayer {
  static constexpr const char* kName = "attention";
  static constexpr bool kBeginsInProducts = true;
  static constexpr const char* kTensors = "attn";  // begins their names
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden / heads
  Positions positions = Positions::kLearned;
  Rotary rotary;                    // of rotary positions
  std::int64_t sliding_window = 0;  // positions that a token attends to, its own among them; 0: all before it
  // Sequences fall into chunks of so many tokens, which see none of other chunks (Llama 4); 0: they do not.
  std::int64_t chunk = 0;
  double soft_cap = 0;     // scores are c tanh(score / c); 0: as they are
  double query_scale = 0;  // of scores; 0: 1 / sqrt(head_dim)
  bool causal = true;      // a token sees none behind it
  bool bias = true;        // on both products
  bool qkv_bias = false;   // on the first one alone (Qwen2)
  QkNorm qk_norm = QkNorm::kNone;
  QueryGrowth query_growth;  // without rotary positions
  // Of each head a learned score that takes its share of the softmax and gives no value (GPT-OSS; attention
  // sinks, Xiao et al. 2023, arXiv:2309.17453).
  bool sinks = false;

  // Zeros take their meaning, in a model of that width.
  void resolve(std::int64_t hidden);
  // Throws InputError where fields do not fit each other. Before resolve().
  void check(std::int64_t hidden, const FieldPlace& place) const;

  // --- of a resolved layer -------------------------------------------------------------------------
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t key_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
  // Weights of norms of queries, and of keys behind them.
  std::int64_t query_norm_width() const;
  std::int64_t key_norm_width() const;
  // Whether tokens of such a sequence miss some of those before them.
  bool windowed(std::int64_t sequence) const { return sliding_window > 0 && sliding_window < sequence; }
  // Tokens that see each other in a sequence of so many.
  std::int64_t reach(std::int64_t sequence) const { return chunk > 0 ? std::min(chunk, sequence) : sequence; }
  // What tensor ranks share evenly.
  std::array<SharedCount, 5> shared() const {
    return {{{qk_norm == QkNorm::kAllHeads ? 1 : heads, "norm over all heads"},
             {heads, "attention heads"},
             {kv_heads, "key/value heads"},
             {heads, "attention heads", Degree::kHeads},
             {kv_heads, "key/value heads", Degree::kHeads}}};
  }
  // Columns of products that they share.
  std::array<SharedCount, 2> columns() const {
    return {{{query_width(), "columns of a rank's attention"},
             {qkv_width(), "columns of a rank's queries, keys and values"}}};
  }
  std::int64_t matrix_elements(std::int64_t hidden) const { return hidden * (qkv_width() + query_width()); }
  std::int64_t parameters(std::int64_t hidden) const;
  std::vector<AdapterMatrix> adapter_matrices(std::int64_t hidden) const {
    using enum AdapterTarget;
    return {{kQuery, query_width(), hidden},
            {kKey, key_width(), hidden},
            {kValue, key_width(), hidden},
            {kOutput, hidden, query_width()}};
  }
  // FLOPs of the forward pass of a sequence beside those of parameters, when every token sees all of its
  // document.
  double core_flops(const LayerTokens& t) const {
    return 4.0 * t.within * static_cast<double>(t.own) * static_cast<double>(reach(t.own)) *
           static_cast<double>(query_width());
  }
  std::int64_t score_rows() const { return heads; }  // of a token
  RecomputeParts parts() const { return RecomputePart::kCoreAttention; }
  double flops_of(RecomputeParts parts, const LayerTokens& t, std::int64_t) const {
    return parts.has(RecomputePart::kCoreAttention) ? core_flops(t) : 0;
  }
  friend bool operator==(const AttentionLayer&, const AttentionLayer&) = default;
};

template <class V>
void describe(V& v, AttentionLayer& a) {
  v(Field{.name = "heads", .help = "attention heads", .min = 1, .max = 65536}, a.heads);
  v(Field{.name = "kv_heads", .help = "key/value heads; 0 means as many as heads", .min = 0, .max = 65536},
    a.kv_heads);
  v(Field{.name = "head_dim", .help = "width of one head; 0 means hidden/heads", .min = 0, .max = 65536},
    a.head_dim);
  v(Field{.name = "positions", .help = "position encoding"}, a.positions);
  v(Field{.name = "rotary", .help = "base and scaling of rotary positions"}, a.rotary);
  v(Field{.name = "sliding_window",
          .help = "positions that a token attends to, its own among them; 0 means all before it",
          .min = 0,
          .max = 1 << 30},
    a.sliding_window);
  v(Field{.name = "chunk",
          .help = "tokens of the chunks that a sequence falls into, which see none of others; 0 means none",
          .min = 0,
          .max = 1 << 30},
    a.chunk);
  v(Field{.name = "soft_cap",
          .help = "bound c of attention scores, c tanh(score / c); 0 means none",
          .min = 0,
          .max = 1e6},
    a.soft_cap);
  v(Field{.name = "query_scale", .help = "factor of scores; 0 means 1/sqrt(head_dim)", .min = 0, .max = 1e6},
    a.query_scale);
  v(Field{.name = "causal", .help = "whether a token sees none behind it"}, a.causal);
  v(Field{.name = "bias", .help = "biases on linear layers and norms"}, a.bias);
  v(Field{.name = "qkv_bias", .help = "bias on the QKV projection only"}, a.qkv_bias);
  v(Field{.name = "qk_norm", .help = "RMSNorm on queries and keys"}, a.qk_norm);
  v(Field{.name = "query_growth", .help = "how queries grow with their positions"}, a.query_growth);
  v(Field{.name = "sinks", .help = "whether each head has a learned score beside those of the tokens"},
    a.sinks);
}

}  // namespace orrery
