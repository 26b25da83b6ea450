// SPDX-License-Identifier: Apache-2.0
//
// A queue of jobs of many tenants, and the policy that a cluster runs them by: the input of `orrery
// schedule`. docs/scheduling.md has the rules. Schema "orrery.jobs/1".
//
//   {"policy": {"order": "fair-share", "backfill": "easy"},
//    "tenants": [{"name": "vision", "share": 2, "quota": 128}],
//    "jobs": [{"name": "vit", "tenant": "vision", "devices": 64, "duration": "3 h"},
//             {"name": "llama", "scenario": "../llama3-70b-p4d.json", "steps": 1000, "priority": 5}]}
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

// Who is next: the job that was submitted first; of the highest priority the first; or, of the tenant that
// has used least of its share, the first of the highest priority.
enum class QueueOrder { kFifo, kPriority, kFairShare };
constexpr auto enum_names(QueueOrder) {
  return std::array{std::pair{QueueOrder::kFifo, "fifo"}, std::pair{QueueOrder::kPriority, "priority"},
                    std::pair{QueueOrder::kFairShare, "fair-share"}};
}

// easy: jobs may pass the first job that does not fit, where they do not delay it (Lifka 1995).
enum class Backfill { kNone, kEasy };
constexpr auto enum_names(Backfill) {
  return std::array{std::pair{Backfill::kNone, "none"}, std::pair{Backfill::kEasy, "easy"}};
}

enum class PreemptionRule { kNone, kLowerPriority };
constexpr auto enum_names(PreemptionRule) {
  return std::array{std::pair{PreemptionRule::kNone, "none"},
                    std::pair{PreemptionRule::kLowerPriority, "lower-priority"}};
}

// first: the free nodes with the lowest numbers. topology: as few switches as possible, and of these the
// fullest. spread: as many switches as possible.
enum class NodeChoice { kFirst, kTopology, kSpread };
constexpr auto enum_names(NodeChoice) {
  return std::array{std::pair{NodeChoice::kFirst, "first"}, std::pair{NodeChoice::kTopology, "topology"},
                    std::pair{NodeChoice::kSpread, "spread"}};
}

namespace limits {
inline constexpr std::size_t kMostTenants = 4096;  // every decision looks at all that have waiting jobs
inline constexpr double kMostDevices = 1e6;        // of a job
inline constexpr double kMostCopies = 1e5;
inline constexpr double kMostPriority = 1e9;
}  // namespace limits

struct SchedulingPolicy {
  QueueOrder order = QueueOrder::kFifo;
  Backfill backfill = Backfill::kEasy;
  std::int64_t backfill_depth = 500;
  PreemptionRule preemption = PreemptionRule::kNone;
  NodeChoice placement = NodeChoice::kTopology;
  RunTime half_life{7.0 * 86'400};
};

struct Tenant {
  std::string name;
  double share = 1;
  std::optional<std::int64_t> quota;
};

struct JobCheckpoint {
  RunTime interval{0}, cost{0};
};

struct JobRequest {
  std::string name, tenant = "default";
  RunTime submit{0};
  std::int64_t count = 1;
  std::optional<std::int64_t> devices, nodes;
  std::optional<RunTime> duration;
  std::optional<std::string> scenario;
  std::optional<std::int64_t> steps;
  std::optional<RunTime> requested;
  std::int64_t priority = 0;
  std::optional<JobCheckpoint> checkpoint;
  RunTime restart{0};
  double network = 0;
  std::string command, image;
};

struct JobsFile {
  std::string name;
  SchedulingPolicy policy;
  std::vector<Tenant> tenants;
  std::vector<JobRequest> jobs;
};

template <class V>
void describe(V& v, SchedulingPolicy& p) {
  v(Field{.name = "order", .help = "which job is next"}, p.order);
  v(Field{.name = "backfill", .help = "whether jobs may pass the first one that does not fit"}, p.backfill);
  v(Field{.name = "backfill_depth",
          .help = "jobs behind the first one that does not fit that are tried at each decision",
          .min = 1,
          .max = 1e6},
    p.backfill_depth);
  v(Field{.name = "preemption", .help = "whether a job may take the nodes of jobs of lower priority"},
    p.preemption);
  v(Field{.name = "placement", .help = "which of the free nodes a job gets"}, p.placement);
  v(Field{.name = "half_life",
          .help = "fair share: after this time, what a tenant has used counts half; 0 s: it always counts",
          .min = 0,
          .max = limits::kLongestRun},
    p.half_life);
}
template <class V>
void describe(V& v, Tenant& t) {
  v(Field{.name = "name", .help = "that jobs refer to", .required = true}, t.name);
  v(Field{.name = "share",
          .help = "fair share: its part, against those of the others",
          .min = 1e-3,
          .max = 1e6},
    t.share);
  v(Field{.name = "quota", .help = "devices that its jobs hold at once, at most", .min = 1, .max = 1e9},
    t.quota);
}
template <class V>
void describe(V& v, JobCheckpoint& c) {
  v(Field{.name = "interval",
          .help = "work between two checkpoints",
          .min = 1e-3,
          .max = limits::kLongestRun,
          .required = true},
    c.interval);
  v(Field{.name = "cost", .help = "time that one stops the job", .min = 0, .max = limits::kLongestRun},
    c.cost);
}
template <class V>
void describe(V& v, JobRequest& j) {
  v(Field{.name = "name", .help = "label used in reports"}, j.name);
  v(Field{.name = "tenant", .help = "who submits it"}, j.tenant);
  v(Field{.name = "submit", .help = "when, after the start", .min = 0, .max = limits::kLongestRun}, j.submit);
  v(Field{.name = "count", .help = "so many of these jobs", .min = 1, .max = limits::kMostCopies}, j.count);
  v(Field{.name = "devices",
          .help = "accelerators; fewer than a node has share it, others get whole nodes",
          .min = 1,
          .max = limits::kMostDevices},
    j.devices);
  v(Field{.name = "nodes", .help = "whole nodes, in place of devices", .min = 1, .max = limits::kMostNodes},
    j.nodes);
  v(Field{.name = "duration",
          .help = "of its work on nodes that share a switch, without checkpoints",
          .min = 1e-3,
          .max = limits::kLongestRun},
    j.duration);
  v(Field{.name = "scenario",
          .help =
              "scenario or plan file, in place of a duration: its plan is costed for the nodes that the job "
              "gets"},
    j.scenario);
  v(Field{.name = "steps",
          .help = "of the scenario; without it, as many as its training.tokens are",
          .min = 1,
          .max = 1e12},
    j.steps);
  v(Field{.name = "requested",
          .help =
              "time that the user asks for, by which others are backfilled; without it, what the job will "
              "take",
          .min = 1e-3,
          .max = limits::kLongestRun},
    j.requested);
  v(Field{.name = "priority",
          .help = "higher goes first",
          .min = -limits::kMostPriority,
          .max = limits::kMostPriority},
    j.priority);
  v(Field{.name = "checkpoint", .help = "what a preempted job can go back to; without it, its start"},
    j.checkpoint);
  v(Field{.name = "restart",
          .help = "time from getting nodes again after a preemption to work",
          .min = 0,
          .max = limits::kLongestRun},
    j.restart);
  v(Field{.name = "network",
          .help =
              "with a duration: share of it in which nodes exchange data, which grows where they are under "
              "several switches or meet other jobs",
          .min = 0,
          .max = 1},
    j.network);
  v(Field{.name = "command", .help = "that --launch writes into its Slurm and Kubernetes files"}, j.command);
  v(Field{.name = "image", .help = "container that --launch writes into its Kubernetes file"}, j.image);
}
template <class V>
void describe(V& v, JobsFile& f) {
  v(Field{.name = "name", .help = "label used in reports"}, f.name);
  v(Field{.name = "policy", .help = "how the cluster is shared"}, f.policy);
  v(Field{.name = "tenants",
          .help = "shares and quotas; a tenant that is not listed has a share of 1 and no quota",
          .most = limits::kMostTenants},
    f.tenants);
  v(Field{.name = "jobs", .help = "in any order", .required = true}, f.jobs);
}

ORRERY_FIELDS(extern, JobsFile);

}  // namespace orrery
