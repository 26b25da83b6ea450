// SPDX-License-Identifier: Apache-2.0
//
// How the ports of nodes are joined: one class a kind of fabric, in a file of its own. A port is what one NIC
// (or the NICs that serve the same devices, together) has in a node; port r of every node is on rail r.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/cluster.h"

namespace orrery::sim {

enum class VertexKind : std::uint8_t {
  kDevice,
  kScaleUp,  // NVSwitches of a scale-up domain
  kPort,
  kLeaf,
  kAggregation,
  kSpine,  // the highest switches of a tree
  kRouter,
  kSite,
  kNamed  // a switch of a graph; a says which name
};
const char* name_of(VertexKind kind);

using VertexId = std::uint32_t;
// Links are directed. connect() makes two: id towards the second vertex, id + 1 back.
using LinkId = std::uint32_t;
using Path = boost::container::small_vector<LinkId, 24>;

class Network;

// What wirings build into.
class NetworkBuilder {
 public:
  static constexpr std::int64_t kMost = 1 << 23;
  NetworkBuilder(Network& network, const Cluster& cluster) : network_(network), cluster_(cluster) {}
  // `a` and `b` place the vertex among its kind, for its name: "leaf3" or, when b >= 0, "leaf3.1".
  VertexId add(VertexKind kind, std::int64_t a, std::int64_t b = -1);
  VertexId add_named(const std::string& name);
  LinkId connect(VertexId a, VertexId b, double bytes_per_second, Time latency = Time{0});
  // Throws InputError when that many vertices, links or entries of a table are more than is built: a directed
  // link takes 24 bytes.
  void require(std::int64_t count) const;
  // Throws InputError when the fabric's routing is none of these.
  void require_routing(std::initializer_list<Routing> allowed) const;
  // `field`: a JSON pointer into the cluster.
  [[noreturn]] void refuse(const std::string& field, const std::string& problem,
                           const std::string& allowed) const;

 private:
  Network& network_;
  const Cluster& cluster_;
};

struct Port {
  std::int64_t node, rail;
};
// "port12.3": rail 3 of node 12, the largest numbers where they do not fit; nothing for other names.
std::optional<Port> port_named(std::string_view name);

// What flows already put on each link, in flows; adaptive routes ask for it.
using Loads = std::vector<double>;

class Wiring {
 public:
  virtual ~Wiring() = default;
  // Appends the links from one node's port to another's. `alive` says which links carry anything. Returns
  // false when there is no way. `loads` may be null.
  virtual bool route(const Network& network, Port from, Port to, const Loads* loads, Path& path) const = 0;
  // Flows within blocks of so many consecutive nodes meet only flows of these, and what leaves a block is the
  // same for all blocks; zero: nothing of the kind holds.
  virtual std::int64_t block_nodes() const = 0;
};

struct Ports {
  std::int64_t per_node;
  std::vector<double> bandwidths;  // by node: of one port, one direction, achieved
  double fastest;                  // of these: what switches are built for
  std::vector<VertexId> ids;       // by node and rail
  VertexId at(Port p) const { return ids[static_cast<std::size_t>(p.node * per_node + p.rail)]; }
  double bandwidth(std::int64_t node) const { return bandwidths[static_cast<std::size_t>(node)]; }
};

// `ports` is kept by none of them.
std::unique_ptr<Wiring> make_tree(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder);
std::unique_ptr<Wiring> make_torus(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder);
std::unique_ptr<Wiring> make_dragonfly(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder);
std::unique_ptr<Wiring> make_graph(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder);

// Of structural positions: renaming nothing, placing the same flow the same way everywhere.
std::uint64_t route_hash(const Fabric& fabric, Port from, Port to);

}  // namespace orrery::sim
