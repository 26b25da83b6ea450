// SPDX-License-Identifier: Apache-2.0
#include "core/layers/cross_attention.h"

namespace orrery {

void CrossAttentionLayer::resolve(std::int64_t hidden) {
  if (kv_heads == 0) kv_heads = heads;
  if (head_dim == 0) head_dim = hidden / heads;
}

void CrossAttentionLayer::check(std::int64_t hidden, const FieldPlace& place) const {
  check_heads(*this, hidden, place);
}

std::int64_t CrossAttentionLayer::parameters(std::int64_t hidden) const {
  return matrix_elements(hidden) + read_elements(hidden) + (bias ? query_width() + kv_width() + hidden : 0);
}

}  // namespace orrery
