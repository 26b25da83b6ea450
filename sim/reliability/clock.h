// SPDX-License-Identifier: Apache-2.0
//
// Time of a run of many steps: integer nanoseconds, 292 years at the most. core/units.h has Time, integer
// picoseconds, for what happens inside a step, and RunTime, a double, for what people write.
#pragma once

#include <cmath>
#include <limits>

#include "core/limits.h"
#include "core/units.h"

namespace orrery::sim {

using Ticks = Quantity<struct TicksTag, std::int64_t>;

inline constexpr double kTicksPerSecond = 1e9;
inline constexpr double kSecondsPerDay = 86'400;
inline constexpr Ticks kNoTick{std::numeric_limits<std::int64_t>::max()};  // later than every event
// A simulated run ends before: eight times the longest run that a file may name, 219 years.
inline constexpr Ticks kLongestSimulatedRun{static_cast<std::int64_t>(8 * limits::kLongestRun * 1e9)};

// To the nearest tick; saturates, and NaN is 0.
inline Ticks ticks(double s) {
  return {saturating_cast(std::round(s * kTicksPerSecond))};
}
inline Ticks ticks(RunTime t) {
  return ticks(t.value);
}
constexpr double seconds(Ticks t) {
  return static_cast<double>(t.value) / kTicksPerSecond;
}
constexpr double days(Ticks t) {
  return seconds(t) / kSecondsPerDay;
}

}  // namespace orrery::sim
