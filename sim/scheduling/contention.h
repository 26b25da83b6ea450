// SPDX-License-Identifier: Apache-2.0
//
// How much longer jobs take because of where their nodes are, and because others use the same uplinks.
//
// Symbols, for a job j that runs on N nodes, c of them under leaf l, whose uplinks carry what the NICs of U
// nodes send:
//
//   f        share of its time on one leaf in which its nodes exchange data (`network` of a job)
//   k(l)     max(1, min(c, N - c) / U): how much longer an exchange through l takes; at most min(c, N - c) of
//            its nodes have a partner beyond l
//   slow     1 + f (max k - 1)                                       without others
//   s        f max k: by how much `slow` grows when the job gets 1/2 of its uplinks in place of all
//   use(l)   s / slow * min(1, min(c, N - c) / U): mean share of l's uplinks that it takes
//   A        max over its leaves of the sum of use(l) of the others there, at most 3/4
//   pace     slow + s (1 / (1 - A) - 1): the job gets what others leave
//
// Of a job with a plan, slow and s are not by this formula but costed (ShapeCost): slow is its step on these
// nodes over its step on the best ones; s is what the step grows by when all uplinks have half their
// bandwidth.
//
// This is a mean-field model: others count with their mean use, not with when they send, and with that of
// their undisturbed run. It is an upper bound where only few nodes of a job talk across a leaf's uplinks (a
// ring enters and leaves each leaf once).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "sim/scheduling/cluster_nodes.h"

namespace orrery::sim {

// Nodes of a job under one leaf, in the order of its ranks.
struct LeafPart {
  std::int32_t leaf = 0;
  std::int64_t nodes = 0;
};
std::vector<LeafPart> leaf_parts(const ClusterNodes& cluster, std::span<const std::int32_t> nodes);

struct ShapeCost {
  double slow = 1;         // time over that on the best nodes
  double sensitivity = 0;  // s
};

// Of plan `plan` on nodes, which come in the order of its ranks.
using PlanCost = std::function<ShapeCost(std::int32_t plan, std::span<const std::int32_t> nodes)>;

// Of a job of a duration with a share f of exchanges.
ShapeCost duration_cost(const ClusterNodes& cluster, std::span<const LeafPart> parts, double f);

// Asks for each plan and shape once. Where a cluster is regular, a shape is how many nodes are under each
// leaf and which leaves share a pod; elsewhere it is the nodes themselves.
class ShapeCosts {
 public:
  ShapeCosts(const ClusterNodes& cluster, PlanCost cost) : cluster_(cluster), cost_(std::move(cost)) {}
  ShapeCost operator()(std::int32_t plan, std::span<const std::int32_t> nodes,
                       std::span<const LeafPart> parts);
  std::size_t costed() const { return known_.size(); }

 private:
  const ClusterNodes& cluster_;
  PlanCost cost_;
  std::map<std::vector<std::int64_t>, ShapeCost> known_;
};

// The jobs that use uplinks now, by number of its caller's choice.
class Contention {
 public:
  explicit Contention(const ClusterNodes& cluster) : cluster_(cluster), on_(cluster.pod.size()) {}
  // Adds or removes a job; both return the jobs whose pace may have changed, itself not among them.
  std::vector<std::int32_t> add(std::int32_t job, std::span<const LeafPart> parts, const ShapeCost& cost);
  std::vector<std::int32_t> remove(std::int32_t job, std::span<const LeafPart> parts);
  double pace(std::int32_t job, std::span<const LeafPart> parts, const ShapeCost& cost) const;

 private:
  struct User {
    std::int32_t job;
    double use;
  };
  std::vector<std::int32_t> beside(std::int32_t job, std::span<const LeafPart> parts) const;
  const ClusterNodes& cluster_;
  std::vector<std::vector<User>> on_;  // by leaf
};

}  // namespace orrery::sim
