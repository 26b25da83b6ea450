// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/operands.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "kernels/cpu/fp8.h"

namespace orrery::kernels {
namespace {

constexpr float kLargestE4M3 = 448, kLargestE2M1 = 6;

// A part of a matrix: rows of so many columns, `stride` apart.
struct FactorBlock {
  Index rows, columns, stride;
};

float magnitude(const FactorBlock& b, const float* x) {
  float most = 0;
  for (Index r = 0; r < b.rows; ++r) {
    for (Index c = 0; c < b.columns; ++c) most = std::max(most, std::abs(x[r * b.stride + c]));
  }
  return most;
}

template <class Nearest>
void divide_and_round(const FactorBlock& b, float factor, float* x, Nearest nearest) {
  for (Index r = 0; r < b.rows; ++r) {
    for (Index c = 0; c < b.columns; ++c) {
      float& element = x[r * b.stride + c];
      element = nearest(element / factor) * factor;
    }
  }
}

float nearest_e4m3(float x) {
  return from_fp8(Fp8::kE4M3, to_fp8(Fp8::kE4M3, x));
}

// 0, 0.5, 1, 1.5, 2, 3, 4 and 6: halves below 2, whole numbers below 4, then even ones.
float nearest_e2m1(float x) {
  const float size = std::min(std::abs(x), kLargestE2M1);
  const float unit = size < 2 ? 0.5F : size < 4 ? 1.0F : 2.0F;
  return std::copysign(std::nearbyint(size / unit) * unit, x);
}

// Calls round(block, first element) for the blocks of an operand: `along` elements of the dimension that is
// summed over, or all of it where that is 0, times `across` of the other one.
template <class Round>
void for_each_block(const StoredOperand& s, Index along, Index across, float* x, Round round) {
  const Index of_rows = s.sums_columns ? across : along, of_columns = s.sums_columns ? along : across;
  const Index rows = of_rows > 0 ? of_rows : s.rows, columns = of_columns > 0 ? of_columns : s.columns;
  for (Index m = 0; m < s.matrices; ++m) {
    float* const matrix = x + m * s.rows * s.columns;
    for (Index r = 0; r < s.rows; r += rows) {
      for (Index c = 0; c < s.columns; c += columns) {
        round(FactorBlock{std::min(rows, s.rows - r), std::min(columns, s.columns - c), s.columns},
              matrix + r * s.columns + c);
      }
    }
  }
}

// A block whose factor would be 0, infinity or NaN stays as it is.
bool is_usable(float factor) {
  return factor > 0 && std::isfinite(factor);
}

void round_blocks(const StoredOperand& s, Index along, Index across, float* x) {
  for_each_block(s, along, across, x, [](const FactorBlock& b, float* first) {
    const float factor = magnitude(b, first) / kLargestE4M3;
    if (is_usable(factor)) divide_and_round(b, factor, first, nearest_e4m3);
  });
}

// The least power of two that takes a block into the range of E4M3, of those that E8M0 has.
void round_mx(const StoredOperand& s, float* x) {
  constexpr Index kBlock = 32;
  for_each_block(s, kBlock, 1, x, [](const FactorBlock& b, float* first) {
    const float most = magnitude(b, first);
    if (!is_usable(most)) return;
    int exponent = 0;
    const float share = std::frexp(most / kLargestE4M3, &exponent);
    if (share == 0.5F) --exponent;  // a power of two itself
    divide_and_round(b, std::ldexp(1.0F, std::max(exponent, -127)), first, nearest_e4m3);
  });
}

void round_nv(const StoredOperand& s, float* x) {
  constexpr Index kBlock = 16;
  const FactorBlock all{s.matrices * s.rows, s.columns, s.columns};
  const float of_tensor = magnitude(all, x) / (kLargestE2M1 * kLargestE4M3);
  if (!is_usable(of_tensor)) return;
  for_each_block(s, kBlock, s.weight ? kBlock : 1, x, [&](const FactorBlock& b, float* first) {
    const float factor = nearest_e4m3(magnitude(b, first) / kLargestE2M1 / of_tensor) * of_tensor;
    if (factor > 0)
      divide_and_round(b, factor, first, nearest_e2m1);
    else
      divide_and_round(b, 1, first, [](float v) { return std::isnan(v) ? v : 0.0F; });
  });
}

}  // namespace

void round_operand(Math format, const StoredOperand& s, float* x) {
  switch (format) {
    case Math::kFp8:
      return round_to_fp8(s.gradient ? Fp8::kE5M2 : Fp8::kE4M3, s.matrices * s.rows * s.columns, x);
    case Math::kFp8Rowwise:
      return round_blocks(s, 0, 1, x);
    case Math::kFp8Blockwise:
      return round_blocks(s, 128, s.weight ? 128 : 1, x);
    case Math::kMxfp8:
      return round_mx(s, x);
    case Math::kNvfp4:
      return round_nv(s, x);
    case Math::kFp8Delayed:
    case Math::kBf16:
    case Math::kFp16:
    case Math::kTf32:
    case Math::kFp32:
      break;
  }
  throw std::logic_error("no operands are rounded to this format");
}

}  // namespace orrery::kernels
