// SPDX-License-Identifier: Apache-2.0
#include "core/layers/attention.h"

namespace orrery {

void AttentionLayer::resolve(std::int64_t hidden) {
  if (kv_heads == 0) kv_heads = heads;
  if (head_dim == 0) head_dim = hidden / heads;
}

void AttentionLayer::check(std::int64_t hidden, const FieldPlace& place) const {
  check_heads(*this, hidden, place);
  AttentionLayer own = *this;
  own.resolve(hidden);
  if (sliding_window > 0 && !causal)
    place("sliding_window")
        .fail("a window is of the tokens before, and attention that is not causal has none",
              "allowed: 0, or causal true");
  if (chunk > 0 && (sliding_window > 0 || !causal))
    place("chunk").fail("chunks are of attention to all tokens before",
                        "allowed: 0, or causal true without sliding_window");
  if (query_growth.rate > 0 && positions != Positions::kNone)
    place("query_growth").fail("queries grow where there are no positions", "allowed: positions none");
  if (query_growth.rate > 0 && own.head_dim % 2 != 0)
    place("head_dim").fail(fmt::format("{} is odd", own.head_dim), "allowed: even, for queries that grow");
  if (positions != Positions::kRotary) {
    if (rotary == Rotary{}) return;
    place("rotary").fail(fmt::format("with \"{}\" positions nothing turns", name_of(positions)),
                         "allowed: no such field, or positions \"rotary\"");
  }
  if (own.head_dim % 2 != 0)
    place("head_dim").fail(fmt::format("{} is odd", own.head_dim), "allowed: even, for rotary positions");
  check_rotary(rotary, own.head_dim, place);
}

namespace {

std::int64_t norm_width(QkNorm norm, std::int64_t head, std::int64_t all_heads) {
  switch (norm) {
    case QkNorm::kNone:
    case QkNorm::kUnweighted:
      return 0;
    case QkNorm::kPerHead:
      return head;
    case QkNorm::kAllHeads:
      return all_heads;
  }
  return 0;
}

}  // namespace

std::int64_t AttentionLayer::query_norm_width() const {
  return norm_width(qk_norm, head_dim, query_width());
}
std::int64_t AttentionLayer::key_norm_width() const {
  return norm_width(qk_norm, head_dim, key_width());
}

std::int64_t AttentionLayer::parameters(std::int64_t hidden) const {
  std::int64_t total = matrix_elements(hidden);
  if (bias || qkv_bias) total += qkv_width();
  if (bias) total += hidden;
  total += query_norm_width() + key_norm_width();
  if (sinks) total += heads;
  return total;
}

}  // namespace orrery
