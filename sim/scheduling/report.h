// SPDX-License-Identifier: Apache-2.0
//
// A schedule in numbers: of the cluster, and of each tenant.
//
//   ScheduleReport r = report_of(queue, nodes, outcome);
//   r.makespan_s; r.held; r.all.wait.mean;
//
// Shares are of device time, devices * makespan, where the makespan goes from the first submission to the
// last end. They add up to 1: useful + slow + lost + checkpoint + restart + unasked + free = 1.
//
//   held            what jobs held; with `free` it is 1
//   unasked         of it, devices of whole nodes that the job did not ask for
//   fragmentation   of it, free while the head of the queue asks for no more devices than are free, and they
//                   do not lie as it needs them
//   wanted          of it, free while any job waits
//   wait            from submission to the first start
//   slowdown        bounded: max(1, (end - submission) / max(work, 10 s)) (Feitelson et al. 1997)
//   spread          leaves that jobs of whole nodes were under, over the fewest that they fit under
//   fairness        Jain's index of held device time over share, (sum x)^2 / (n sum x^2): 1 where all have
//                   the same (Jain et al. 1984)
#pragma once

#include "sim/scheduling/schedule.h"

namespace orrery::sim {

inline constexpr double kShortJob = 10;  // s, of the bounded slowdown

struct Quantiles {
  double mean = 0, p50 = 0, p95 = 0, most = 0;
};
// Percentiles are of the sorted values, the smallest with at least so many below or equal.
Quantiles quantiles_of(std::vector<double> values);

struct TenantReport {
  std::string name;
  std::int64_t jobs = 0, preemptions = 0, backfilled = 0;
  double device_hours = 0;   // held
  double share = 0;          // of all that was held
  Quantiles wait, slowdown;  // s; a ratio
};

struct LoadBucket {
  double at_s = 0;                               // from the first submission
  double held = 0, fragmented = 0, waiting = 0;  // means: shares of devices, jobs
};

struct ScheduleReport {
  double makespan_s = 0;
  double useful = 0, slow = 0, lost = 0, checkpoint = 0, restart = 0, unasked = 0, free = 0;
  double held = 0, fragmentation = 0, wanted = 0;
  double spread = 1, fairness = 1;
  std::int64_t attempts = 0;
  TenantReport all;
  std::vector<TenantReport> tenants;
  std::vector<LoadBucket> load;  // kLoadBuckets of the makespan
};
inline constexpr std::size_t kLoadBuckets = 100;

// The fewest leaves that so many nodes fit under.
std::int64_t fewest_leaves(const ClusterNodes& cluster, std::int64_t nodes);

ScheduleReport report_of(const JobQueue& queue, const ClusterNodes& nodes, const ScheduleOutcome& outcome);

}  // namespace orrery::sim
