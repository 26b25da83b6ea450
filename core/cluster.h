// SPDX-License-Identifier: Apache-2.0
//
// A cluster: nodes of one type or several on a fabric. Every bandwidth is per direction. Files live in
// topologies/; sim/topology/ turns one into a graph.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/fabric.h"
#include "core/fields.h"
#include "core/host.h"
#include "core/links.h"

namespace orrery {

// What nodes of one type have: their devices, how these are joined, their way out, and their price.
struct NodeType : ScaleUp {
  std::string device;       // a device profile's name
  std::string links;        // a link profile's name: what ScaleUp says, unless the file does
  LinkProfile measured;     // that profile
  Bandwidth nic_bandwidth;  // of all NICs of a node together
  double nic_efficiency = 0.9;
  std::optional<Host> host;  // none: it is not known, and nothing is offloaded to it
  Dollars node_hour;         // on-demand price; zero: unknown
  Dollars spot_hour;
};

// Nodes of another type than the ones before them.
struct OtherNodes : NodeType {
  std::int64_t from_node = 1;  // the first of them; they end where the next type begins
};

// Itself the type of its first nodes. Ranks fill nodes in order.
struct Cluster : NodeType {
  std::string name;
  std::int64_t nodes = 1;  // of all types
  std::int64_t devices_per_node = 8;
  std::int64_t scale_up_nodes = 1;  // nodes in one NVLink domain (18 trays of an NVL72)
  std::int64_t nics = 8;            // per node
  Time nic_latency{14'000'000};     // per hop between nodes
  Time nic_latency_small;           // the same for small messages; zero: a share of nic_latency
  std::vector<Cable> inside;        // how the devices and NICs of a node are wired; none: through a switch
  Fabric fabric;                    // how nodes are wired
  std::vector<OtherNodes> other_nodes;
  std::string price_as_of;
  std::map<std::string, std::string> origin;
  std::string file;  // that it was read from
  Cursor sized;      // where `nodes` comes from, when that is another file or the command line

  // What errors name.
  const std::string& where() const { return file.empty() ? name : file; }
  std::int64_t devices() const { return nodes * devices_per_node; }
  // Nodes that reach each other without the network. A job that is larger than an NVLink domain and fills no
  // whole number of them has a part of each, of which the size is a power of two (16 of the 18 nodes of an
  // NVL72): schedulers place it in such blocks.
  std::int64_t domain_nodes() const {
    const bool whole = nodes <= scale_up_nodes || nodes % scale_up_nodes == 0 || !other_nodes.empty();
    return whole ? scale_up_nodes
                 : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(scale_up_nodes)));
  }
  // Devices of such nodes.
  std::int64_t scale_up_domain() const { return devices_per_node * domain_nodes(); }

  // The types of the nodes that there are, in the order of the nodes.
  std::size_t types() const;
  const NodeType& type(std::size_t i) const {
    if (i == 0) return *this;
    return other_nodes[i - 1];
  }
  std::size_t type_of_node(std::int64_t node) const;
  std::int64_t first_node_of(std::size_t type) const;
  // Of the first so many nodes, those of a type.
  std::int64_t nodes_of(std::size_t type, std::int64_t of_nodes) const;
  std::int64_t nodes_of(std::size_t type) const { return nodes_of(type, nodes); }
  std::size_t type_of_device(std::int64_t d) const { return type_of_node(d / devices_per_node); }
  // Of the first so many nodes for an hour; zero where the price of one of them is unknown.
  double dollars_per_hour(std::int64_t of_nodes) const;
  // The least that a node has of its host's memory, and of drives. Precondition: all types have hosts, and
  // drives.
  Bytes least_host_memory() const;
  Bytes least_drives() const;
};

// Why the hosts of the cluster cannot keep what a plan gives them, as far as the cluster says; nothing when
// they can, or the plan gives them nothing.
std::string host_problem(const Cluster& cluster, bool offloads, bool to_drives);

// Does something to each type, the first of them too: for what changes all nodes of a cluster.
template <class F>
void for_each_type(Cluster& c, F&& change) {
  change(static_cast<NodeType&>(c));
  for (OtherNodes& o : c.other_nodes) change(static_cast<NodeType&>(o));
}

template <class V>
void describe(V& v, NodeType& t) {
  v(Field{.name = "device", .help = "device profile of its accelerators", .required = true}, t.device);
  v(Field{.name = "links", .help = "link profile of the scale-up domain, in profiles/links"}, t.links);
  describe(v, static_cast<ScaleUp&>(t));
  v(Field{.name = "nic_bandwidth",
          .help = "all NICs of a node together, one direction",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    t.nic_bandwidth);
  v(Field{.name = "nic_efficiency",
          .help = "achieved over wire bandwidth between nodes",
          .min = 0.01,
          .max = 1},
    t.nic_efficiency);
  v(Field{.name = "host", .help = "links to the host's memory, its size and its bandwidth"}, t.host);
  v(Field{.name = "node_hour",
          .help = "on-demand price of a node for an hour",
          .min = 0,
          .max = limits::kHighestPrice},
    t.node_hour);
  v(Field{.name = "spot_hour",
          .help = "spot price of a node for an hour",
          .min = 0,
          .max = limits::kHighestPrice},
    t.spot_hour);
}

template <class V>
void describe(V& v, OtherNodes& o) {
  v(Field{.name = "from_node",
          .help = "the first of these nodes, counted from 0; they go on to the next entry's, or to the last",
          .min = 1,
          .max = limits::kMostNodes,
          .required = true},
    o.from_node);
  describe(v, static_cast<NodeType&>(o));
}

template <class V>
void describe(V& v, Cluster& c) {
  v(Field{.name = "name", .help = "name of the cluster", .required = true}, c.name);
  describe(v, static_cast<NodeType&>(c));
  v(Field{.name = "nodes", .help = "nodes of all types", .min = 1, .max = limits::kMostNodes}, c.nodes);
  v(Field{.name = "devices_per_node",
          .help = "accelerators in a node",
          .min = 1,
          .max = limits::kMostInNode,
          .required = true},
    c.devices_per_node);
  v(Field{.name = "scale_up_nodes",
          .help = "nodes that share one NVLink domain",
          .min = 1,
          .max = limits::kMostInNode},
    c.scale_up_nodes);
  v(Field{.name = "nics", .help = "network adapters of a node", .min = 1, .max = limits::kMostInNode},
    c.nics);
  v(Field{.name = "nic_latency",
          .help = "latency of a hop between nodes",
          .min = 0,
          .max = limits::kLongestLatency},
    c.nic_latency);
  v(Field{.name = "nic_latency_small",
          .help = "latency of a hop between nodes for small messages; 0: as NCCL's protocols have it",
          .min = 0,
          .max = limits::kLongestLatency},
    c.nic_latency_small);
  v(Field{.name = "inside",
          .help = "cables inside a node, between \"gpu3\", \"nic0\" and switches; without it all devices "
                  "meet at a switch",
          .most = limits::kMostInsideCables},
    c.inside);
  v(Field{.name = "fabric", .help = "how nodes are wired; a leaf and spine tree unless it says otherwise"},
    c.fabric);
  v(Field{.name = "other_nodes",
          .help = "nodes of other types than the first ones, which the fields beside this one describe",
          .most = limits::kMostNodeTypes - 1},
    c.other_nodes);
  v(Field{.name = "price_as_of", .help = "date and source of the price"}, c.price_as_of);
  v(Field{.name = "origin", .help = "where each value comes from"}, c.origin);
}

ORRERY_FIELDS(extern, Cluster);

}  // namespace orrery
