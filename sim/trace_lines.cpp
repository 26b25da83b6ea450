// SPDX-License-Identifier: Apache-2.0
#include "sim/trace_lines.h"

#include <charconv>
#include <chrono>

#include "core/text.h"

namespace orrery::sim {

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && is_blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_blank(s.back())) s.remove_suffix(1);
  return s;
}

std::string quoted(std::string_view s) {
  return in_quotes(shortened(s, 40));
}

double number(std::string_view text, const char* what, double most, const TraceLine& at) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value == value))
    at.fail(fmt::format("{} is not a number ({})", quoted(text), what));
  if (value > most || value < -most)
    at.fail(fmt::format("{} is out of range ({})", quoted(text), what),
            fmt::format("allowed: up to {:.0f}", most));
  return value;
}

double moment(std::string_view text, const char* what, const TraceLine& at) {
  constexpr std::string_view kForm = "dddd-dd-dd dd:dd:dd";
  constexpr double kMostSeconds = 1e12;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  bool dated = text.size() >= kForm.size();
  for (std::size_t i = 0; dated && i < kForm.size(); ++i)
    dated = kForm[i] == 'd' ? digit(text[i]) : text[i] == kForm[i] || (i == 10 && text[i] == 'T');
  if (!dated) return number(text, what, kMostSeconds, at);
  const auto part = [&](std::size_t from, std::size_t length) {
    int v = 0;
    for (std::size_t i = from; i < from + length; ++i) v = v * 10 + (text[i] - '0');
    return v;
  };
  const int month = part(5, 2), day = part(8, 2);
  if (month < 1 || month > 12 || day < 1 || day > 31) at.fail(quoted(text) + " is not a date");
  // Days that a month does not have are of the next one.
  const std::chrono::sys_days first{std::chrono::year(part(0, 4)) / month / 1};
  const auto days = (first + std::chrono::days(day - 1)).time_since_epoch();
  return static_cast<double>(std::chrono::seconds(days).count() + part(11, 2) * 3600 + part(14, 2) * 60 +
                             part(17, 2));
}

std::vector<std::string_view> cells(std::string_view line) {
  std::vector<std::string_view> out;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') inside = !inside;
    if (i < line.size() && (line[i] != ',' || inside)) continue;
    std::string_view cell = trimmed(line.substr(begin, i - begin));
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') cell = cell.substr(1, cell.size() - 2);
    out.push_back(cell);
    begin = i + 1;
  }
  return out;
}

}  // namespace orrery::sim
