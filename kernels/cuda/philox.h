// SPDX-License-Identifier: Apache-2.0
//
// The random numbers of kernels/cpu/dropout.h and rounding.h on the device: the same elements are dropped,
// and elements are rounded the same way. Internal to kernels/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/rounding.h"

namespace orrery::kernels::cuda {

struct Words {
  std::uint32_t at[4];
};

__device__ inline Words philox(Words c, std::uint32_t key0, std::uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c.at[0], b = std::uint64_t{0xCD9E8D57} * c.at[2];
    c = {{static_cast<std::uint32_t>(b >> 32) ^ c.at[1] ^ key0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.at[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

struct DropoutKey {
  std::uint32_t key0, key1, site;
  double dropped;  // words below this are dropped
  float scale;     // of what is kept
  Index first_sample;
};
inline DropoutKey key_of(const Dropout& d) {
  return {static_cast<std::uint32_t>(d.seed),
          static_cast<std::uint32_t>(d.seed >> 32),
          d.site,
          d.probability * 4294967296.0,
          d.scale(),
          d.first_sample};
}

// Which of columns `column` (a multiple of 4) to column + 3 of a row of a sample are kept.
struct Kept {
  bool at[4];
};
__device__ inline Kept keep4(const DropoutKey& d, std::int64_t sample, std::int64_t row,
                             std::int64_t column) {
  const auto n = static_cast<std::uint64_t>(sample);
  const Words words =
      philox({{static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(row),
               static_cast<std::uint32_t>(n), d.site ^ static_cast<std::uint32_t>(n >> 32) << 16}},
             d.key0, d.key1);
  Kept out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.at[i] = static_cast<double>(words.at[i]) >= d.dropped;
  return out;
}

// The words that decide elements 8 draw to 8 draw + 7 of a tensor.
__device__ inline Words rounding_words(const StochasticRounding& r, Index step, std::uint64_t draw) {
  return philox({{static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32),
                  static_cast<std::uint32_t>(step), r.site}},
                static_cast<std::uint32_t>(r.seed), static_cast<std::uint32_t>(r.seed >> 32));
}
// Element `of` of the eight.
__device__ inline float rounded_to_bfloat16(float x, const Words& words, unsigned of) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  const std::uint32_t bits = __float_as_uint(x);
  if ((bits & kExponent) == kExponent) return x;
  const std::uint32_t up = bits + (words.at[of / 2] >> (16 * (of % 2)) & 0xffff);
  return __uint_as_float(((up & kExponent) == kExponent ? bits : up) & 0xffff0000);
}

}  // namespace orrery::kernels::cuda
