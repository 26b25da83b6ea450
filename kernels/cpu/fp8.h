// SPDX-License-Identifier: Apache-2.0
//
// 8-bit floats of matrix products (Micikevicius et al., "FP8 formats for deep learning", 2022): E4M3 for
// values, E5M2 for gradients. A tensor is multiplied by a power of two that takes its largest magnitude to
// the upper half of the format's range, and rounded to the nearest number of the format, ties to even; the
// product is divided by the factors. With powers of two the only error is that rounding.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/reference.h"

namespace orrery::kernels {

enum class Fp8 : std::uint8_t { kE4M3, kE5M2 };

constexpr int mantissa_bits(Fp8 f) {
  return f == Fp8::kE4M3 ? 3 : 2;
}
// Exponent of the smallest normal number; below it numbers are that far apart.
constexpr int least_exponent(Fp8 f) {
  return f == Fp8::kE4M3 ? -6 : -14;
}
constexpr float largest(Fp8 f) {
  return f == Fp8::kE4M3 ? 448.0F : 57344.0F;
}

// The factor for a tensor of this largest magnitude: the power of two that takes it above half of the
// format's largest number, and not above that. 1 where there is none: for zero, infinity and NaN.
inline float fp8_factor(Fp8 f, float magnitude) {
  if (!(magnitude > 0 && std::isfinite(magnitude))) return 1;
  int exponent = 0;
  const bool above = std::frexp(magnitude, &exponent) > 0.875F;  // the formats end at 1.75 of a power of two
  const int top = f == Fp8::kE4M3 ? 8 : 15;
  return std::ldexp(1.0F, std::min(top + 1 - exponent - (above ? 1 : 0), 126));
}

// The code of the number nearest to x, of those up to the largest; of NaN and infinities a NaN.
constexpr std::uint8_t to_fp8(Fp8 f, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  if (size >= 0x7f800000) return static_cast<std::uint8_t>(sign | 0x7f);
  const std::int32_t mantissa = mantissa_bits(f), least = least_exponent(f);
  std::int32_t exponent = static_cast<std::int32_t>(size >> 23) - 127;
  if (exponent < least) exponent = least;
  // In units of the last place, below 2^(mantissa + 1): adding 1.5 * 2^23 rounds to a whole number.
  const float unit = std::bit_cast<float>(static_cast<std::uint32_t>(127 + mantissa - exponent) << 23);
  const float places = std::bit_cast<float>(size) * unit + 12582912.0F;
  const std::uint32_t whole = std::bit_cast<std::uint32_t>(places) & 0x3fffff;
  const std::uint32_t code = (static_cast<std::uint32_t>(exponent - least) << mantissa) + whole;
  const std::uint32_t top = f == Fp8::kE4M3 ? 0x7e : 0x7b;
  return static_cast<std::uint8_t>(sign | (code < top ? code : top));
}

constexpr float from_fp8(Fp8 f, std::uint8_t code) {
  const std::int32_t mantissa = mantissa_bits(f), least = least_exponent(f);
  const std::uint32_t size = code & 0x7f, sign = static_cast<std::uint32_t>(code & 0x80) << 24;
  if (size > (f == Fp8::kE4M3 ? 0x7eU : 0x7bU)) return std::bit_cast<float>(sign | 0x7fc00000);
  const auto exponent = static_cast<std::int32_t>(size >> mantissa);
  const std::uint32_t rest = size & ((1U << mantissa) - 1);
  const std::uint32_t whole = exponent == 0 ? rest : rest | 1U << mantissa;
  const std::int32_t power = (exponent == 0 ? 1 : exponent) - 1 + least - mantissa;
  const float unit = std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(whole) * unit) | sign);
}

// x becomes what a device multiplies: its numbers in 8 bits, divided by the factor again.
void round_to_fp8(Fp8 f, Index n, float* x);

}  // namespace orrery::kernels
