// SPDX-License-Identifier: Apache-2.0
//
// How a frozen matrix is stored in 4 bits (Dettmers et al. 2023, "QLoRA", arXiv:2305.14314; the layout of
// arrays is ours, the numbers are those of bitsandbytes). 64 elements have a scale, their largest magnitude;
// an element is one of 16 numbers times the scale. Scales are fp32; or, doubly quantised, 256 of them have an
// fp32 factor, and a scale is one of 256 numbers times the factor, and the mean of all scales. Bits an
// element:
//
//   4 + 32 / 64 = 4.5             nf4
//   4 + 8 / 64 + 32 / (64 256) = 4.127      nf4-dq
#pragma once

#include <cstdint>

namespace orrery {

// Of n elements: codes, two a byte, the first in the high half; scales; and factors and the mean. Each array
// begins at a multiple of 16 bytes.
class Nf4Layout {
 public:
  static constexpr std::int64_t kBlock = 64, kScaleBlock = 256;  // elements of a scale, scales of a factor

  constexpr Nf4Layout(std::int64_t elements, bool doubled) : elements_(elements), doubled_(doubled) {}
  constexpr std::int64_t elements() const { return elements_; }
  constexpr bool doubled() const { return doubled_; }
  constexpr std::int64_t scales() const { return (elements_ + kBlock - 1) / kBlock; }
  constexpr std::int64_t factors() const { return doubled_ ? (scales() + kScaleBlock - 1) / kScaleBlock : 0; }
  // Bytes before each array, and in all.
  constexpr std::int64_t scales_at() const { return aligned((elements_ + 1) / 2); }
  constexpr std::int64_t factors_at() const { return scales_at() + aligned(scales() * (doubled_ ? 1 : 4)); }
  constexpr std::int64_t mean_at() const { return factors_at() + aligned(4 * factors()); }
  constexpr std::int64_t bytes() const { return mean_at() + (doubled_ ? kAlignment : 0); }

 private:
  static constexpr std::int64_t kAlignment = 16;
  static constexpr std::int64_t aligned(std::int64_t n) {
    return (n + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::int64_t elements_;
  bool doubled_;
};

}  // namespace orrery
