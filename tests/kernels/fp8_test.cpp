// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fp8.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace orrery::kernels {
namespace {

constexpr Fp8 kFormats[] = {Fp8::kE4M3, Fp8::kE5M2};

// The tables of Micikevicius et al. 2022, section 3.
TEST(Fp8, HasThePublishedNumbers) {
  EXPECT_EQ(from_fp8(Fp8::kE4M3, 0x7e), 448.0F);
  EXPECT_EQ(from_fp8(Fp8::kE4M3, 0x08), 0x1p-6F);  // smallest normal
  EXPECT_EQ(from_fp8(Fp8::kE4M3, 0x01), 0x1p-9F);  // smallest of all
  EXPECT_EQ(from_fp8(Fp8::kE5M2, 0x7b), 57344.0F);
  EXPECT_EQ(from_fp8(Fp8::kE5M2, 0x04), 0x1p-14F);
  EXPECT_EQ(from_fp8(Fp8::kE5M2, 0x01), 0x1p-16F);
  for (const Fp8 f : kFormats) {
    EXPECT_TRUE(std::isnan(from_fp8(f, 0x7f)));
    EXPECT_EQ(from_fp8(f, 0x81), -from_fp8(f, 0x01));
  }
}

TEST(Fp8, RoundsToTheNearestEvenOfAllItsNumbers) {
  constexpr unsigned kOwnSeed = 20261123;
  std::mt19937 random(kOwnSeed);
  for (const Fp8 f : kFormats) {
    std::vector<std::uint8_t> codes;  // in the order of their numbers
    for (int c = 0; c < 128; ++c) {
      if (!std::isnan(from_fp8(f, static_cast<std::uint8_t>(c))))
        codes.push_back(static_cast<std::uint8_t>(c));
    }
    for (std::size_t i = 0; i + 1 < codes.size(); ++i) {
      const float low = from_fp8(f, codes[i]), high = from_fp8(f, codes[i + 1]), middle = (low + high) / 2;
      ASSERT_LT(low, high);
      ASSERT_EQ(to_fp8(f, low), codes[i]);
      ASSERT_EQ(to_fp8(f, middle), codes[i + codes[i] % 2]) << low;
      ASSERT_EQ(to_fp8(f, std::nextafter(middle, 0.0F)), codes[i]) << low;
      ASSERT_EQ(to_fp8(f, std::nextafter(middle, high)), codes[i + 1]) << low;
      const float between = low + (high - low) * static_cast<float>(random() % 1000) / 1000;
      const std::uint8_t code = to_fp8(f, -between);
      ASSERT_LE(std::abs(from_fp8(f, code) + between), (high - low) / 2) << "seed " << kOwnSeed;
    }
    for (const float beyond : {1.001F * largest(f), 1e30F}) {
      EXPECT_EQ(from_fp8(f, to_fp8(f, beyond)), largest(f));
      EXPECT_EQ(from_fp8(f, to_fp8(f, -beyond)), -largest(f));
    }
    for (const float none : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()})
      EXPECT_TRUE(std::isnan(from_fp8(f, to_fp8(f, none))));
  }
}

TEST(Fp8, TheFactorIsThePowerOfTwoThatFillsTheRange) {
  for (const Fp8 f : kFormats) {
    for (float magnitude = 1e-30F; magnitude < 1e38F; magnitude *= 1.37F) {
      const float factor = fp8_factor(f, magnitude);
      int exponent = 0;
      EXPECT_EQ(std::frexp(factor, &exponent), 0.5F) << "no power of two";
      EXPECT_LE(factor * magnitude, largest(f)) << magnitude;
      EXPECT_GT(factor * magnitude, largest(f) / 2) << magnitude;
    }
    for (const float none : {0.0F, INFINITY, std::numeric_limits<float>::quiet_NaN()})
      EXPECT_EQ(fp8_factor(f, none), 1.0F);
  }
}

// Half a unit in the last place: 2^-4 of a number with three bits of mantissa, 2^-3 with two. What is so
// small that it stands below the normal numbers is off by half the smallest number.
TEST(Fp8, ATensorIsOffByHalfAUnit) {
  constexpr unsigned kOwnSeed = 7;
  std::mt19937 random(kOwnSeed);
  std::normal_distribution<float> normal(0, 3e-5F);
  for (const Fp8 f : kFormats) {
    std::vector<float> x(10000);
    for (float& v : x) v = normal(random);
    std::vector<float> y(x);
    round_to_fp8(f, std::ssize(y), y.data());
    float most = 0;
    for (const float v : x) most = std::max(most, std::abs(v));
    const float least = std::ldexp(1.0F, least_exponent(f) - mantissa_bits(f)) / fp8_factor(f, most);
    const float half_unit = std::ldexp(1.0F, -1 - mantissa_bits(f));
    bool moved = false;
    const float factor = fp8_factor(f, most);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(y[i], from_fp8(f, to_fp8(f, x[i] * factor)) / factor);
      EXPECT_LE(std::abs(y[i] - x[i]), std::max(half_unit * std::abs(x[i]), least / 2))
          << "seed " << kOwnSeed;
      moved = moved || y[i] != x[i];
    }
    EXPECT_TRUE(moved);
    std::vector<float> again(y);
    round_to_fp8(f, std::ssize(again), again.data());
    EXPECT_EQ(again, y) << "its own numbers stay";
    x[5] = INFINITY;
    round_to_fp8(f, std::ssize(x), x.data());
    EXPECT_TRUE(std::isnan(x[5])) << "what is wrong stays visible";
  }
}

}  // namespace
}  // namespace orrery::kernels
