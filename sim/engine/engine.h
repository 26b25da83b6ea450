// SPDX-License-Identifier: Apache-2.0
//
// The event engine: runs a program against durations and yields its timeline.
//
// State is one lane per (rank class, stream). A lane runs its ops in order; an op starts when its waits
// are met, the host has issued it, and, for a transfer, the other end is there too. A running op is
// remaining work with a rate: while compute and a collective run on the same device, each is slowed by
// the profile's overlap factors; while flows share links, each has its max-min fair rate. Events are ordered
// by (time, sequence), times are integers, so equal input gives equal output everywhere. O(ops log lanes).
//
// Invariants: lanes never run backwards in time; the step is at least any lane's busy time.
#pragma once

#include <array>
#include <vector>

#include "core/timeline.h"
#include "program/program.h"
#include "sim/network/sharing.h"

namespace orrery::sim {

// Duration of each op: [class][segment][op]. A receive's own duration is unused: its send decides.
using Durations = std::vector<std::vector<std::vector<Time>>>;

struct EngineOptions {
  double compute_slowdown = 1.0;        // of compute while a collective runs on the device
  double communication_slowdown = 1.0;  // of a collective while compute runs
  Time host_op{0};                      // host time to issue one op (eager launch)
  Time host_segment{0};                 // host time to issue a segment (graph launch)
  bool record = true;                   // keep slices
};

// Where a rank's compute stream spent the step. The parts add up to the step exactly.
struct ClassReport {
  Time forward, backward, recompute, optimizer;
  std::array<Time, program::kStreamCount> exposed{};  // compute waited for this stream
  Time host;                                          // compute waited to be issued
  std::array<Time, program::kStreamCount> busy{};
  Time compute() const { return forward + backward + recompute + optimizer; }
};

// A link that flows of several patterns met on.
struct LinkReport {
  SharedLink link;
  Time lost;  // by the flows it held back, over what they take alone; summed over stages and streams
};

struct SimulationResult {
  Time step;
  std::int64_t ops = 0;  // op instances walked
  std::vector<ClassReport> classes;
  std::vector<LinkReport> links;  // that were shared, the one that cost most time first
  Timeline timeline;
};

// Throws Error naming the ops at the heads of their lanes if the program cannot finish. `sharing` says
// which links ops share; without it none do.
SimulationResult simulate(const program::Program& program, const Durations& durations,
                          const EngineOptions& options, const Sharing* sharing = nullptr);

}  // namespace orrery::sim
