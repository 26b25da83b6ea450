// SPDX-License-Identifier: Apache-2.0
//
// One set of cost functions for the estimate and the engine: an op's time on a device of a cluster under
// a plan's placement.
#pragma once

#include "core/device.h"
#include "core/stack.h"
#include "sim/collective/collective.h"
#include "sim/compute/compute.h"
#include "sim/engine/engine.h"

namespace orrery::sim {

// The links that each group of a plan gets on a topology, by program::GroupIndex. Where a group's members
// exchange transfers alone: those of a transfer to the next stage.
using PlanLinks = std::vector<GroupLinks>;
PlanLinks plan_links(const Topology& topology, const Plan& plan);

// How software issues work to a device, and how compute and collectives slow each other there.
EngineOptions engine_options(const Device& device, const Stack& stack, bool record);

class CostModel {
 public:
  CostModel(const Device& device, const Stack& stack, const Cluster& cluster, const PlanLinks& links,
            const Training& training)
      : CostModel(device, stack, cluster, links, training, CollectiveModel(cluster)) {}
  // With a model that was made before.
  CostModel(const Device& device, const Stack& stack, const Cluster& cluster, const PlanLinks& links,
            const Training& training, CollectiveModel collectives)
      : device_(device),
        stack_(stack),
        cluster_(cluster),
        collectives_(std::move(collectives)),
        links_(links),
        math_(training.math),
        element_bytes_(activation_bytes(training.precision)) {}

  Time op(const program::Op& op) const;
  // Of an op that communicates, in a group that has these links.
  Time op(const program::Op& op, const GroupLinks& links) const;
  Wire wire(const program::Op& op, const GroupLinks& links) const;
  Bound bound(const program::Op& op) const { return bound_of(device_, math_, op); }
  const GroupLinks& links(program::GroupIndex group) const { return links_[static_cast<std::size_t>(group)]; }
  EngineOptions engine_options(bool record) const { return sim::engine_options(device_, stack_, record); }

 private:
  const Device& device_;
  const Stack& stack_;
  const Cluster& cluster_;
  CollectiveModel collectives_;
  const PlanLinks& links_;
  Math math_;
  std::int64_t element_bytes_;
};

// Says of each op of a timeline of `program` what limits it and what it communicates.
void label(const program::Program& program, const CostModel& cost, Timeline& timeline);

Durations price(const program::Program& program, const CostModel& cost);

}  // namespace orrery::sim
