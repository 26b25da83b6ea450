// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace orrery::kernels {
namespace {

constexpr StochasticRounding kRounding{.on = true, .seed = 20261123, .site = 3};

bool is_bfloat16(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0xffff) == 0;
}

// 1 + 2^-10 lies an eighth of the way from 1 to 1 + 2^-7: it is rounded up with probability 1/8. Of n =
// 80,000 draws that is 10,000 with a standard deviation of sqrt(n / 8 * 7 / 8) = 94.
TEST(StochasticRounding, GoesUpAsOftenAsTheNumberLiesUp) {
  for (const float sign : {1.0F, -1.0F}) {
    std::vector<float> x(80000, sign * (1 + 1.0F / 1024));
    round_to_bfloat16(kRounding, 5, std::ssize(x), x.data());
    std::ptrdiff_t up = 0;
    for (const float v : x) {
      ASSERT_TRUE(v == sign || v == sign * (1 + 1.0F / 128)) << v;
      up += v != sign;
    }
    EXPECT_NEAR(static_cast<double>(up), 10000, 6 * 94);
  }
}

TEST(StochasticRounding, LeavesWhatNeedsNone) {
  const float most = std::bit_cast<float>(0x7f7f0000U);  // the largest bf16
  const std::vector<float> exact{0, -0.0F, 1, -1.5F, 3.0e-39F, most, -most, INFINITY, -INFINITY};
  std::vector<float> x(exact);
  x[4] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x[4]) & 0xffff0000);  // below the normal numbers
  const std::vector<float> before(x);
  for (Index step = 1; step < 50; ++step) round_to_bfloat16(kRounding, step, std::ssize(x), x.data());
  EXPECT_EQ(x, before);
  float nan = std::numeric_limits<float>::quiet_NaN();
  round_to_bfloat16(kRounding, 1, 1, &nan);
  EXPECT_TRUE(std::isnan(nan));
  // Nothing finite becomes infinite.
  std::vector<float> large(1000, std::numeric_limits<float>::max());
  round_to_bfloat16(kRounding, 1, std::ssize(large), large.data());
  for (const float v : large) ASSERT_EQ(v, most);
}

// A shard rounds as the whole does, wherever it begins; another step, tensor or seed differently.
TEST(StochasticRounding, IsAFunctionOfPlaceStepTensorAndSeed) {
  std::vector<float> whole(300);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = std::sin(static_cast<float>(i + 1));
  const std::vector<float> original(whole);
  const auto rounded = [&](StochasticRounding r, Index step, std::size_t first, std::size_t n) {
    r.first = static_cast<Index>(first);
    std::vector<float> part(original.begin() + static_cast<std::ptrdiff_t>(first),
                            original.begin() + static_cast<std::ptrdiff_t>(first + n));
    round_to_bfloat16(r, step, static_cast<Index>(n), part.data());
    return part;
  };
  const std::vector<float> all = rounded(kRounding, 7, 0, 300);
  for (const float v : all) ASSERT_TRUE(is_bfloat16(v));
  for (const std::size_t cut : {1U, 8U, 13U, 150U, 299U}) {
    std::vector<float> joined = rounded(kRounding, 7, 0, cut);
    const std::vector<float> rest = rounded(kRounding, 7, cut, 300 - cut);
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, all) << cut;
  }
  StochasticRounding other = kRounding;
  other.site = 4;
  EXPECT_NE(rounded(other, 7, 0, 300), all);
  other = kRounding;
  other.seed += 1;
  EXPECT_NE(rounded(other, 7, 0, 300), all);
  EXPECT_NE(rounded(kRounding, 8, 0, 300), all);
}

}  // namespace
}  // namespace orrery::kernels
