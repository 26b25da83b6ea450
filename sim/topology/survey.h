// SPDX-License-Identifier: Apache-2.0
//
// What a network is made of and what it can carry, to be shown.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "sim/topology/topology.h"

namespace orrery::sim {

struct LinkCount {
  std::int64_t count = 0;            // cables: both directions are one
  std::int64_t least = 0, most = 0;  // bytes per second, one direction
};

struct Survey {
  std::map<std::string, std::int64_t> vertices;                    // by kind
  std::map<std::pair<std::string, std::string>, LinkCount> links;  // by the kinds at both ends
  std::int64_t switch_ports = 0;  // of the fabric's switches and routers, in ports of a NIC's speed
  std::int64_t diameter = 0;      // links between the two devices that are farthest apart
  // Device i of the first half sends to device i of the second and back, all at once, over the fabric's
  // routes.
  Bandwidth bisection;
  LinkId bisection_bottleneck = 0;
};

// The diameter is by breadth-first search (Boost.Graph) from every device up to kExactDiameter devices;
// beyond, from the first and from the device farthest from it, which is exact where all devices are placed
// alike.
inline constexpr std::int64_t kExactDiameter = 1024;
Survey survey(const Topology& topology);
// Its switch ports alone.
std::int64_t switch_ports(const Topology& topology);

// Graphviz: vertices and cables, with their bandwidth.
std::string to_dot(const Network& network);

}  // namespace orrery::sim
