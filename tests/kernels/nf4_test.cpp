// SPDX-License-Identifier: Apache-2.0
//
// 4-bit weights: bytes by hand, numbers of the papers, and errors within what the format allows.
#include "kernels/cpu/dynamic_numbers.h"
#include "kernels/cpu/nf4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace orrery::kernels {
namespace {

std::vector<float> round_trip(const Nf4Layout& l, const std::vector<float>& x) {
  std::vector<std::byte> stored(static_cast<std::size_t>(l.bytes()));
  quantise(l, x.data(), stored.data());
  std::vector<float> out(x.size());
  dequantise(l, stored.data(), out.data());
  return out;
}

std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> of(0.0F, 0.02F);
  std::vector<float> out(n);
  for (float& x : out) x = of(random);
  return out;
}

// 4096 x 4096: 8,388,608 bytes of codes, 262,144 scales of 4 bytes; or of a byte, with 1,024 factors and a
// mean.
TEST(Nf4, BytesByHand) {
  constexpr std::int64_t kElements = 4096 * 4096;
  EXPECT_EQ(Nf4Layout(kElements, false).bytes(), 8'388'608 + 4 * 262'144);
  EXPECT_EQ(Nf4Layout(kElements, true).bytes(), 8'388'608 + 262'144 + 4 * 1'024 + 16);
  // 100 elements: 50 bytes of codes fill 64, two scales of 4 bytes fill 16; two bytes, a factor and a mean
  // fill 16 each.
  EXPECT_EQ(Nf4Layout(100, false).bytes(), 64 + 16);
  EXPECT_EQ(Nf4Layout(100, true).bytes(), 64 + 16 + 16 + 16);
}

// Bits for each of Llama-2-70B's 68.98e9 parameters: 34.5 GB without scales, 38.8 GB, and 35.6 GB.
TEST(Nf4, OfALargeModel) {
  constexpr std::int64_t kParameters = 68'976'648'192;
  EXPECT_NEAR(static_cast<double>(Nf4Layout(kParameters, false).bytes()) / 1e9, 38.8, 0.05);
  EXPECT_NEAR(static_cast<double>(Nf4Layout(kParameters, true).bytes()) / 1e9, 35.6, 0.05);
}

// Seven decades with 1, 2, 4 .. 64 numbers of each sign, zero, and 1: the smallest is the middle of
// [0.1, 1] 1e-6, the largest below 1 the middle of the last 64th part of [0.1, 1].
TEST(Nf4, DynamicNumbersAreADecadeTree) {
  const auto& numbers = dynamic_numbers();
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), 0.0F), 1);
  EXPECT_EQ(numbers.back(), 1.0F);
  EXPECT_EQ(std::count_if(numbers.begin(), numbers.end(), [](float x) { return x < 0; }), 127);
  const auto least = *std::find_if(numbers.begin(), numbers.end(), [](float x) { return x > 0; });
  EXPECT_FLOAT_EQ(least, 0.55e-6F);
  EXPECT_FLOAT_EQ(numbers[254], static_cast<float>(0.1 + 0.9 * 63.5 / 64));
  EXPECT_FLOAT_EQ(numbers[0], -numbers[254]);
}

// What are the 16 numbers times a scale stay as they are.
TEST(Nf4, ItsOwnNumbersAreExact) {
  std::vector<float> x;
  for (int i = 0; i < 128; ++i) x.push_back(kNf4[static_cast<std::size_t>(i) % 16] * (i < 64 ? 0.5F : 4.0F));
  EXPECT_EQ(round_trip({128, false}, x), x);
}

// The widest gap of the numbers is between -1 and -0.696: an element is off by at most half of that, times
// its block's largest magnitude. Normal weights lose 0.0082 of their variance (a seventh to a twelfth of a
// deviation): more than a float of 8 bits, and less than evenly spaced 4-bit numbers, which lose 0.0147 so.
TEST(Nf4, ErrorsAreWithinTheGaps) {
  constexpr unsigned kNormalSeed = 20261128;
  SCOPED_TRACE(kNormalSeed);
  const std::vector<float> x = normal(1 << 16, kNormalSeed);
  for (const bool doubled : {false, true}) {
    const std::vector<float> y = round_trip({std::ssize(x), doubled}, x);
    double error = 0, even = 0, variance = 0;
    for (std::size_t b = 0; b < x.size(); b += 64) {
      float largest = 0;
      for (std::size_t i = b; i < b + 64; ++i) largest = std::max(largest, std::abs(x[i]));
      for (std::size_t i = b; i < b + 64; ++i) {
        // Doubly quantised scales are off by a 128th of the range of scales.
        const double allowed = (doubled ? 0.16 : 0.1520) * static_cast<double>(largest);
        ASSERT_LE(std::abs(x[i] - y[i]), allowed) << i;
        error += std::pow(static_cast<double>(x[i] - y[i]), 2);
        variance += std::pow(static_cast<double>(x[i]), 2);
        const double step = static_cast<double>(largest) / 7;  // -7 .. 7
        even += std::pow(static_cast<double>(x[i]) - std::round(static_cast<double>(x[i]) / step) * step, 2);
      }
    }
    EXPECT_LT(error / variance, 0.0095) << doubled;
    EXPECT_GT(error / variance, 0.0070) << doubled;
    EXPECT_LT(error, 0.8 * even) << doubled;
  }
}

// A last block may be short, and an odd element has a byte of its own.
TEST(Nf4, AnyNumberOfElements) {
  for (const std::size_t n : {1UL, 2UL, 63UL, 65UL, 127UL, 64UL * 256 + 1, 64UL * 257 + 33}) {
    const std::vector<float> x = normal(n, 5);
    for (const bool doubled : {false, true}) {
      const std::vector<float> y = round_trip({std::ssize(x), doubled}, x);
      const float most = std::abs(
          *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_NEAR(x[i], y[i], 0.16 * static_cast<double>(most)) << n << ' ' << i;
    }
  }
  EXPECT_EQ(round_trip({3, true}, {0, 0, 0}), (std::vector<float>{0, 0, 0}));
}

}  // namespace
}  // namespace orrery::kernels
