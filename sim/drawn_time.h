// SPDX-License-Identifier: Apache-2.0
//
// Times of days to years on a timeline, whose integer picoseconds hold 106 days: longer ones are drawn a
// thousand times smaller, or a million.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "sim/reliability/clock.h"

namespace orrery::sim {

class DrawnTime {
 public:
  // Adds to a timeline's `source` how many seconds are drawn as one.
  DrawnTime(Ticks length, std::string& source) {
    constexpr double kLongest = 23 * kSecondsPerDay;
    while (seconds(length) / static_cast<double>(scale_) > kLongest) scale_ *= 1000;
    if (scale_ > 1) source += fmt::format(", {} s of it are one here", scale_);
  }
  Time operator()(Ticks since_begin) const { return Time{since_begin.value / scale_ * 1000}; }

 private:
  std::int64_t scale_ = 1;
};

}  // namespace orrery::sim
