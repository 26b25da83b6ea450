// SPDX-License-Identifier: Apache-2.0
#include "core/layers/latent_attention.h"

namespace orrery {

void LatentAttentionLayer::check(std::int64_t, const FieldPlace& place) const {
  if (heads == 0) place("heads").fail("the field \"heads\" is missing");
  if (turned % 2 != 0)
    place("turned").fail(fmt::format("{} elements cannot turn in pairs", turned), "allowed: an even number");
  check_rotary(rotary, turned, place);
}

std::int64_t LatentAttentionLayer::matrix_elements(std::int64_t hidden) const {
  const std::int64_t queries = q_rank == 0 ? hidden * query_width() : q_rank * (hidden + query_width());
  return queries + kv_rank * (hidden + key_width()) + hidden * (turned + context_width());
}

// What positions turn of keys is a matrix of its own beside the latent of keys and values, and has an adapter
// of its own.
std::vector<AdapterMatrix> LatentAttentionLayer::adapter_matrices(std::int64_t hidden) const {
  using enum AdapterTarget;
  std::vector<AdapterMatrix> out{{kQuery, query_width(), q_rank == 0 ? hidden : q_rank}};
  if (q_rank > 0) out.push_back({kQueryDown, q_rank, hidden});
  out.push_back({kKeyValueDown, kv_rank, hidden});
  out.push_back({kKeyValueDown, turned, hidden});
  out.push_back({kKeyValue, key_width(), kv_rank});
  out.push_back({kOutput, hidden, context_width()});
  return out;
}

}  // namespace orrery
