// SPDX-License-Identifier: Apache-2.0
//
// Narrow moments: bytes by hand, the numbers that a byte names, and errors within half a step between two.
#include "kernels/cpu/moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/training.h"
#include "kernels/cpu/dynamic_numbers.h"

namespace orrery::kernels {
namespace {

std::vector<float> round_trip(const MomentLayout& l, Index moment, const std::vector<float>& x) {
  std::vector<std::byte> stored(static_cast<std::size_t>(l.bytes()));
  narrow_moments(l, moment, x.data(), 0, l.elements(), stored.data());
  std::vector<float> out(x.size());
  widen_moments(l, moment, stored.data(), 0, l.elements(), out.data());
  return out;
}

// 1,001 elements: 2 x 1,001 codes fill 2,004 bytes, and four blocks have a scale of 4 bytes for each moment.
// In fp32 8 bytes each, in bf16 4. With a master copy 4 more.
TEST(Moments, BytesByHand) {
  EXPECT_EQ(MomentLayout(1001, 2, 1).bytes(), 2'004 + 2 * 4 * 4);
  EXPECT_EQ(MomentLayout(1001, 2, 2).bytes(), 4 * 1001);
  EXPECT_EQ(MomentLayout(1001, 2, 4).bytes(), 8 * 1001);
  EXPECT_EQ(bytes_per_parameter(Precision::kAdam8bit).optimizer_of(1001), 4 * 1001 + 2'004 + 32);
  EXPECT_EQ(bytes_per_parameter(Precision::kPureBf16Adam8bit).optimizer_of(1 << 20),
            (2 << 20) + 2 * 4 * 4096);
  EXPECT_EQ(bytes_per_parameter(Precision::kMixed).optimizer_of(1001), 12 * 1001);
}

// bitsandbytes' map of numbers without a sign: zero, one, and the middles of 2, 4, .. 128 equal parts of
// [0.1, 1] times 1e-6 .. 1.
TEST(Moments, NumbersOfTheSecondMoment) {
  const auto& numbers = unsigned_dynamic_numbers();
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  EXPECT_EQ(numbers.front(), 0.0F);
  EXPECT_EQ(numbers.back(), 1.0F);
  const auto within = [&](double low, double high) {
    return std::count_if(numbers.begin(), numbers.end(), [&](float x) {
      return static_cast<double>(x) > low && static_cast<double>(x) < high;
    });
  };
  for (int decade = 0; decade < 7; ++decade)
    EXPECT_EQ(within(std::pow(10.0, decade - 7), std::pow(10.0, decade - 6)), 2 << decade) << decade;
  // 0.1 + 0.9 / 256, the lowest of the highest decade.
  EXPECT_NEAR(*std::upper_bound(numbers.begin(), numbers.end(), 0.1F), 0.1 + 0.9 / 256, 1e-7);
}

// Steps of the highest decade are 0.9 / 64 and 0.9 / 128 of the block's largest magnitude: none errs by more
// than half of that, but for a first moment whose largest magnitude is below zero, where the map ends at
// -(1 - 0.45 / 64).
TEST(Moments, ErrWithinHalfAStep) {
  constexpr unsigned kMomentsSeed = 20261129;
  RecordProperty("seed", kMomentsSeed);
  std::mt19937 random(kMomentsSeed);
  std::normal_distribution<float> of(0.0F, 1e-3F);
  const MomentLayout l(1000, 2, 1);
  std::vector<float> m(1000), v(1000);
  for (std::size_t i = 0; i < m.size(); ++i) {
    m[i] = of(random);
    v[i] = m[i] * m[i];
  }
  for (const Index moment : {0, 1}) {
    const std::vector<float>& x = moment == 0 ? m : v;
    const std::vector<float> got = round_trip(l, moment, x);
    double worst = 0;
    for (std::size_t block = 0; block < x.size(); block += 256) {
      const std::size_t end = std::min(block + 256, x.size());
      float largest = 0;
      for (std::size_t i = block; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
      for (std::size_t i = block; i < end; ++i)
        worst = std::max(worst, static_cast<double>(std::abs(got[i] - x[i])) / static_cast<double>(largest));
    }
    const double half_a_step = 0.45 / (moment == 0 ? 64 : 128);
    EXPECT_LT(worst, 1.001 * half_a_step) << moment;
    EXPECT_GT(worst, 0.5 * half_a_step) << moment;
  }
}

// A part that begins a block is what the whole is there; zeros stay zeros; bf16 is bf16.
TEST(Moments, PartsAndOtherWidths) {
  std::mt19937 random(7);
  std::normal_distribution<float> of(0.0F, 1.0F);
  std::vector<float> x(700);
  for (float& e : x) e = of(random);
  const MomentLayout l(700, 2, 1);
  std::vector<std::byte> whole(static_cast<std::size_t>(l.bytes())), parts = whole;
  narrow_moments(l, 0, x.data(), 0, 700, whole.data());
  narrow_moments(l, 0, x.data() + 512, 512, 188, parts.data());
  narrow_moments(l, 0, x.data(), 0, 512, parts.data());
  EXPECT_EQ(parts, whole);
  std::vector<float> all(700), some(188);
  widen_moments(l, 0, whole.data(), 0, 700, all.data());
  widen_moments(l, 0, whole.data(), 512, 188, some.data());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 512));
  EXPECT_EQ(round_trip(l, 1, std::vector<float>(700)), std::vector<float>(700));
  std::vector<float> lost(300, 1.0F);
  lost[7] = std::numeric_limits<float>::infinity();
  const std::vector<float> back = round_trip(MomentLayout(300, 2, 1), 0, lost);
  EXPECT_TRUE(std::isnan(back[0]));
  EXPECT_EQ(back[299], 1.0F);  // of another block
  const std::vector<float> exact{1.0F, -0.5F, 3.0F, 0.0078125F};
  EXPECT_EQ(round_trip(MomentLayout(4, 2, 2), 1, exact), exact);
  EXPECT_NE(round_trip(MomentLayout(1, 2, 2), 0, {1.001F}), std::vector<float>{1.001F});
  EXPECT_EQ(round_trip(MomentLayout(1, 2, 4), 0, {1.001F}), std::vector<float>{1.001F});
}

}  // namespace
}  // namespace orrery::kernels
