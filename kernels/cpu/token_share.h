// SPDX-License-Identifier: Apache-2.0
//
// Which tokens of a sequence a rank has where c = ring * ulysses ranks share it: two of 2c parts, one counted
// from the front and one from the back, so that under a causal mask all ranks see as many keys (zig-zag). The
// ulysses ranks of a place in the ring stand next to each other in both.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ORRERY_ON_DEVICES __host__ __device__
#else
#define ORRERY_ON_DEVICES
#endif

namespace orrery::kernels {

// Of a rank's rows of a sample, the first `half` are the tokens from `first` on and the others those from
// `second` on. By default a rank has all.
struct TokenShare {
  std::int64_t half = 0, first = 0, second = 0;
  ORRERY_ON_DEVICES constexpr std::int64_t position(std::int64_t row) const {
    return row < half ? first + row : second + row - half;
  }
};

// `tokens`: that each rank has of a sample, an even number.
ORRERY_ON_DEVICES constexpr TokenShare token_share(std::int64_t tokens, std::int64_t ring,
                                                   std::int64_t ulysses, std::int64_t ring_rank,
                                                   std::int64_t ulysses_rank) {
  if (ring * ulysses == 1) return {};
  const std::int64_t half = tokens / 2;
  return {half, (ring_rank * ulysses + ulysses_rank) * half,
          ((2 * ring - 1 - ring_rank) * ulysses + ulysses_rank) * half};
}

}  // namespace orrery::kernels
