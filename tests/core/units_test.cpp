// SPDX-License-Identifier: Apache-2.0
#include "core/units.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace orrery
