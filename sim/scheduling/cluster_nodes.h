// SPDX-License-Identifier: Apache-2.0
//
// The nodes of a cluster as its scheduler sees them: which switch each is under, which switches stand in one
// pod, and how much leaves a switch.
//
//   ClusterNodes n = cluster_nodes(topology);
//   n.leaf[17];              // 1, where a leaf switch has 16 nodes
//   n.uplink[1];             // 4: its uplinks carry what the NICs of four nodes send
//
// A leaf is what nodes share first on their way to others: an NVLink domain of several nodes; a leaf switch,
// or with rails the leaf switches of all rails together; a router of a dragonfly; a line of a torus along its
// first dimension; a switch of a graph. A pod is what leaves share next: an aggregation (three levels of
// switches), a group of a dragonfly, a site; elsewhere the whole cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/topology/topology.h"

namespace orrery::sim {

struct ClusterNodes {
  std::int64_t devices_per_node = 8;
  std::vector<std::int32_t> leaf;  // by node
  std::vector<std::int32_t> pod;   // by leaf
  std::vector<double> uplink;      // by leaf: what leaves it over what a node's NICs send; infinite: no limit
  std::vector<std::int32_t> first;    // by leaf: its nodes are members[first[l]] to members[first[l + 1] - 1]
  std::vector<std::int32_t> members;  // leaf by leaf, in order
  bool regular =
      true;  // no failed links and one type of nodes: only how many nodes are under which switch counts

  std::int64_t nodes() const { return std::ssize(leaf); }
  std::int64_t devices() const { return nodes() * devices_per_node; }
  std::int32_t leaves() const { return static_cast<std::int32_t>(pod.size()); }
  std::int32_t pods() const { return pod.empty() ? 0 : pod.back() + 1; }
};

// Throws InputError where the cluster has more nodes than are scheduled.
ClusterNodes cluster_nodes(const Topology& topology);

// Of nodes and how they are grouped alone: leaves of `leaf_nodes`, each with uplinks for all of them.
ClusterNodes plain_nodes(std::int64_t nodes, std::int64_t devices_per_node, std::int64_t leaf_nodes);

}  // namespace orrery::sim
