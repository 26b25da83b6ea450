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
  if (positions != Positions::kRotary) {
    if (rotary == Rotary{}) return;
    place("rotary").fail(fmt::format("with \"{}\" positions nothing turns", name_of(positions)),
                         "allowed: no such field, or positions \"rotary\"");
  }
  if (own.head_dim % 2 != 0)
    place("head_dim").fail(fmt::format("{} is odd", own.head_dim), "allowed: even, for rotary positions");
  check_rotary(rotary, own.head_dim, place);
}

std::int64_t AttentionLayer::parameters(std::int64_t hidden) const {
  std::int64_t total = matrix_elements(hidden);
  if (bias || qkv_bias) total += qkv_width();
  if (bias) total += hidden;
  if (qk_norm) total += 2 * head_dim;
  if (sinks) total += heads;
  return total;
}

}  // namespace orrery
