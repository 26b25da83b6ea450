// SPDX-License-Identifier: Apache-2.0
//
// A schedule as a timeline, which orrery-gui and Perfetto open: a process for each node, a slice for each
// job on it, on the stream "node", and on "beside 1", .. where others are on the node too. A slice is named
// as its job; its segment is the tenant; its micro-batch counts the job's attempts. Slices of preempted
// attempts are named "NAME (preempted)".
//
// A timeline holds 23 days. The times of a longer schedule are divided by 1,000, or by 1,000,000, and its
// source says so.
#pragma once

#include "core/timeline.h"
#include "sim/scheduling/schedule.h"

namespace orrery::sim {

// Throws Error where there would be too many slices.
Timeline gantt(const JobQueue& queue, const ClusterNodes& nodes, const ScheduleOutcome& outcome);

}  // namespace orrery::sim
