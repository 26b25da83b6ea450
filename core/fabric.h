// SPDX-License-Identifier: Apache-2.0
//
// How the nodes of a cluster are wired: part of a cluster file. sim/topology/network.h builds it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

enum class FabricKind { kFatTree, kRailOptimized, kRailOnly, kTorus, kDragonfly, kGraph };
constexpr auto enum_names(FabricKind) {
  return std::array{
      std::pair{FabricKind::kFatTree, "fat-tree"},    std::pair{FabricKind::kRailOptimized, "rail-optimized"},
      std::pair{FabricKind::kRailOnly, "rail-only"},  std::pair{FabricKind::kTorus, "torus"},
      std::pair{FabricKind::kDragonfly, "dragonfly"}, std::pair{FabricKind::kGraph, "graph"}};
}

// Spray: packets of a flow take all shortest paths evenly (ideal). Ecmp: a hash of both ends and the seed
// picks one path for a flow. Minimal: the destination picks it (d-mod-k); on a torus, dimension by dimension.
// Adaptive: a flow takes a detour over another group where that is less loaded (dragonfly).
enum class Routing { kSpray, kEcmp, kMinimal, kAdaptive };
constexpr auto enum_names(Routing) {
  return std::array{std::pair{Routing::kSpray, "spray"}, std::pair{Routing::kEcmp, "ecmp"},
                    std::pair{Routing::kMinimal, "minimal"}, std::pair{Routing::kAdaptive, "adaptive"}};
}

// A cable that fails or runs at less than it should, between vertices as `orrery topology show` names them.
struct LinkFault {
  std::string from, to;
  double remaining = 0;  // share of the bandwidth that is left, both directions
};

template <class V>
void describe(V& v, LinkFault& f) {
  v(Field{.name = "from", .help = "one end, as `orrery topology show --json` names it", .required = true},
    f.from);
  v(Field{.name = "to", .help = "the other end", .required = true}, f.to);
  v(Field{.name = "remaining",
          .help = "share of the bandwidth that is left; 0: the link has failed",
          .min = 0,
          .max = 1},
    f.remaining);
}

// A cable of a graph: between "portN.R", port R of node N, and switches, which are any other names; inside a
// node between "gpuN", "nicN" and switches.
struct Cable {
  std::string from, to;
  Bandwidth bandwidth;  // one direction, achieved
  Time latency;
};

template <class V>
void describe(V& v, Cable& c) {
  v(Field{.name = "from",
          .help = "\"port3.1\", port 1 of node 3, or a switch's name; inside a node \"gpu3\", \"nic0\" or a "
                  "switch's name",
          .required = true},
    c.from);
  v(Field{.name = "to", .help = "the other end", .required = true}, c.to);
  v(Field{.name = "bandwidth",
          .help = "one direction, as achieved",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    c.bandwidth);
  v(Field{.name = "latency",
          .help = "beyond the cluster's latency of a hop",
          .min = 0,
          .max = limits::kLongestLatency},
    c.latency);
}

struct Fabric {
  FabricKind kind = FabricKind::kFatTree;
  Routing routing = Routing::kSpray;
  std::int64_t seed = 1;            // of ecmp
  std::int64_t levels = 2;          // of a tree: leaf and spine, or leaf, aggregation and core
  std::int64_t leaf_nodes = 16;     // nodes under one leaf switch (under one leaf of each rail)
  double oversubscription = 1;      // of a leaf: downlinks over uplinks; of a dragonfly: nodes over globals
  std::int64_t pod_leaves = 16;     // three levels: leaves (of a rail: leaf groups) under one aggregation
  double pod_oversubscription = 1;  // of a pod: downlinks over uplinks
  bool pxn = true;                  // data for another rail changes rails inside the node
  std::vector<std::int64_t> dimensions;  // of a torus, in nodes
  std::int64_t router_nodes = 4;         // dragonfly: nodes of a router
  std::int64_t group_routers = 8;        // dragonfly: routers of a group, all joined to each other
  Time switch_latency{500'000};          // of a hop between routers, and above the second level of a tree
  std::int64_t sites = 1;                // nodes are spread evenly over so many sites
  Bandwidth site_bandwidth;              // between each pair of sites, one direction
  Time site_latency;                     // one way
  std::vector<LinkFault> faults;
  std::vector<Cable> cables;  // of a graph
  Dollars port_cost;          // of a switch port with its share of cables and transceivers; zero: unknown
};

template <class V>
void describe(V& v, Fabric& f) {
  v(Field{.name = "kind", .help = "how nodes are wired"}, f.kind);
  v(Field{.name = "routing", .help = "which path a flow takes where there are several"}, f.routing);
  v(Field{.name = "seed", .help = "of ecmp's hash", .min = 0}, f.seed);
  v(Field{.name = "levels", .help = "switch levels of a tree", .min = 2, .max = 3}, f.levels);
  v(Field{.name = "leaf_nodes",
          .help = "nodes under one leaf switch; under one leaf of each rail",
          .min = 1,
          .max = limits::kMostNodes},
    f.leaf_nodes);
  v(Field{.name = "oversubscription",
          .help = "downlinks over uplinks of a leaf; of a dragonfly, nodes' over global bandwidth",
          .min = 1,
          .max = 1000},
    f.oversubscription);
  v(Field{.name = "pod_leaves",
          .help = "three levels: leaf switches of a pod; with rails, of each rail",
          .min = 1,
          .max = limits::kMostNodes},
    f.pod_leaves);
  v(Field{.name = "pod_oversubscription",
          .help = "three levels: downlinks over uplinks of a pod",
          .min = 1,
          .max = 1000},
    f.pod_oversubscription);
  v(Field{.name = "pxn", .help = "data for another rail changes rails inside the node (NCCL's PXN)"}, f.pxn);
  v(Field{.name = "dimensions",
          .help = "torus: nodes along each dimension",
          .min = 1,
          .max = limits::kMostNodes,
          .most = 8},
    f.dimensions);
  v(Field{.name = "router_nodes",
          .help = "dragonfly: nodes of a router",
          .min = 1,
          .max = limits::kMostNodes},
    f.router_nodes);
  v(Field{.name = "group_routers", .help = "dragonfly: routers of a group", .min = 1, .max = 4096},
    f.group_routers);
  v(Field{.name = "switch_latency",
          .help = "latency of a hop between routers, and above the second level of a tree",
          .min = 0,
          .max = limits::kLongestLatency},
    f.switch_latency);
  v(Field{.name = "sites", .help = "sites that the nodes are spread over evenly", .min = 1, .max = 64},
    f.sites);
  v(Field{.name = "site_bandwidth",
          .help = "between each pair of sites, one direction",
          .min = 0,
          .max = limits::kFastest},
    f.site_bandwidth);
  v(Field{.name = "site_latency", .help = "between sites, one way", .min = 0, .max = limits::kLongestLatency},
    f.site_latency);
  v(Field{.name = "faults", .help = "links that have failed or are slow", .most = limits::kMostFaults},
    f.faults);
  v(Field{.name = "cables", .help = "of a graph: who is joined to whom"}, f.cables);
  v(Field{.name = "port_cost",
          .help = "price of a switch port of a NIC's speed, with its share of cables and transceivers",
          .min = 0,
          .max = limits::kHighestPrice},
    f.port_cost);
}

}  // namespace orrery
