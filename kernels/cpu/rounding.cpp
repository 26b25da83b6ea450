// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rounding.h"

#include <array>
#include <bit>

namespace orrery::kernels {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000;

float rounded(float x, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & kExponent) == kExponent) return x;
  const std::uint32_t up = bits + random;
  return std::bit_cast<float>(((up & kExponent) == kExponent ? bits : up) & 0xffff0000);
}

}  // namespace

// Eight elements share the 128 bits of a draw.
void round_to_bfloat16(const StochasticRounding& r, Index step, Index n, float* x) {
  const std::array key{static_cast<std::uint32_t>(r.seed), static_cast<std::uint32_t>(r.seed >> 32)};
  std::array<std::uint32_t, 4> words{};
  for (Index i = 0; i < n; ++i) {
    const auto at = static_cast<std::uint64_t>(r.first + i), draw = at / 8, of = at % 8;
    if (i == 0 || of == 0) {
      words = philox({static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32),
                      static_cast<std::uint32_t>(step), r.site},
                     key);
    }
    x[i] = rounded(x[i], words[of / 2] >> (16 * (of % 2)) & 0xffff);
  }
}

}  // namespace orrery::kernels
