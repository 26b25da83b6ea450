// SPDX-License-Identifier: Apache-2.0
//
// A cluster: identical nodes on a fabric. Every bandwidth is per direction. Files live in
// topologies/; sim/topology/ turns one into a graph.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/fabric.h"
#include "core/fields.h"
#include "core/links.h"

namespace orrery {

struct Cluster : ScaleUp {
  std::string name;
  std::string device;  // a device profile's name
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 8;
  std::int64_t scale_up_nodes = 1;  // nodes in one NVLink domain (18 trays of an NVL72)
  std::string links;                // a link profile's name: what ScaleUp says, unless the file does
  LinkProfile measured;             // that profile
  std::int64_t nics = 8;            // per node
  Bandwidth nic_bandwidth;          // of all NICs of a node together
  double nic_efficiency = 0.9;
  Time nic_latency{14'000'000};  // per hop between nodes
  Time nic_latency_small;        // the same for small messages; zero: a share of nic_latency
  std::vector<Cable> inside;     // how the devices and NICs of a node are wired; none: through a switch
  Fabric fabric;                 // how nodes are wired
  Dollars node_hour;             // on-demand price; zero: unknown
  Dollars spot_hour;
  std::string price_as_of;
  std::map<std::string, std::string> origin;
  std::string file;  // that it was read from
  Cursor sized;      // where `nodes` comes from, when that is another file or the command line

  // What errors name.
  const std::string& where() const { return file.empty() ? name : file; }
  std::int64_t devices() const { return nodes * devices_per_node; }
  // Devices that reach each other without the network.
  std::int64_t scale_up_domain() const { return devices_per_node * scale_up_nodes; }
};

template <class V>
void describe(V& v, Cluster& c) {
  v(Field{.name = "name", .help = "name of the cluster", .required = true}, c.name);
  v(Field{.name = "device", .help = "device profile of every accelerator", .required = true}, c.device);
  v(Field{.name = "nodes", .help = "nodes", .min = 1, .max = limits::kMostNodes}, c.nodes);
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
  v(Field{.name = "links", .help = "link profile of the scale-up domain, in profiles/links"}, c.links);
  describe(v, static_cast<ScaleUp&>(c));
  v(Field{.name = "nics", .help = "network adapters of a node", .min = 1, .max = limits::kMostInNode},
    c.nics);
  v(Field{.name = "nic_bandwidth",
          .help = "all NICs of a node together, one direction",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    c.nic_bandwidth);
  v(Field{.name = "nic_efficiency",
          .help = "achieved over wire bandwidth between nodes",
          .min = 0.01,
          .max = 1},
    c.nic_efficiency);
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
  v(Field{.name = "node_hour",
          .help = "on-demand price of a node for an hour",
          .min = 0,
          .max = limits::kHighestPrice},
    c.node_hour);
  v(Field{.name = "spot_hour",
          .help = "spot price of a node for an hour",
          .min = 0,
          .max = limits::kHighestPrice},
    c.spot_hour);
  v(Field{.name = "price_as_of", .help = "date and source of the price"}, c.price_as_of);
  v(Field{.name = "origin", .help = "where each value comes from"}, c.origin);
}

}  // namespace orrery
