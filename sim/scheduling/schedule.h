// SPDX-License-Identifier: Apache-2.0
//
// Runs a queue of jobs on a cluster, event by event: who starts when, on which nodes.
//
//   ScheduleOutcome o = run_schedule({jobs, tenants}, policy, nodes);
//   o.jobs[3].start, o.jobs[3].end;
//
// At each moment at which a job is submitted or ends, in this order:
//
//   ends, then submissions, then one decision: jobs are looked at in the policy's order, and each that fits
//   starts, with all of its nodes at once. The first that does not fit takes nodes from jobs of lower
//   priority where the policy says so and that suffices; otherwise it is the head. Without backfill nothing
//   passes it. With it, the head gets a reservation: the earliest time at which, by the times that running
//   jobs asked for, enough nodes are free, and these nodes. Behind it, so many jobs are tried: one starts
//   when it fits and either ends by the head's time or leaves the reserved nodes alone.
//
//   A tenant at its quota waits as a whole: none of its jobs passes the first one that the quota holds back.
//   Such a job holds back nobody else.
//
//   A preempted job loses its work since its last checkpoint, goes back to its place in the queue, and
//   restarts when it gets nodes again. Jobs of the lowest priority go first, of these the ones that started
//   last; those whose nodes turn out not to be needed stay.
//
// Jobs are not ended at the time that they asked for; one that is over it counts as ending at once. Time is
// integer nanoseconds; equal moments and keys go by the order of the input, so the outcome is a function of
// the input. A decision costs O(tenants + jobs tried + nodes).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/jobs.h"
#include "sim/scheduling/contention.h"
#include "sim/scheduling/free_nodes.h"
#include "sim/scheduling/progress.h"

namespace orrery::sim {

struct ClusterJob {
  std::string name;
  std::int32_t tenant = 0;
  Ticks submit{0};
  std::int64_t devices = 1;
  Ticks work{1};  // on the best nodes, without checkpoints
  std::optional<Ticks> requested;
  std::int64_t priority = 0;
  Ticks checkpoint_every{0}, checkpoint_cost{0}, restart{0};
  double network = 0;      // of a job of a duration: share of exchanges (contention.h)
  std::int32_t plan = -1;  // that PlanCost costs; -1: a job of a duration
};

struct ClusterTenant {
  std::string name;
  double share = 1;
  std::optional<std::int64_t> quota;  // devices
};

struct JobQueue {
  std::vector<ClusterJob> jobs;
  std::vector<ClusterTenant> tenants;
};

// A job's time on nodes, from getting them to giving them back.
struct Attempt {
  std::int32_t job = 0;
  Ticks start{0}, end{0};
  std::size_t first = 0, count = 0;  // in ScheduleOutcome::nodes, in the order of ranks
  bool preempted = false;
  double slow = 1;  // of its nodes, without others
};

// Times on nodes add up: useful + slow + lost + checkpoint + restart = sum of end - start of its attempts.
struct JobOutcome {
  Ticks start{0}, end{0};  // of the first attempt, of the last
  Ticks useful{0};         // work that it kept: all of ClusterJob::work
  Ticks lost{0};           // work that was done again
  Ticks slow{0};           // longer because of its nodes and of others
  Ticks checkpoint{0}, restart{0};
  std::int32_t preemptions = 0;
  bool backfilled = false;  // it passed another job when it started
};

// From a moment until the next point.
struct LoadPoint {
  Ticks at{0};
  std::int64_t held = 0;     // devices
  std::int64_t waiting = 0;  // jobs
  bool fragmented = false;   // the head asks for no more devices than are free, and no nodes have them
};

struct ScheduleOutcome {
  std::vector<JobOutcome> jobs;   // in the order of the input
  std::vector<Attempt> attempts;  // in the order of their ends
  std::vector<std::int32_t> nodes;
  std::vector<LoadPoint> load;  // moments at which it changed
  Ticks begin{0}, end{0};       // first submission, last end
  std::int64_t devices = 0;     // of the cluster
  std::int64_t devices_per_node = 1;
  std::int64_t shapes = 0;  // that plans were costed for

  std::span<const std::int32_t> nodes_of(const Attempt& a) const {
    return std::span(nodes).subspan(a.first, a.count);
  }
};

// Bounds of one schedule: some 20 s on one core, and 400 MB.
inline constexpr std::int64_t kMostScheduledJobs = 1'000'000, kMostPlacedNodes = 100'000'000;
inline constexpr std::int64_t kMostLooks = 8'000'000'000;

// Each job asks for no more than its tenant's quota and the cluster; tenants are as jobs say. `cost` is asked
// for jobs with a plan. `progress` is told the share of jobs that have ended. Throws Error where a schedule
// has no end within the time that is simulated, or is beyond the bounds.
ScheduleOutcome run_schedule(const JobQueue& queue, const SchedulingPolicy& policy, const ClusterNodes& nodes,
                             const PlanCost& cost = {}, const std::function<void(double)>& progress = {});

// Each attempt's times add up, the work of each job was done, and no device was held twice: to the tick.
bool is_conserved(const JobQueue& queue, const ScheduleOutcome& outcome);

}  // namespace orrery::sim
