// SPDX-License-Identifier: Apache-2.0
//
// Strong types for physical quantities, and unit strings at the edges.
//
//   Time       integer picoseconds     one step: up to 106 days
//   Bytes      integer bytes
//   Bandwidth  integer bytes/second    always per direction (NVLink "600 GB/s" is 300)
//   Flop       double                  multiply and add are two; exact below 2^53, sums are ordered
//   FlopRate   double FLOP/second      dense, never the "with sparsity" figure
//   Dollars    integer micro-dollars
//   RunTime    double, seconds: a whole training run, which may take years
//
// Text carries its unit: "400 Gb/s", "80 GiB", "2 us", "312 TFLOP/s", "$32.77". GB is 1e9 bytes and GiB
// is 2^30; Gb is 1e9 bits. A bare number for a dimensioned field is an error (see core/fields.h).
//
//   Bytes b = *parse_bytes("80 GiB");                 // 85'899'345'920
//   Time t = transfer_time(b, *parse_bandwidth("50 GB/s"));
//   fmt::print("{}", format(t));                      // "1.718 s"
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace orrery {

// Integers that do not wrap: a result that does not fit is the nearest number that does.
constexpr std::int64_t saturated(bool negative) {
  return negative ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}
constexpr std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? saturated(b < 0) : sum;
}
constexpr std::int64_t saturating_subtract(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  return __builtin_sub_overflow(a, b, &difference) ? saturated(b > 0) : difference;
}
constexpr std::int64_t saturating_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? saturated((a < 0) != (b < 0)) : product;
}
constexpr double saturating_add(double a, double b) {
  return a + b;
}
constexpr double saturating_subtract(double a, double b) {
  return a - b;
}
constexpr double saturating_multiply(double a, double b) {
  return a * b;
}
// A double rounded towards zero; NaN is 0.
constexpr std::int64_t saturating_cast(double v) {
  constexpr double kLimit = 9223372036854775808.0;
  if (v >= kLimit || v < -kLimit) return saturated(v < 0);
  return v == v ? static_cast<std::int64_t>(v) : 0;
}

// A number with a dimension. Sums stay in the dimension and saturate, ratios leave it.
template <class Tag, class Representation>
struct Quantity {
  using Rep = Representation;
  Rep value{};

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  constexpr Quantity& operator+=(Quantity o) { return *this = *this + o; }
  constexpr Quantity& operator-=(Quantity o) { return *this = *this - o; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return {saturating_add(a.value, b.value)}; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return {saturating_subtract(a.value, b.value)};
  }
  friend constexpr Quantity operator*(Quantity a, Rep k) { return {saturating_multiply(a.value, k)}; }
  friend constexpr Quantity operator*(Rep k, Quantity a) { return a * k; }
  friend constexpr Quantity operator/(Quantity a, Rep k) { return {a.value / k}; }
  friend constexpr double ratio(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
};

using Time = Quantity<struct TimeTag, std::int64_t>;
using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Bandwidth = Quantity<struct BandwidthTag, std::int64_t>;
using Flop = Quantity<struct FlopTag, double>;
using FlopRate = Quantity<struct FlopRateTag, double>;
using Dollars = Quantity<struct DollarsTag, std::int64_t>;
using RunTime = Quantity<struct RunTimeTag, double>;

inline constexpr std::int64_t kPicosecondsPerSecond = 1'000'000'000'000;
// 53 days, the most that a predicted step may take: the sum of two such times does not saturate.
inline constexpr Time kLongestStep{std::int64_t{1} << 62};
inline constexpr std::int64_t kMicroDollars = 1'000'000;
inline constexpr double kGiB = 1073741824.0;

constexpr double seconds(Time t) {
  return static_cast<double>(t.value) / static_cast<double>(kPicosecondsPerSecond);
}
constexpr double dollars(Dollars d) {
  return static_cast<double>(d.value) / static_cast<double>(kMicroDollars);
}
// Rounds to the nearest picosecond; saturates at the largest Time. A NaN or negative becomes zero.
Time from_seconds(double s);
Dollars from_dollars(double d);  // saturates; NaN becomes zero

// a b / c rounded down, with a product of 128 bits; the largest number when it does not fit. None is
// negative.
std::int64_t mul_div(std::int64_t a, std::int64_t b, std::int64_t c);
std::int64_t mul_div_up(std::int64_t a, std::int64_t b, std::int64_t c);  // rounded up

// bytes / bandwidth, rounded up, exact for any operands (128-bit intermediate). Zero bytes take no time.
Time transfer_time(Bytes bytes, Bandwidth bandwidth);

// Text to value; saturates. Empty when the text is not a finite number followed by a unit of the right
// dimension.
std::optional<Time> parse_time(std::string_view text);
std::optional<Bytes> parse_bytes(std::string_view text);
std::optional<Bandwidth> parse_bandwidth(std::string_view text);
std::optional<FlopRate> parse_flop_rate(std::string_view text);
std::optional<Dollars> parse_dollars(std::string_view text);
std::optional<RunTime> parse_run_time(std::string_view text);  // "36 h", "20 days", "6 weeks"

// Value to text: exact enough to read back to the same value (files), or three digits (people).
std::string to_text(Time t);
std::string to_text(Bytes b);
std::string to_text(Bandwidth b);
std::string to_text(FlopRate f);
std::string to_text(Dollars d);
std::string to_text(RunTime t);
std::string format(Time t);
std::string format(Bytes b);
std::string format(Bandwidth b);
std::string format(FlopRate f);
std::string format(Dollars d);
std::string format(RunTime t);

}  // namespace orrery
