// SPDX-License-Identifier: Apache-2.0
//
// What a rank does after its last backward: compute and communication, each one job after the other, that
// slow each other down while both are at it. Internal to sim/estimate/.
#pragma once

#include <cstdint>
#include <span>

namespace orrery::sim {

struct TailJob {
  double duration = 0;  // alone
  // It begins when this job of the other lane has ended, an index, and not before this time.
  std::int64_t after = -1;
  double not_before = 0;
};

struct TailEnds {
  double compute = 0, communication = 0;
};

// When the lanes end that begin at `start`. While both run, a compute job takes `compute_slowdown` times as
// long, and a job of communication `communication_slowdown` times. The jobs must not wait for each other in a
// circle.
TailEnds run_tail(double start, std::span<const TailJob> compute, std::span<const TailJob> communication,
                  double compute_slowdown, double communication_slowdown);

}  // namespace orrery::sim
