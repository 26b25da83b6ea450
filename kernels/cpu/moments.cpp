// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/moments.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/dynamic_numbers.h"
#include "kernels/cpu/fast.h"

namespace orrery::kernels {
namespace {

const std::array<float, 256>& numbers_of(Index moment) {
  return moment == 0 ? dynamic_numbers() : unsigned_dynamic_numbers();
}

// Calls use(scale, begin, end) for each block of [first, first + n); `scale` points into `stored`.
template <class Byte, class Use>
void for_each_block(const MomentLayout& l, Index i, Byte* stored, Index first, Index n, Use use) {
  constexpr Index kBlock = MomentLayout::kBlock;
  for (Index begin = first; begin < first + n; begin += kBlock)
    use(stored + l.scales_at(i) + 4 * (begin / kBlock), begin, std::min(begin + kBlock, first + n));
}

}  // namespace

void widen_moments(const MomentLayout& l, Index i, const std::byte* stored, Index first, Index n, float* x) {
  const std::byte* const values = stored + l.values_at(i);
  if (l.value_bytes() == 4)
    return static_cast<void>(std::memcpy(x, values + 4 * first, 4 * static_cast<std::size_t>(n)));
  if (l.value_bytes() == 2) return widen(DType::kBfloat16, n, values + 2 * first, x);
  const std::array<float, 256>& numbers = numbers_of(i);
  for_each_block(l, i, stored, first, n, [&](const std::byte* at, Index begin, Index end) {
    float scale = 0;
    std::memcpy(&scale, at, sizeof(scale));
    for (Index e = begin; e < end; ++e)
      x[e - first] = numbers[std::to_integer<std::size_t>(values[e])] * scale;
  });
}

void narrow_moments(const MomentLayout& l, Index i, const float* x, Index first, Index n, std::byte* stored) {
  std::byte* const values = stored + l.values_at(i);
  if (l.value_bytes() == 4)
    return static_cast<void>(std::memcpy(values + 4 * first, x, 4 * static_cast<std::size_t>(n)));
  if (l.value_bytes() == 2) return narrow(DType::kBfloat16, n, x, values + 2 * first);
  const std::array<float, 256>& numbers = numbers_of(i);
  for_each_block(l, i, stored, first, n, [&](std::byte* at, Index begin, Index end) {
    float scale = 0;
    for (Index e = begin; e < end; ++e) {
      const float size = std::abs(x[e - first]);
      scale = std::isfinite(size) ? std::max(scale, size) : std::numeric_limits<float>::quiet_NaN();
      if (std::isnan(scale)) break;  // what was lost stays lost, as in fp32
    }
    std::memcpy(at, &scale, sizeof(scale));
    for (Index e = begin; e < end; ++e)
      values[e] = static_cast<std::byte>(nearest(numbers, scale > 0 ? x[e - first] / scale : 0.0F));
  });
}

void part_master(Index n, const float* master, float* parameter, std::int16_t* beside) {
  constexpr std::uint32_t kHalf = 0x8000, kUpper = 0xffff0000, kQuiet = 0x00400000;
  for (Index i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(master[i]);
    const bool lost = std::isnan(master[i]);  // and must stay so
    const std::uint32_t upper = (lost ? bits | kQuiet : bits + kHalf) & kUpper;
    parameter[i] = std::bit_cast<float>(upper);
    beside[i] = lost ? std::int16_t{0} : static_cast<std::int16_t>(static_cast<std::uint16_t>(bits - upper));
  }
}

void join_master(Index n, const float* parameter, const std::int16_t* beside, float* master) {
  for (Index i = 0; i < n; ++i) {
    const auto upper = std::bit_cast<std::uint32_t>(parameter[i]);
    master[i] = std::bit_cast<float>(upper + static_cast<std::uint32_t>(std::int32_t{beside[i]}));
  }
}

}  // namespace orrery::kernels
