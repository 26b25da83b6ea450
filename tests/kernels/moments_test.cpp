// SPDX-License-Identifier: Apache-2.0
//
// Narrow moments: bytes by hand, the numbers that a byte names, and errors within half a step between two.
#include "kernels/cpu/moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
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

// With fp32 gradients, and with 16-bit ones; whole masters, and parted ones.
TEST(Moments, BytesOfRecipesInBf16) {
  EXPECT_EQ(bytes_per_parameter(Precision::kMegatronAdamBf16).total(), 2 + 4 + 4 + 2 * 2);
  EXPECT_EQ(bytes_per_parameter(Precision::kAdamBf16).total(), 2 + 2 + 4 + 2 * 2);
  EXPECT_EQ(bytes_per_parameter(Precision::kPrecisionAware).total(), 2 + 4 + 2 + 2 * 2);
  EXPECT_EQ(bytes_per_parameter(Precision::kPrecisionAwareBf16).total(), 2 + 2 + 2 + 2 * 2);
  EXPECT_EQ(bytes_per_parameter(Precision::kPrecisionAware).optimizer_of(1001), 1001 * (2 + 4));
  // An update reads the gradient, reads and writes the state, and writes the parameter, which it reads too
  // where there is no whole master.
  EXPECT_EQ(bytes_per_parameter(Precision::kMegatronAdamBf16).update_traffic(), 4 + 2 * 8 + 2);
  EXPECT_EQ(bytes_per_parameter(Precision::kPrecisionAware).update_traffic(), 4 + 2 * 6 + 2 * 2);
  EXPECT_EQ(bytes_per_parameter(Precision::kFp32).update_traffic(), 28);
  EXPECT_EQ(bytes_per_parameter(Precision::kSgd).update_traffic(), 4 + 2 * 4 + 2 * 4);
}

// Any bits come back, whatever they mean. The parameter is a number in bf16, at most half a step away.
TEST(PartedMasters, NoBitIsLost) {
  constexpr unsigned kMasterSeed = 20261201;
  RecordProperty("seed", kMasterSeed);
  std::mt19937 random(kMasterSeed);
  std::vector<float> master{0.0F,
                            -0.0F,
                            1.0F,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min()};
  for (int i = 0; i < 100'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) master.push_back(x);
  }
  const auto n = static_cast<Index>(master.size());
  std::vector<float> parameter(master.size()), joined(master.size());
  std::vector<std::int16_t> beside(master.size());
  part_master(n, master.data(), parameter.data(), beside.data());
  join_master(n, parameter.data(), beside.data(), joined.data());
  for (std::size_t i = 0; i < master.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(master[i]),
               upper = std::bit_cast<std::uint32_t>(parameter[i]);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(joined[i]), bits);
    ASSERT_EQ(upper & 0xffffU, 0U);
    ASSERT_LE(std::abs(static_cast<std::int64_t>(bits) - static_cast<std::int64_t>(upper)), 0x8000);
  }
}

// 1 + 2^-8 is halfway between two numbers of bf16, which has 7 bits behind the point; and so is its negative.
TEST(PartedMasters, HalfwayGoesAwayFromZero) {
  const std::vector<float> master{1.00390625F, -1.00390625F, std::nextafter(1.00390625F, 0.0F)};
  std::vector<float> parameter(3);
  std::vector<std::int16_t> beside(3);
  part_master(3, master.data(), parameter.data(), beside.data());
  EXPECT_EQ(parameter, (std::vector<float>{1.0078125F, -1.0078125F, 1.0F}));
  EXPECT_EQ(beside[0], -0x8000);
  EXPECT_EQ(beside[2], 0x7fff);
}

// A gradient that was not finite must be seen in the parameter and in the master.
TEST(PartedMasters, WhatIsLostStaysLost) {
  std::vector<float> master, parameter(4), joined(4);
  for (const std::uint32_t bits : {0x7f800001U, 0x7fffffffU, 0xff80ffffU, 0xffffffffU})
    master.push_back(std::bit_cast<float>(bits));
  std::vector<std::int16_t> beside(4);
  part_master(4, master.data(), parameter.data(), beside.data());
  join_master(4, parameter.data(), beside.data(), joined.data());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(std::isnan(parameter[i]));
    EXPECT_TRUE(std::isnan(joined[i]));
  }
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
