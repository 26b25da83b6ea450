// SPDX-License-Identifier: Apache-2.0
//
// Which devices of a cluster are free, and which of them a job gets.
//
// A job of fewer devices than a node has gets them on one node, beside others. Every other job gets whole
// nodes, all at once (a gang): ceil(devices / devices of a node) of them, and the devices that it does not
// ask for are held too.
//
//   FreeNodes free(nodes);
//   std::vector<std::int32_t> chosen;
//   if (free.choose(64, NodeChoice::kTopology, chosen)) free.take(chosen, free.held(64));
//
// choose: `first` takes the lowest numbers. `topology` takes the leaf with the fewest free nodes that has
// enough, else the pod, else the cluster; within it the leaves with most free nodes, and for the rest the
// leaf with the fewest that has enough. `spread` takes nodes of the leaves with most free nodes in turn. A
// part of a node comes from the node with the fewest free devices that has enough (`spread`: with the most).
// Nodes come leaf by leaf: in the order of their numbers (`first`), or the leaf that had most free nodes
// first.
//
// Cost: a part of a node O(nodes / 64); whole nodes O(nodes / 64 + leaves log leaves + nodes of the job).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/jobs.h"
#include "sim/scheduling/cluster_nodes.h"

namespace orrery::sim {

// Numbers below a limit, in order.
class NumberSet {
 public:
  explicit NumberSet(std::int64_t limit = 0) : words_(static_cast<std::size_t>(limit + 63) / 64, 0) {}
  void insert(std::int64_t i);
  void erase(std::int64_t i);
  std::int64_t size() const { return size_; }
  std::int64_t next(std::int64_t from) const;  // the first from here on; -1: none

 private:
  static std::size_t word(std::int64_t i) { return static_cast<std::size_t>(i) / 64; }
  std::vector<std::uint64_t> words_;
  std::int64_t size_ = 0;
};

class FreeNodes {
 public:
  // `nodes` outlives it.
  explicit FreeNodes(const ClusterNodes& nodes);

  // Devices that a job holds on each of its nodes, and how many nodes it has.
  std::int64_t held(std::int64_t devices) const { return std::min(devices, per_node_); }
  std::int64_t nodes_of(std::int64_t devices) const { return (devices + per_node_ - 1) / per_node_; }
  bool shares(std::int64_t devices) const { return devices < per_node_; }
  std::int64_t per_node() const { return per_node_; }

  std::int64_t free_devices() const { return free_devices_; }
  std::int64_t free_on(std::int32_t node) const { return free_[static_cast<std::size_t>(node)]; }
  std::int64_t whole_nodes() const { return with_free_.back().size(); }
  // The most that are free on one node.
  std::int64_t largest_part() const;
  bool fits(std::int64_t devices) const;
  // Whether there are nodes for the job, and which.
  bool choose(std::int64_t devices, NodeChoice how, std::vector<std::int32_t>& out) const;

  void take(std::span<const std::int32_t> nodes, std::int64_t each);
  void give(std::span<const std::int32_t> nodes, std::int64_t each);

 private:
  struct Leaf {
    std::int32_t id;
    std::int64_t whole;
  };
  void set_free(std::int32_t node, std::int64_t devices);
  void choose_whole(std::int64_t count, NodeChoice how, std::vector<std::int32_t>& out) const;
  std::vector<Leaf> leaves_with(std::int64_t count) const;
  void add_from(std::int32_t leaf, std::int64_t count, std::vector<std::int32_t>& out) const;
  std::int32_t part_of_node(std::int64_t devices, NodeChoice how) const;

  const ClusterNodes& nodes_;
  std::int64_t per_node_, free_devices_ = 0;
  std::vector<std::int64_t> free_;      // by node
  std::vector<NumberSet> with_free_;    // by free devices: nodes
  std::vector<std::int64_t> whole_in_;  // by leaf: nodes that are free
};

}  // namespace orrery::sim
