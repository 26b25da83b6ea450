// SPDX-License-Identifier: Apache-2.0
//
// The cluster as a graph, and what a group of ranks gets from it.
//
// Vertices: devices, one fabric per scale-up domain, one NIC group per node, leaves, one spine. Edges
// carry the bandwidth of one direction. Routes go up and down this tree. A ring over a group uses the
// route from each member to the next; every group of the same axis does so at the same time, so an
// edge's bandwidth is divided by the number of rings on it. The slowest edge is the group's bandwidth.
//
//   Topology t(cluster);
//   GroupLinks g = t.group(8, 1);          // ranks 0..7 of every 8: in the node
//   GroupLinks d = t.group(4, 8);          // ranks 0, 8, 16, 24: one per node, eight groups at once
#pragma once

#include <boost/graph/adjacency_list.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/cluster.h"

namespace orrery::sim {

enum class VertexKind : std::uint8_t { kDevice, kFabric, kNic, kLeaf, kSpine };
struct Vertex {
  VertexKind kind = VertexKind::kDevice;
  std::int64_t index = 0;
};
struct Link {
  Bandwidth bandwidth;
};
using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, Vertex, Link>;

// What one group of a strided set of groups gets while all of them communicate.
struct GroupLinks {
  std::int64_t ranks = 1;
  std::int64_t domains = 1;     // scale-up domains it spans
  std::int64_t per_domain = 1;  // members in the fullest one
  Bandwidth ring;               // bottleneck of its ring, per direction
  bool local() const { return domains == 1; }
};

class Topology {
 public:
  explicit Topology(const Cluster& cluster);
  const Cluster& cluster() const { return cluster_; }
  const Graph& graph() const { return graph_; }

  // Groups of `size` ranks `stride` apart: {o, o + stride, ..} for every offset o.
  GroupLinks group(std::int64_t size, std::int64_t stride) const;
  // Rank r sends to r + stride, for every r of the first `span` ranks whose pair exists.
  GroupLinks pairs(std::int64_t stride, std::int64_t span) const;

 private:
  using Id = std::uint32_t;
  template <class Visit>
  void visit_route(std::int64_t from, std::int64_t to, Visit visit) const;  // visit(edge index)
  template <class Next>
  GroupLinks load(std::int64_t size, std::int64_t senders, Next next) const;
  std::int64_t neighbourhood() const;  // devices that share the largest of leaf and scale-up domain

  Cluster cluster_;
  Graph graph_;
  std::vector<Id> parent_;            // towards the spine, by vertex
  std::vector<Id> up_, down_;         // edge index from vertex to parent and back
  std::vector<Bandwidth> bandwidth_;  // by edge index
  std::int64_t devices_;
};

}  // namespace orrery::sim
