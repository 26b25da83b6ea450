// SPDX-License-Identifier: Apache-2.0
//
// One timeline of what many devices did, by one clock.
//
// Exchanges are matched by process group, step and number (NCCL's sequence number where the trace has it,
// else the order in which the host launched those of a kind). All members of an all-reduce, all-gather or
// reduce-scatter end it together, within tens of microseconds, whenever each began: so the median difference
// of ends is the difference of two hosts' clocks, and a member's wait is the time until the last one began.
#pragma once

#include <string>
#include <vector>

#include "trace/device_trace.h"

namespace orrery::trace {

// Members of one exchange: process, and index among the timeline's slices.
struct Member {
  std::int32_t process = 0;
  std::size_t slice = 0;
};
struct Meeting {
  OpClass is = OpClass::kUnknown;
  std::int64_t bytes = 0;    // 0: not said
  std::int64_t members = 0;  // of the group, whether their traces are here or not
  std::vector<Member> here;
};

struct Clock {
  std::string file;
  double ahead_us = 0;  // of the first device's; has been taken off
  bool known = false;   // it had exchanges in common with a device whose clock is known
  std::int64_t by = 0;  // how many
};

struct Merged {
  Timeline timeline;          // `active` is when the last member had begun
  std::vector<Clock> clocks;  // by process
  std::vector<Meeting> meetings;
  std::int64_t alone = 0;  // exchanges whose partners are not here, or cannot be told
  double spread_us = 0;    // median over meetings of the time between the first and the last end
  std::int64_t steps = 0;  // of the training; 0: not said
};

// Throws InputError where two traces are of the same rank, or ends of exchanges that should agree do not.
Merged merge(std::vector<DeviceTrace> traces);

}  // namespace orrery::trace
