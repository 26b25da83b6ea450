// SPDX-License-Identifier: Apache-2.0
#include "core/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace orrery {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

// Each table lists the unit that files are written in first.
constexpr std::array kTimeUnits{Unit{"ps", 1},   Unit{"ns", 1e3},    Unit{"us", 1e6},   Unit{"ms", 1e9},
                                Unit{"s", 1e12}, Unit{"min", 60e12}, Unit{"h", 3600e12}};
constexpr std::array kByteUnits{Unit{"B", 1},           Unit{"kB", 1e3},   Unit{"MB", 1e6},
                                Unit{"GB", 1e9},        Unit{"TB", 1e12},  Unit{"KiB", 1024.0},
                                Unit{"MiB", 1048576.0}, Unit{"GiB", kGiB}, Unit{"TiB", 1024 * kGiB}};
constexpr std::array kBandwidthUnits{Unit{"B/s", 1},        Unit{"kB/s", 1e3},     Unit{"MB/s", 1e6},
                                     Unit{"GB/s", 1e9},     Unit{"TB/s", 1e12},    Unit{"MiB/s", 1048576.0},
                                     Unit{"GiB/s", kGiB},   Unit{"Mb/s", 1e6 / 8}, Unit{"Gb/s", 1e9 / 8},
                                     Unit{"Tb/s", 1e12 / 8}};
constexpr std::array kFlopRateUnits{Unit{"FLOP/s", 1}, Unit{"GFLOP/s", 1e9}, Unit{"TFLOP/s", 1e12},
                                    Unit{"PFLOP/s", 1e15}};

constexpr std::array kRunTimeUnits{Unit{"s", 1},         Unit{"min", 60},      Unit{"h", 3600},
                                   Unit{"day", 86400},   Unit{"days", 86400},  Unit{"d", 86400},
                                   Unit{"week", 604800}, Unit{"weeks", 604800}};

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

std::optional<double> parse(std::string_view text, std::span<const Unit> units) {
  constexpr double kMost = std::numeric_limits<double>::max();
  text = trim(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument || !std::isfinite(number)) return std::nullopt;
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error == std::errc::result_out_of_range &&
      text.substr(0, length).find('-', 1) == std::string_view::npos)
    number = text.starts_with('-') ? -kMost : kMost;
  for (const Unit& unit : units) {
    if (unit.name == trim(text.substr(length))) return std::clamp(number * unit.scale, -kMost, kMost);
  }
  return std::nullopt;
}

template <class Q>
std::optional<Q> parse_integer(std::string_view text, std::span<const Unit> units) {
  const auto scaled = parse(text, units);
  return scaled ? std::optional(Q{saturating_cast(std::round(*scaled))}) : std::nullopt;
}

std::string trimmed_number(double v) {
  return fmt::format("{:.4g}", v);
}

}  // namespace

Time from_seconds(double s) {
  const double ps = s * static_cast<double>(kPicosecondsPerSecond);
  if (!(ps > 0)) return Time{0};
  if (ps >= 9.2e18) return Time{std::numeric_limits<std::int64_t>::max()};
  return Time{static_cast<std::int64_t>(ps + 0.5)};
}

Dollars from_dollars(double d) {
  return Dollars{saturating_cast(std::round(d * static_cast<double>(kMicroDollars)))};
}

namespace {

// (a b + more) / c.
std::int64_t mul_div(std::int64_t a, std::int64_t b, std::int64_t more, std::int64_t c) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  if (c <= 0) return kMax;
  std::int64_t sum = 0;
  if (!__builtin_mul_overflow(a, b, &sum) && !__builtin_add_overflow(sum, more, &sum)) return sum / c;
  __extension__ using Wide = unsigned __int128;
  const Wide q =
      (static_cast<Wide>(a) * static_cast<Wide>(b) + static_cast<Wide>(more)) / static_cast<Wide>(c);
  return q > static_cast<Wide>(kMax) ? kMax : static_cast<std::int64_t>(q);
}

}  // namespace

std::int64_t mul_div(std::int64_t a, std::int64_t b, std::int64_t c) {
  return mul_div(a, b, 0, c);
}
std::int64_t mul_div_up(std::int64_t a, std::int64_t b, std::int64_t c) {
  return mul_div(a, b, c - 1, c);
}

Time transfer_time(Bytes bytes, Bandwidth bandwidth) {
  if (bytes.value <= 0) return Time{0};
  return Time{mul_div_up(bytes.value, kPicosecondsPerSecond, bandwidth.value)};
}

std::optional<Time> parse_time(std::string_view text) {
  return parse_integer<Time>(text, kTimeUnits);
}
std::optional<Bytes> parse_bytes(std::string_view text) {
  return parse_integer<Bytes>(text, kByteUnits);
}
std::optional<Bandwidth> parse_bandwidth(std::string_view text) {
  return parse_integer<Bandwidth>(text, kBandwidthUnits);
}
std::optional<FlopRate> parse_flop_rate(std::string_view text) {
  const auto v = parse(text, kFlopRateUnits);
  return v ? std::optional(FlopRate{*v}) : std::nullopt;
}
std::optional<Dollars> parse_dollars(std::string_view text) {
  text = trim(text);
  if (text.empty() || text.front() != '$') return std::nullopt;
  static constexpr std::array kPlain{Unit{"", 1e6}};
  return parse_integer<Dollars>(text.substr(1), kPlain);
}

std::optional<RunTime> parse_run_time(std::string_view text) {
  const auto v = parse(text, kRunTimeUnits);
  return v ? std::optional(RunTime{*v}) : std::nullopt;
}

std::string to_text(Time t) {
  return fmt::format("{} ps", t.value);
}
std::string to_text(Bytes b) {
  return fmt::format("{} B", b.value);
}
std::string to_text(Bandwidth b) {
  return fmt::format("{} B/s", b.value);
}
std::string to_text(FlopRate f) {
  return fmt::format("{} TFLOP/s", f.value / 1e12);
}
std::string to_text(Dollars d) {
  return fmt::format("${}", dollars(d));
}

std::string to_text(RunTime t) {
  return fmt::format("{} s", t.value);
}

std::string format(RunTime t) {
  const double s = t.value;
  if (std::abs(s) >= 172800) return trimmed_number(s / 86400) + " days";
  if (std::abs(s) >= 7200) return trimmed_number(s / 3600) + " h";
  return trimmed_number(s) + " s";
}
std::string format(Time t) {
  const double s = seconds(t);
  if (t.value == 0) return "0 s";
  if (std::abs(s) >= 1) return format(RunTime{s});
  if (std::abs(s) >= 1e-3) return trimmed_number(s * 1e3) + " ms";
  if (std::abs(s) >= 1e-6) return trimmed_number(s * 1e6) + " us";
  return trimmed_number(s * 1e9) + " ns";
}
std::string format(Bytes b) {
  const double v = static_cast<double>(b.value);
  if (std::abs(v) >= kGiB) return fmt::format("{:.2f} GiB", v / kGiB);
  if (std::abs(v) >= 1048576.0) return fmt::format("{:.1f} MiB", v / 1048576.0);
  if (std::abs(v) >= 1024.0) return fmt::format("{:.1f} KiB", v / 1024.0);
  return fmt::format("{} B", b.value);
}
std::string format(Bandwidth b) {
  return trimmed_number(static_cast<double>(b.value) / 1e9) + " GB/s";
}
std::string format(FlopRate f) {
  return trimmed_number(f.value / 1e12) + " TFLOP/s";
}
std::string format(Dollars d) {
  const double v = dollars(d);
  if (v >= 1000) return fmt::format("${:.0f}", v);
  return fmt::format("${:.2f}", v);
}

}  // namespace orrery
