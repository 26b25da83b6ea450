// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fp8.h"

#include <algorithm>

namespace orrery::kernels {
namespace {

// from_fp8(f, to_fp8(f, x)), without the code in between.
float nearest(Fp8 f, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits & 0x80000000, size = bits & 0x7fffffff;
  if (size >= 0x7f800000) return std::bit_cast<float>(sign | 0x7fc00000);
  const auto mantissa = static_cast<std::uint32_t>(mantissa_bits(f)),
             least = static_cast<std::uint32_t>(127 + least_exponent(f));
  const std::uint32_t exponent = std::max(size >> 23, least);
  const float unit = std::bit_cast<float>((exponent - mantissa) << 23),
              to_units = std::bit_cast<float>((254 + mantissa - exponent) << 23);
  constexpr float kRounds = 12582912.0F;  // 1.5 * 2^23: what is added to it loses its fraction
  const float rounded = (std::bit_cast<float>(size) * to_units + kRounds - kRounds) * unit;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(std::min(rounded, largest(f))) | sign);
}

}  // namespace

void round_to_fp8(Fp8 f, Index n, float* x) {
  std::uint32_t most = 0;  // as bits, which are in the order of magnitudes, NaN above all
  for (Index i = 0; i < n; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffff);
  const float factor = fp8_factor(f, std::bit_cast<float>(most));
  const float scale = 1 / factor;
  for (Index i = 0; i < n; ++i) x[i] = nearest(f, x[i] * factor) * scale;
}

}  // namespace orrery::kernels
