// SPDX-License-Identifier: Apache-2.0
//
// What a plan does on the nodes of a cluster that a scheduler gives it, wherever they are.
//
//   const sim::Topology whole(cluster);
//   PlacedPlan job(problem, plan, whole);
//   job.best_step_s();                         // on as few switches as possible
//   job.cost({0, 1, 16, 17}).slow;             // over that, on two nodes of each of two leaf switches
//
// The job's nodes with the switches between them are a cluster of their own (part_of), for which the plan is
// estimated. Its ranks fill the nodes in the given order. Links between switches keep their bandwidth: what
// others take of them is the scheduler's (sim/scheduling/contention.h).
#pragma once

#include <span>

#include "core/scenario.h"
#include "sim/scheduling/contention.h"

namespace orrery::planner {

// A cluster of these nodes of another: a graph of its cables. Packets that are sprayed over parallel links
// see one link of their sum, as in the whole; adaptive routes become shortest ones. Where NVLink domains have
// several nodes, they become as large as the nodes here allow. `uplinks`: factor on the bandwidth between
// switches.
Cluster part_of(const sim::Topology& whole, std::span<const std::int32_t> nodes, double uplinks = 1);

class PlacedPlan {
 public:
  // `problem` is for the whole cluster: its devices are by the types of nodes there. All are copied but
  // `whole` and `nodes`, which outlive it. Throws InputError where the plan has more ranks than there are
  // devices.
  PlacedPlan(Problem problem, Plan plan, const sim::Topology& whole, const sim::ClusterNodes& nodes);

  std::int64_t nodes() const { return count_; }
  double best_step_s() const { return best_s_; }
  sim::ShapeCost cost(std::span<const std::int32_t> nodes) const;

 private:
  double step_s(std::span<const std::int32_t> nodes, double uplinks) const;

  Problem problem_;
  Plan plan_;
  const sim::Topology& whole_;
  const sim::ClusterNodes& cluster_;
  std::int64_t count_ = 1;
  double best_s_ = 0;
};

}  // namespace orrery::planner
