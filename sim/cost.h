// SPDX-License-Identifier: Apache-2.0
//
// One set of cost functions for the estimate and the engine: an op's time on a device of a cluster under
// a plan's placement.
#pragma once

#include <algorithm>
#include <bit>
#include <span>

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

// Types of the nodes that some ranks are on (Cluster::type), a bit each. What all of these ranks do together
// takes as long as on the slowest of the types.
using NodeTypes = std::uint32_t;
inline constexpr NodeTypes only(std::size_t type) {
  return NodeTypes{1} << type;
}
// By pipeline stage; one where all stages are on the same types.
std::vector<NodeTypes> node_types_by_stage(const Cluster& cluster, const Mesh& mesh);
inline NodeTypes types_of(const std::vector<NodeTypes>& by_stage, std::int64_t stage) {
  return by_stage[by_stage.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
}
// Calls f(i) for each.
template <class F>
void for_each_node_type(NodeTypes types, F&& f) {
  for (std::size_t i = 0; types != 0; ++i, types >>= 1) {
    if ((types & 1) != 0) f(i);
  }
}

// The devices that a cluster's types of nodes have.
using Devices = std::span<const Device>;
// How software issues work to the slowest of these types.
Pace pace_of(Devices devices, NodeTypes types, const Stack& stack);
// An op that computes, on the slowest of these types.
Time compute_time(Devices devices, NodeTypes types, const Stack& stack, Math training,
                  std::int64_t element_bytes, const program::Op& op);
// What the smallest of them holds.
Bytes memory_of(Devices devices, NodeTypes types);

// What offloading takes, where so many ranks of a node share their host: the slowest of the types decides.
// All of them copy and update at the same time, and each has its share of the host's memory bandwidth.
//   copy    bytes / min(link / devices behind it, memory / ranks), both as achieved
//           to and from drives: bytes / min(drives / ranks, memory / ranks)
//   update  bytes of the fused update (program/ops/update.h) x Stack::host_update_passes / (memory / ranks)
// Precondition: the types have hosts, and drives for copies of drives.
class HostCost {
 public:
  HostCost(const Cluster& cluster, const Stack& stack, std::int64_t ranks)
      : cluster_(cluster), stack_(stack), ranks_(std::min(ranks, cluster.devices_per_node)) {}
  Time copy(Bytes payload, program::ops::CopyWay way, NodeTypes types) const;
  Time update(Bytes traffic, NodeTypes types) const;

 private:
  const Cluster& cluster_;
  const Stack& stack_;
  std::int64_t ranks_;
};

class CostModel {
 public:
  // `ranks`: of the plan; 0: as many as the cluster has devices.
  CostModel(Devices devices, const Stack& stack, const Cluster& cluster, const PlanLinks& links,
            const Training& training, std::int64_t ranks = 0)
      : CostModel(devices, stack, cluster, links, training, ranks,
                  CollectiveModel(cluster, stack.collective_sync)) {}
  // With a model that was made before.
  CostModel(Devices devices, const Stack& stack, const Cluster& cluster, const PlanLinks& links,
            const Training& training, std::int64_t ranks, CollectiveModel collectives)
      : devices_(devices),
        stack_(stack),
        cluster_(cluster),
        host_(cluster, stack, ranks > 0 ? ranks : cluster.devices()),
        collectives_(std::move(collectives)),
        links_(links),
        math_(training.math),
        element_bytes_(activation_bytes(training.precision)) {}

  Time op(const program::Op& op, NodeTypes types) const;
  // Of an op that communicates, in a group that has these links.
  Time op(const program::Op& op, const GroupLinks& links) const;
  Wire wire(const program::Op& op, const GroupLinks& links) const;
  // Of the first of the types.
  Bound bound(const program::Op& op, NodeTypes types) const;
  const GroupLinks& links(program::GroupIndex group) const { return links_[static_cast<std::size_t>(group)]; }
  Pace pace(NodeTypes types) const { return pace_of(devices_, types, stack_); }
  const Cluster& cluster() const { return cluster_; }

 private:
  Devices devices_;
  const Stack& stack_;
  const Cluster& cluster_;
  HostCost host_;
  CollectiveModel collectives_;
  const PlanLinks& links_;
  Math math_;
  std::int64_t element_bytes_;
};

// Says of each op of a timeline of `program` what limits it and what it communicates.
void label(const program::Program& program, const CostModel& cost, Timeline& timeline);

// Of each stage, on the slowest of its types of nodes.
Durations price(const program::Program& program, const CostModel& cost);

}  // namespace orrery::sim
