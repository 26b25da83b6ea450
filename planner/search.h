// SPDX-License-Identifier: Apache-2.0
//
// Exhaustive search over plans, exact under the estimate: every combination of the space is considered
// and either costed or proved, by a lower bound on its time, not to be among the best. Plans that fit are
// ranked by their time, longer the less probably they fit (planner/risk.h).
//
//   SearchResult r = search(problem, {.keep = 16, .threads = 2});
//   r.best[0].plan; r.counts.costed; r.too_big[0].device;
//
// The result does not depend on the number of threads.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/scenario.h"
#include "sim/estimate/estimate.h"

namespace orrery::planner {

struct SearchCounts {
  std::int64_t considered = 0;  // combinations of the space
  std::int64_t invalid = 0;  // of them, not plans: degrees that do not divide, schedules that need other vpp
  std::int64_t bounded =
      0;                    // proved slower than the best kept; all plans of a pp and dp at once count as one
  std::int64_t costed = 0;  // time and memory estimated
  std::int64_t feasible = 0;             // of those, fit
  std::int64_t too_large = 0;            // of those, do not fit
  std::int64_t too_large_for_hosts = 0;  // of those, fit the devices
  double seconds = 0;
  SearchCounts& operator+=(const SearchCounts& o);
};

inline constexpr Time kNever{std::numeric_limits<std::int64_t>::max()};

struct Candidate {
  Plan plan;
  sim::Estimate estimate;
  Bytes device;    // memory with overheads, on the stage that fills its devices most
  Bytes capacity;  // of a device there, less the margin
  // The estimate's step, times what the scenario's risk makes of it; kNever: it may well not fit.
  Time ranked{0};
  bool fits() const { return device <= capacity; }
};
// The probability that a candidate fits.
double fits_probability(const Problem& problem, const Candidate& c);
// Of a device's memory, what the scenario's margin leaves.
Bytes usable(const Problem& problem, Bytes memory);

// Plans whose estimates err alike.
struct PlanKind {
  Schedule schedule;
  bool communicates_often;  // ZeRO-2 and 3: in every micro-batch
  friend auto operator<=>(const PlanKind&, const PlanKind&) = default;
};
PlanKind kind_of(const Plan& plan);

// How many ranks share what: plans that differ in them differ materially.
struct Degrees {
  std::int64_t tp, cp, pp, dp, islands, ep, etp;
  friend auto operator<=>(const Degrees&, const Degrees&) = default;
};
inline Degrees degrees_of(const Plan& p) {
  return {p.tp, p.cp, p.pp, p.dp, p.islands, p.ep, p.expert_tp()};
}

struct SearchOptions {
  std::size_t keep = 24;
  int threads = 1;
  bool bound = true;      // prune by the lower bound on time
  bool by_nodes = false;  // find the fastest plan for every number of nodes, in place of the `keep` fastest
  std::function<void(double)> progress;  // share done, from any thread
};

struct SearchResult {
  SearchCounts counts;
  // By their ranked time. Where all plans may well not fit, those, the most probable first.
  std::vector<Candidate> best;
  // The fastest of each kind, of plans at most a quarter slower than the fastest of all.
  std::map<PlanKind, Candidate> by_kind;
  std::map<Degrees, Candidate> by_degrees;  // likewise of each degrees
  // Of the plans at most a quarter slower than the fastest: no other is both faster and smaller.
  std::vector<Candidate> pareto;
  std::vector<Candidate> risky;               // the fastest that are predicted to fit, and may well not
  std::vector<Candidate> too_big;             // the fastest that need up to twice the memory there is
  std::optional<Candidate> smallest_too_big;  // where none fits
  // With by_nodes: the fastest plan that takes so many nodes, where no plan on fewer is as fast.
  std::map<std::int64_t, Candidate> by_nodes;
  Bytes capacity;  // of the largest device, less the margin
};

SearchResult search(const Problem& problem, const sim::Topology& topology, const SearchOptions& options);

// That a plan's ranks take.
std::int64_t nodes_of(const Plan& plan, const Cluster& cluster);

// Whether a plan runs at all; empty, or why not.
std::string plan_problem(const Problem& problem, const Plan& plan);

}  // namespace orrery::planner
