// SPDX-License-Identifier: Apache-2.0
#include "core/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace orrery {
namespace {

TEST(Units, GigabytesAreDecimalAndGibibytesBinary) {
  EXPECT_EQ(parse_bytes("80 GiB")->value, 80LL * 1024 * 1024 * 1024);
  EXPECT_EQ(parse_bytes("80 GB")->value, 80'000'000'000);
  EXPECT_EQ(parse_bandwidth("400 Gb/s")->value, 50'000'000'000);  // 400 Gb/s is 50 GB/s
  EXPECT_EQ(parse_time("2 us")->value, 2'000'000);
  EXPECT_DOUBLE_EQ(parse_flop_rate("312 TFLOP/s")->value, 312e12);
  EXPECT_EQ(parse_dollars("$32.77")->value, 32'770'000);
}

TEST(Units, ABareNumberOrAnotherDimensionIsRefused) {
  for (const char* text :
       {"80", "", "GiB", "80 GiB/s", "80 Gib", "1e999 GiB", "nan GiB", "9e30 TB", "80 GiB extra"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
  EXPECT_FALSE(parse_dollars("32.77"));
  EXPECT_FALSE(parse_bandwidth("400 GB"));
}

TEST(Units, TextReadsBackToTheSameValue) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    const auto v = static_cast<std::int64_t>(random() % (1ULL << 52));
    EXPECT_EQ(parse_time(to_text(Time{v}))->value, v);
    EXPECT_EQ(parse_bytes(to_text(Bytes{v}))->value, v);
    EXPECT_EQ(parse_bandwidth(to_text(Bandwidth{v}))->value, v);
  }
}

TEST(Units, TransferTimeRoundsUpAndNeverOverflows) {
  EXPECT_EQ(transfer_time(Bytes{1}, Bandwidth{3}).value, 333'333'333'334);
  EXPECT_EQ(transfer_time(Bytes{50'000'000'000}, Bandwidth{50'000'000'000}).value, kPicosecondsPerSecond);
  EXPECT_EQ(transfer_time(Bytes{0}, Bandwidth{1}).value, 0);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(transfer_time(Bytes{kMost}, Bandwidth{1}).value, kMost);
}

// Sums, differences and products are what exact arithmetic gives, or the nearest number that there is.
TEST(Units, ArithmeticSaturates) {
  constexpr unsigned kSeed = 5;
  std::mt19937_64 random(kSeed);
  __extension__ using Wide = __int128;
  constexpr Wide kLeast = std::numeric_limits<std::int64_t>::min(),
                 kMost = std::numeric_limits<std::int64_t>::max();
  const auto nearest = [&](Wide exact) {
    return static_cast<std::int64_t>(std::clamp(exact, kLeast, kMost));
  };
  for (int i = 0; i < 20'000; ++i) {
    // Of any magnitude, and often at an end.
    const auto any = [&] {
      const auto v = static_cast<std::int64_t>(random() >> (random() % 64));
      return random() % 8 == 0 ? (random() % 2 == 0 ? INT64_MAX : INT64_MIN) : random() % 2 == 0 ? v : -v;
    };
    const std::int64_t a = any(), b = any();
    EXPECT_EQ((Time{a} + Time{b}).value, nearest(Wide{a} + b)) << a << " + " << b << ", seed " << kSeed;
    EXPECT_EQ((Time{a} - Time{b}).value, nearest(Wide{a} - b)) << a << " - " << b << ", seed " << kSeed;
    EXPECT_EQ((Bytes{a} * b).value, nearest(Wide{a} * b)) << a << " * " << b << ", seed " << kSeed;
    Bytes sum{a};
    sum += Bytes{b};
    EXPECT_EQ(sum, Bytes{a} + Bytes{b});
  }
}

TEST(Units, DoublesBecomeTheNearestInteger) {
  EXPECT_EQ(saturating_cast(2.9), 2);
  EXPECT_EQ(saturating_cast(-2.9), -2);
  EXPECT_EQ(saturating_cast(1e300), INT64_MAX);
  EXPECT_EQ(saturating_cast(9223372036854775808.0), INT64_MAX);
  EXPECT_EQ(saturating_cast(9223372036854774784.0), 9223372036854774784);
  EXPECT_EQ(saturating_cast(-1e300), INT64_MIN);
  EXPECT_EQ(saturating_cast(std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(from_dollars(1e300).value, INT64_MAX);
  EXPECT_EQ(from_seconds(1e300).value, INT64_MAX);
}

}  // namespace
}  // namespace orrery
