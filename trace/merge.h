// SPDX-License-Identifier: Apache-2.0
//
// One timeline of what many devices did, by one clock.
//
// Exchanges are matched by process group, step and number: NCCL's sequence number where the trace has it,
// else the order in which the host launched those of a class. All members of an all-reduce, all-gather or
// reduce-scatter end it together, within tens of microseconds, whenever each began: so the median difference
// of ends is the difference of two hosts' clocks. Differences are taken over from device to device, first
// where exchanges end together and where most of them agree. A member's wait is the time until the last one
// began.
#pragma once

#include <string>
#include <vector>

#include "trace/device_trace.h"

namespace orrery::trace {

// A member of an exchange: process, and index among the timeline's slices.
struct Member {
  std::int32_t process = 0;
  std::size_t slice = 0;
};
struct Meeting {
  OpClass is = OpClass::kUnknown;
  std::int64_t bytes = 0;    // 0: not said
  std::int64_t members = 0;  // of the group, whether their traces are here or not
  std::vector<Member> here;
  bool whole() const { return static_cast<std::int64_t>(here.size()) == members; }
};

struct Process {
  std::string file;
  std::int64_t rank = -1;  // of the job; -1: not said
  std::int64_t device = 0;
  double ahead_us = 0;  // of `reference`'s clock; has been taken off
  std::int32_t reference =
      0;                // the first process that it has exchanges in common with, over others; or itself
  std::int64_t by = 0;  // exchanges that say so
};

struct Merged {
  Timeline timeline;  // `active` is when the last member had begun, where all members are here
  std::vector<Process> processes;
  std::vector<Meeting> meetings;
  std::int64_t alone = 0;   // exchanges whose partners are not here, or cannot be told
  bool groups_said = true;  // else all devices are taken for one group
  double spread_us = 0;     // median over meetings of the time between the first and the last end
  std::int64_t steps = 0;   // of the training, in which something ran; 0: not said
};

// Throws InputError where two traces are of the same rank or of different profilers, or where the ends of
// exchanges of one group do not agree.
Merged merge(std::vector<DeviceTrace> traces);

}  // namespace orrery::trace
