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

// Bits are eighths of bytes, and a step of a unit is 1000, or 1024 with an i.
TEST(Units, EachUnitIsItsMultiple) {
  const std::pair<const char*, std::int64_t> times[] = {{"1 ps", 1},
                                                        {"1 ns", 1'000},
                                                        {"1 us", 1'000'000},
                                                        {"1 ms", 1'000'000'000},
                                                        {"1 s", kPicosecondsPerSecond},
                                                        {"1 min", 60 * kPicosecondsPerSecond},
                                                        {"1 h", 3600 * kPicosecondsPerSecond}};
  for (const auto& [text, value] : times) EXPECT_EQ(parse_time(text)->value, value) << text;
  const std::pair<const char*, std::int64_t> bytes[] = {{"1 B", 1},
                                                        {"1 kB", 1'000},
                                                        {"1 MB", 1'000'000},
                                                        {"1 GB", 1'000'000'000},
                                                        {"1 TB", 1'000'000'000'000},
                                                        {"1 KiB", 1LL << 10},
                                                        {"1 MiB", 1LL << 20},
                                                        {"1 GiB", 1LL << 30},
                                                        {"1 TiB", 1LL << 40}};
  for (const auto& [text, value] : bytes) EXPECT_EQ(parse_bytes(text)->value, value) << text;
  const std::pair<const char*, std::int64_t> bandwidths[] = {{"1 B/s", 1},
                                                             {"1 kB/s", 1'000},
                                                             {"1 MB/s", 1'000'000},
                                                             {"1 GB/s", 1'000'000'000},
                                                             {"1 TB/s", 1'000'000'000'000},
                                                             {"1 MiB/s", 1LL << 20},
                                                             {"1 GiB/s", 1LL << 30},
                                                             {"1 Mb/s", 125'000},
                                                             {"1 Gb/s", 125'000'000},
                                                             {"1 Tb/s", 125'000'000'000}};
  for (const auto& [text, value] : bandwidths) EXPECT_EQ(parse_bandwidth(text)->value, value) << text;
  const std::pair<const char*, double> rates[] = {
      {"1 FLOP/s", 1}, {"1 GFLOP/s", 1e9}, {"1 TFLOP/s", 1e12}, {"1 PFLOP/s", 1e15}};
  for (const auto& [text, value] : rates) EXPECT_EQ(parse_flop_rate(text)->value, value) << text;
}

// What people read: the largest unit of which there is one; of hours and days, two.
TEST(Units, AreShownInTheLargestUnitThatFits) {
  const auto time = [](double s) { return format(from_seconds(s)); };
  EXPECT_EQ(time(0), "0 s");
  EXPECT_EQ(time(250e-9), "250 ns");
  EXPECT_EQ(time(1.5e-6), "1.5 us");
  EXPECT_EQ(time(2.5e-3), "2.5 ms");
  EXPECT_EQ(time(89.349), "89.35 s");
  EXPECT_EQ(time(7199), "7199 s");
  EXPECT_EQ(time(9000), "2.5 h");
  EXPECT_EQ(time(86400), "24 h");
  EXPECT_EQ(time(3 * 86400), "3 days");
  EXPECT_EQ(format(Bytes{1023}), "1023 B");
  EXPECT_EQ(format(Bytes{1536}), "1.5 KiB");
  EXPECT_EQ(format(Bytes{5LL << 19}), "2.5 MiB");
  EXPECT_EQ(format(Bytes{5LL << 29}), "2.50 GiB");
  EXPECT_EQ(format(Bandwidth{12'500'000'000}), "12.5 GB/s");
  EXPECT_EQ(format(FlopRate{312e12}), "312 TFLOP/s");
  EXPECT_EQ(format(from_dollars(32.774)), "$32.77");
  EXPECT_EQ(format(from_dollars(999.5)), "$999.50");
  EXPECT_EQ(format(from_dollars(1551.2)), "$1551");
}

TEST(Units, ABareNumberOrAnotherDimensionIsRefused) {
  for (const char* text :
       {"80", "", "GiB", "80 GiB/s", "80 Gib", "nan GiB", "inf GiB", "80 GiB extra", "1e999"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
  EXPECT_FALSE(parse_dollars("32.77"));
  EXPECT_FALSE(parse_bandwidth("400 GB"));
}

TEST(Units, WhatDoesNotFitSaturates) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const char* text : {"9e30 TB", "1e999 GiB"}) EXPECT_EQ(parse_bytes(text)->value, kMost) << text;
  EXPECT_EQ(parse_bytes("-1e999 GiB")->value, -kMost - 1);
  EXPECT_EQ(parse_bytes("1e-999 GiB")->value, 0);
  EXPECT_EQ(parse_run_time("1e308 weeks")->value, std::numeric_limits<double>::max());
  EXPECT_EQ(parse_run_time("1e999 h")->value, std::numeric_limits<double>::max());
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
