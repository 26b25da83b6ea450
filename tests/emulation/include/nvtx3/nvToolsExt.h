// SPDX-License-Identifier: Apache-2.0
//
// Ranges of a profile's timeline, which the emulated device only counts.
#pragma once

namespace emulation {
struct Ranges {
  int open = 0;          // on this thread
  long long opened = 0;  // so far
};
inline thread_local Ranges ranges;
}  // namespace emulation

inline int nvtxRangePushA(const char*) {
  ++emulation::ranges.opened;
  return emulation::ranges.open++;
}
inline int nvtxRangePop() {
  return --emulation::ranges.open;
}
