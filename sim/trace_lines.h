// SPDX-License-Identifier: Apache-2.0
//
// Lines of recorded traces: queues of jobs, prices. Errors name the file and the line.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace orrery::sim {

struct TraceLine {
  const std::string& file;
  std::int64_t number;
  [[noreturn]] void fail(const std::string& problem, const std::string& allowed = {}) const {
    throw InputError(file, fmt::format("line {}", number), problem, allowed);
  }
};

constexpr bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}
std::string_view trimmed(std::string_view text);
// In quotation marks, for a message.
std::string quoted(std::string_view text);

// Text as a number between -most and most; `what` it is, for a message.
double number(std::string_view text, const char* what, double most, const TraceLine& at);
// "2020-04-01 00:00:34" or "2023-05-04T08:15:30+08:00" in seconds, the zone left out; or a number of seconds.
// `what` is as for a number.
double moment(std::string_view text, const char* what, const TraceLine& at);

// Fields between commas; those in quotation marks may have commas.
std::vector<std::string_view> cells(std::string_view line);

// Lines that are not blank, with their numbers.
template <class F>
void each_line(std::string_view text, const std::string& file, const F& f) {
  for (std::int64_t n = 1; !text.empty(); ++n) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty()) f(line, TraceLine{file, n});
  }
}

}  // namespace orrery::sim
