// SPDX-License-Identifier: Apache-2.0
//
// How an optimizer's moments are stored: in fp32, in bf16, or in 8 bits (Dettmers et al. 2022, "8-bit
// Optimizers via Block-wise Quantization", arXiv:2110.02861; the layout of arrays is ours). In 8 bits a block
// of 256 elements has an fp32 scale, its largest magnitude, and an element is one of 256 numbers times the
// scale. Bytes of an element's two moments:
//
//   2 (1 + 4 / 256) = 2.03
//
// Blocks are counted from the beginning of a rank's shard, so plans with other shards round differently.
#pragma once

#include <cstdint>

namespace orrery {

// Of so many elements: `count` arrays of values, and behind them, in 8 bits, as many arrays of scales.
class MomentLayout {
 public:
  static constexpr std::int64_t kBlock = 256;

  // `bytes`: of a value, 4, 2 or 1.
  constexpr MomentLayout(std::int64_t elements, std::int64_t count, std::int64_t bytes)
      : elements_(elements), count_(count), bytes_(bytes) {}
  constexpr std::int64_t elements() const { return elements_; }
  constexpr std::int64_t count() const { return count_; }
  constexpr std::int64_t value_bytes() const { return bytes_; }
  constexpr bool has_scales() const { return bytes_ == 1; }
  constexpr std::int64_t blocks() const { return (elements_ + kBlock - 1) / kBlock; }
  // Bytes before the i-th array, and in all.
  constexpr std::int64_t values_at(std::int64_t i) const { return i * elements_ * bytes_; }
  constexpr std::int64_t scales_at(std::int64_t i) const {
    return (values_at(count_) + 3) / 4 * 4 + i * 4 * blocks();
  }
  constexpr std::int64_t bytes() const { return has_scales() ? scales_at(count_) : values_at(count_); }

 private:
  std::int64_t elements_, count_, bytes_;
};

}  // namespace orrery
