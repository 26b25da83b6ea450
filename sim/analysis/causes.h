// SPDX-License-Identifier: Apache-2.0
//
// Why two runs take different times: what their processes did on average, compute and what compute waited for
// (statistics.h).
#pragma once

#include <string>
#include <vector>

#include "sim/analysis/lanes.h"

namespace orrery::sim {

struct Cause {
  std::string name;                  // "compute", or as Idle has it: a stream, "launch", "end of step"
  double first_s = 0, second_s = 0;  // seconds of a process
  double difference() const { return second_s - first_s; }
};

// The largest difference first. Of each run all causes add up to its length.
std::vector<Cause> causes(const Lanes& first, const Lanes& second);

}  // namespace orrery::sim
