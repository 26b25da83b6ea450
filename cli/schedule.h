// SPDX-License-Identifier: Apache-2.0
//
// `orrery schedule`: what its parts share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "core/jobs.h"
#include "planner/placed.h"
#include "sim/scheduling/report.h"
#include "sim/scheduling/traces.h"

namespace orrery::cli {

// A scenario of a job on the cluster.
struct JobPlan {
  Problem problem;
  Plan plan;
  Cursor scenario;
  planner::PlacedPlan placed;
  double step_s = 0;  // on the best nodes
};

struct Scheduled {
  std::string file, name;
  SchedulingPolicy policy;
  Cluster cluster;
  sim::JobQueue queue;
  std::vector<std::size_t> request;  // by job: which of `requests`
  std::vector<JobRequest> requests;  // none where the queue is a trace's
  std::vector<JobPlan> plans;
  std::optional<sim::TraceRead> trace;  // without its queue
  sim::ScheduleOutcome outcome;
  sim::ScheduleReport report;
};

Json schedule_json(const Scheduled& s, bool jobs);
void print_schedule(const Scheduled& s);
// A Slurm and a Kubernetes file for each request of the queue.
std::vector<std::string> write_launches(const Scheduled& s, const sim::ClusterNodes& nodes,
                                        const std::filesystem::path& folder, const App& app);

}  // namespace orrery::cli
