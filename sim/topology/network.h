// SPDX-License-Identifier: Apache-2.0
//
// The cluster as a graph, and the way from one device to another.
//
// Vertices: devices, the switches of each scale-up domain, a port for each NIC of each node, and what the
// fabric has. A link carries one direction; its capacity is what transfers achieve (wire bandwidth times the
// cluster's efficiency). Devices of a domain meet at its switches, or where the cables inside a node lead
// (inside.h); others leave through the port of their rail. Where that port has failed, or where no way from
// it is left, data cross the node to a device of the next rail that has a way, and cross the other node back.
//
//   Network network(cluster);
//   Path path;
//   network.route(0, 12, path);
//   for (LinkId l : path) network.capacity(l);
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/topology/inside.h"

namespace orrery::sim {

struct Vertex {
  VertexKind kind = VertexKind::kDevice;
  std::int32_t a = 0, b = -1;
};
class Network {
 public:
  // Throws InputError when the cluster's faults name links that there are none of.
  explicit Network(const Cluster& cluster);

  std::int64_t devices() const { return devices_; }
  std::size_t vertices() const { return vertices_.size(); }
  const Vertex& vertex(VertexId v) const { return vertices_[v]; }
  std::size_t links() const { return capacity_.size(); }
  std::int64_t capacity(LinkId l) const { return capacity_[l]; }  // bytes per second; zero: it has failed
  std::pair<VertexId, VertexId> ends(LinkId l) const { return ends_[l]; }
  bool alive(LinkId l) const { return capacity_[l] > 0; }
  bool faulty() const { return faulty_; }  // some links may not be alive
  std::string name(VertexId v) const;
  std::string link_name(LinkId l) const;  // "leaf0 > spine3"

  // The links from one device to another, none for itself. Throws InputError when there is no way, as links
  // have failed or are missing.
  void route(std::int64_t from, std::int64_t to, Path& path, const Loads* loads = nullptr) const;
  // The same, and whether there is a way.
  bool find_route(std::int64_t from, std::int64_t to, Path& path, const Loads* loads = nullptr) const;
  // Of a route, beyond what the cluster's latency of a hop covers.
  Time extra_latency(const Path& path) const;
  bool adaptive() const { return adaptive_; }  // routes look at loads
  // Of each device of a type of node while all of a domain send evenly to all others there, achieved.
  Bandwidth intra(std::size_t node_type) const { return intra_[node_type]; }
  bool mixed() const { return intra_.size() > 1; }  // nodes are of several types
  std::size_t type_of(std::int64_t dev) const { return type_[static_cast<std::size_t>(node(dev))]; }
  // The cables inside a node; null where its devices meet at a switch.
  const Inside* inside() const { return inside_.get(); }
  std::int64_t ports() const { return ports_per_node_; }  // of a node
  // Of devices: blocks that are alike and share nothing inside; see Wiring::block_nodes.
  std::int64_t block() const { return block_; }

 private:
  friend class NetworkBuilder;
  std::int64_t node(std::int64_t device) const { return device / devices_per_node_; }
  std::int64_t rail(std::int64_t device) const {
    return device % devices_per_node_ * ports_per_node_ / devices_per_node_;
  }
  void apply(const Cluster& cluster);
  bool is_alive(const Path& path) const;
  // The device through which data of `device` use a rail of its node: it is `device` where that is on the
  // rail, else the device with the number that `other` has in its own node, else the rail's first.
  std::int64_t on_rail(std::int64_t device, std::int64_t wanted, std::int64_t other) const;
  // A way out by one rail and in by another, which `path` becomes; false where there is none.
  bool try_rails(std::int64_t from, std::int64_t to, std::int64_t out, std::int64_t in, const Loads* loads,
                 Path& path) const;
  // Appends the links between two devices of a domain, from a device to its port, and back.
  void between(std::int64_t from, std::int64_t to, Path& path) const;
  void leave(std::int64_t device, Path& path) const;
  void enter(std::int64_t device, Path& path) const;

  std::string file_;  // that the cluster was read from
  std::vector<Vertex> vertices_;
  std::vector<std::string> names_;  // of named vertices
  std::vector<std::int64_t> capacity_;
  std::vector<Time> latency_;
  std::vector<std::pair<VertexId, VertexId>> ends_;
  std::vector<LinkId> to_switch_, to_port_;  // by device; back is one more
  std::unique_ptr<Inside> inside_;
  std::unique_ptr<Wiring> wiring_;
  std::vector<Bandwidth> intra_;    // by type of node
  std::vector<std::uint8_t> type_;  // by node
  std::int64_t devices_, devices_per_node_, domain_, ports_per_node_, block_ = 0;
  bool pxn_, adaptive_, faulty_;
};

}  // namespace orrery::sim
