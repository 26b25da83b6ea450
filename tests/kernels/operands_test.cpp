// SPDX-License-Identifier: Apache-2.0
//
// Operands rounded as formats have it, by hand and by how far they move.
#include "kernels/cpu/operands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/fields.h"

namespace orrery::kernels {
namespace {

std::vector<float> rounded(Math format, const StoredOperand& s, std::vector<float> x) {
  round_operand(format, s, x.data());
  return x;
}

std::vector<float> normal_numbers(Index n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> of;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& e : x) e = of(random);
  return x;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(sum / size);
}

// Rows of 448 and 44.8: with a factor of its own each row has its largest number exactly, and 1 of the second
// is 10 of 448, a number of E4M3. With the first row's factor it is 1 itself.
TEST(Operands, RowsHaveFactorsOfTheirOwn) {
  const std::vector<float> x{448, 100, 44.8F, 1};
  const auto by_row = rounded(Math::kFp8Rowwise, {1, 2, 2, true}, x);
  const std::vector<float> expected{448, 96, 44.8F, 1};
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_FLOAT_EQ(by_row[i], expected[i]) << i;
  // Summed along rows, columns have them: 448 and 44.8 share one, and so have 100 and 1.
  const auto by_column = rounded(Math::kFp8Rowwise, {1, 2, 2, false}, x);
  EXPECT_FLOAT_EQ(by_column[1], 100);
  EXPECT_EQ(by_column[2], 44);  // of 40, 44, 48
}

// 32 elements share a power of two. A block whose largest is 500 is divided by 2, and 3.3 becomes 2 * 1.625;
// a block of 100 is multiplied by 4, where 13.2 becomes 13, and 13 / 4 is 3.25 too.
TEST(Operands, MicroscalingBlocksShareAPowerOfTwo) {
  std::vector<float> x(64, 3.3F);
  x[0] = 500;
  x[32] = 100;
  const auto y = rounded(Math::kMxfp8, {1, 1, 64, true}, x);
  EXPECT_EQ(y[0], 512);  // 250 is nearer to 256 than to 240
  EXPECT_EQ(y[1], 3.25F);
  EXPECT_EQ(y[32], 96);  // 400 lies halfway between 12 * 32 and 13 * 32, and 12 is even
  EXPECT_EQ(y[33], 3.25F);
}

// 448 itself needs no factor, and what is a hair above it needs 2.
TEST(Operands, MicroscalingFactorsAreTheLeastThatFit) {
  std::vector<float> x(32, 1);
  x[0] = 448;
  x[1] = 0x1p-9F;  // the least of E4M3, which is lost where it is divided by 2 and rounds to even
  EXPECT_EQ(rounded(Math::kMxfp8, {1, 1, 32, true}, x), x);
  x[0] = std::nextafter(448.0F, 500.0F);
  const auto y = rounded(Math::kMxfp8, {1, 1, 32, true}, x);
  EXPECT_EQ(y[0], 448);
  EXPECT_EQ(y[1], 0);
}

// 16 elements share a factor that E4M3 has, in units of the tensor's 6 * 448 = 2688: of a tensor whose
// largest is 2688 that unit is 1. A block whose largest is 6 has the factor 1, and one of 12 has 2.
TEST(Operands, FourBitBlocksHaveFactorsInEight) {
  std::vector<float> x(48, 0);
  x[0] = 2688;
  x[16] = 6;
  x[17] = 2.5F;   // halfway between 2 and 3, whose half is even
  x[18] = -0.7F;  // 0.5 is nearest
  x[19] = 5;      // halfway between 4 and 6
  x[20] = 1.75F;
  x[32] = 12;
  x[33] = 0.6F;  // 0.3 of 2: 0.5 is nearer than 0
  const auto y = rounded(Math::kNvfp4, {1, 1, 48, true}, x);
  EXPECT_EQ(y[0], 2688);
  EXPECT_EQ(y[16], 6);
  EXPECT_EQ(y[17], 2);
  EXPECT_EQ(y[18], -0.5F);
  EXPECT_EQ(y[19], 4);
  EXPECT_EQ(y[20], 2);
  EXPECT_EQ(y[32], 12);
  EXPECT_EQ(y[33], 1);
}

// Weights share factors over 16 x 16, so that a product and its gradient see the same numbers; values and
// gradients over the dimension that is summed.
TEST(Operands, WeightsLookTheSameFromBothSides) {
  const auto x = normal_numbers(64 * 96, 7);
  for (const Math format : {Math::kFp8Blockwise, Math::kNvfp4}) {
    EXPECT_EQ(rounded(format, {1, 64, 96, true, true}, x), rounded(format, {1, 64, 96, false, true}, x))
        << name_of(format);
    EXPECT_NE(rounded(format, {1, 64, 96, true}, x), rounded(format, {1, 64, 96, false}, x))
        << name_of(format);
  }
}

// Matrices one behind the other are rounded each by itself, but for nvfp4's factor of the tensor.
TEST(Operands, BlocksEndWithTheirMatrix) {
  const auto x = normal_numbers(2 * 40 * 32, 8);
  for (const Math format : {Math::kFp8Rowwise, Math::kFp8Blockwise, Math::kMxfp8}) {
    const auto both = rounded(format, {2, 40, 32, false}, x);
    std::vector<float> second(x.begin() + 40 * 32, x.end());
    second = rounded(format, {1, 40, 32, false}, second);
    EXPECT_TRUE(std::equal(second.begin(), second.end(), both.begin() + 40 * 32)) << name_of(format);
  }
}

// Of normal numbers: three bits of mantissa err by 2.6 %, one by 9 to 10 %, however the factor is found.
// Outliers cost a tensor's factor nothing in floats until numbers are subnormal.
TEST(Operands, NarrowerFormatsMoveNumbersFurther) {
  const auto x = normal_numbers(256 * 256, 9);
  const StoredOperand s{1, 256, 256, true};
  for (const Math format : {Math::kFp8, Math::kFp8Rowwise, Math::kFp8Blockwise, Math::kMxfp8})
    EXPECT_NEAR(distance(rounded(format, s, x), x), 0.026, 0.002) << name_of(format);
  EXPECT_NEAR(distance(rounded(Math::kNvfp4, s, x), x), 0.095, 0.01);
  auto outlier = x;
  outlier[0] = 1e6F;
  const auto rest = [&](Math format) {
    auto y = rounded(format, s, outlier);
    y[0] = x[0];
    return distance(y, x);
  };
  EXPECT_GT(rest(Math::kFp8), 0.5);     // 448 / 1e6: nearly all is below the least number
  EXPECT_LT(rest(Math::kMxfp8), 0.05);  // but for the other 31 of its block
}

// What is rounded already stays, of formats whose factors are powers of two.
TEST(Operands, RoundingTwiceIsRoundingOnce) {
  const auto x = normal_numbers(64 * 64, 10);
  for (const Math format : {Math::kFp8, Math::kMxfp8}) {
    const auto once = rounded(format, {1, 64, 64, true}, x);
    EXPECT_EQ(rounded(format, {1, 64, 64, true}, once), once) << name_of(format);
  }
}

// A number that is none stays one, and takes its block with it at most.
TEST(Operands, NotANumberStays) {
  for (const Math format : {Math::kFp8, Math::kFp8Rowwise, Math::kFp8Blockwise, Math::kMxfp8, Math::kNvfp4}) {
    std::vector<float> x(64, 1);
    std::fill_n(x.begin(), 16, NAN);
    const auto y = rounded(format, {1, 1, 64, true}, x);
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(i)])) << name_of(format);
  }
}

TEST(Operands, ZerosStayAndOtherFormatsAreRefused) {
  const std::vector<float> zeros(64);
  for (const Math format : {Math::kFp8, Math::kFp8Rowwise, Math::kFp8Blockwise, Math::kMxfp8, Math::kNvfp4})
    EXPECT_EQ(rounded(format, {1, 2, 32, true}, zeros), zeros);
  EXPECT_THROW(rounded(Math::kFp8Delayed, {1, 2, 32, true}, zeros), std::logic_error);
  EXPECT_THROW(rounded(Math::kBf16, {1, 2, 32, true}, zeros), std::logic_error);
}

}  // namespace
}  // namespace orrery::kernels
