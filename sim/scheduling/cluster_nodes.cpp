// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/cluster_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

namespace orrery::sim {
namespace {

constexpr std::int64_t kMostScheduledNodes = 100'000;  // a decision may look at all of them

bool is_port_side(VertexKind kind) {
  return kind == VertexKind::kDevice || kind == VertexKind::kScaleUp || kind == VertexKind::kPort;
}

// The vertex beyond each node's first port; the node itself where there is none.
std::vector<std::int64_t> first_switches(const Network& network, std::int64_t nodes) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(nodes), -1);
  for (std::size_t l = 0; l < network.links(); ++l) {
    const auto [from, to] = network.ends(static_cast<LinkId>(l));
    const Vertex& port = network.vertex(from);
    if (port.kind != VertexKind::kPort || port.b != 0 || is_port_side(network.vertex(to).kind)) continue;
    std::int64_t& known = out[static_cast<std::size_t>(port.a)];
    if (known < 0) known = static_cast<std::int64_t>(to);
  }
  for (std::size_t n = 0; n < out.size(); ++n) {
    if (out[n] < 0) out[n] = -1 - static_cast<std::int64_t>(n);
  }
  return out;
}

// What nodes of the same leaf have in common.
std::vector<std::int64_t> leaf_keys(const Cluster& c, const Network& network) {
  std::vector<std::int64_t> out;
  const auto in_runs = [&](std::int64_t size) {
    for (std::int64_t n = 0; n < c.nodes; ++n) out.push_back(n / size);
  };
  if (c.scale_up_nodes > 1)
    in_runs(c.domain_nodes());
  else if (c.fabric.kind == FabricKind::kTorus)
    in_runs(c.fabric.dimensions.empty() ? 1 : c.fabric.dimensions.front());
  else
    out = first_switches(network, c.nodes);
  return out;
}

// By leaf, how many pods stand before it.
std::vector<std::int32_t> pods_of(const Cluster& c, const ClusterNodes& n) {
  const Fabric& f = c.fabric;
  const bool tree = f.kind == FabricKind::kFatTree || f.kind == FabricKind::kRailOptimized ||
                    f.kind == FabricKind::kRailOnly;
  std::int64_t pod_nodes = c.nodes;
  if (tree) {
    const std::int64_t site = (c.nodes + f.sites - 1) / f.sites;
    pod_nodes = f.levels == 3 ? std::min(site, saturating_multiply(f.pod_leaves, f.leaf_nodes)) : site;
  } else if (f.kind == FabricKind::kDragonfly) {
    pod_nodes = saturating_multiply(f.group_routers, f.router_nodes);
  }
  std::map<std::int64_t, std::int32_t> known;
  std::vector<std::int32_t> out;
  for (std::int32_t l = 0; l < n.leaves(); ++l) {
    const std::int64_t node = n.members[static_cast<std::size_t>(n.first[static_cast<std::size_t>(l)])];
    out.push_back(known.try_emplace(node / pod_nodes, static_cast<std::int32_t>(known.size())).first->second);
  }
  return out;
}

// Capacity of links from vertices of a leaf to those of none or of another, in what a node's NICs send.
void set_uplinks(const Network& network, ClusterNodes& n) {
  std::vector<std::int32_t> leaf_of(network.vertices(), -1);
  std::vector<double> sends(n.pod.size(), 0), leaves(n.pod.size(), 0);
  const auto each_link = [&](const auto& f) {
    for (std::size_t l = 0; l < network.links(); ++l) {
      const auto [from, to] = network.ends(static_cast<LinkId>(l));
      f(from, to, static_cast<double>(network.capacity(static_cast<LinkId>(l))));
    }
  };
  each_link([&](VertexId from, VertexId to, double capacity) {
    const Vertex& port = network.vertex(from);
    if (port.kind != VertexKind::kPort || is_port_side(network.vertex(to).kind)) return;
    const std::int32_t leaf = n.leaf[static_cast<std::size_t>(port.a)];
    leaf_of[from] = leaf_of[to] = leaf;
    sends[static_cast<std::size_t>(leaf)] += capacity;
  });
  each_link([&](VertexId from, VertexId to, double capacity) {
    if (leaf_of[from] >= 0 && leaf_of[from] != leaf_of[to] && !is_port_side(network.vertex(to).kind))
      leaves[static_cast<std::size_t>(leaf_of[from])] += capacity;
  });
  std::vector<double> members(n.pod.size(), 0);
  for (const std::int32_t l : n.leaf) ++members[static_cast<std::size_t>(l)];
  for (std::size_t l = 0; l < n.pod.size(); ++l) {
    const double node = sends[l] / members[l];
    n.uplink.push_back(n.leaves() > 1 && node > 0 ? leaves[l] / node
                                                  : std::numeric_limits<double>::infinity());
  }
}

void set_members(ClusterNodes& n, std::int32_t leaves) {
  n.first.assign(static_cast<std::size_t>(leaves) + 1, 0);
  for (const std::int32_t l : n.leaf) ++n.first[static_cast<std::size_t>(l) + 1];
  for (std::size_t l = 0; l < static_cast<std::size_t>(leaves); ++l) n.first[l + 1] += n.first[l];
  n.members.resize(n.leaf.size());
  std::vector<std::int32_t> next(n.first.begin(), n.first.end() - 1);
  for (std::int32_t node = 0; node < n.nodes(); ++node)
    n.members[static_cast<std::size_t>(
        next[static_cast<std::size_t>(n.leaf[static_cast<std::size_t>(node)])]++)] = node;
}

}  // namespace

ClusterNodes cluster_nodes(const Topology& topology) {
  const Cluster& c = topology.cluster();
  const Network& network = topology.network();
  if (c.nodes > kMostScheduledNodes)
    throw InputError(c.where(), "/nodes", fmt::format("{} nodes are more than are scheduled", c.nodes),
                     fmt::format("allowed: {}", kMostScheduledNodes));
  ClusterNodes n;
  n.devices_per_node = c.devices_per_node;
  n.regular = !network.faulty() && !network.mixed();
  std::map<std::int64_t, std::int32_t> known;
  for (const std::int64_t key : leaf_keys(c, network))
    n.leaf.push_back(known.try_emplace(key, static_cast<std::int32_t>(known.size())).first->second);
  n.pod.resize(known.size());
  set_members(n, static_cast<std::int32_t>(known.size()));
  n.pod = pods_of(c, n);
  set_uplinks(network, n);
  // Nodes of an NVLink domain have their own NICs out of it.
  if (c.scale_up_nodes > 1) n.uplink.assign(n.pod.size(), static_cast<double>(c.domain_nodes()));
  return n;
}

ClusterNodes plain_nodes(std::int64_t nodes, std::int64_t devices_per_node, std::int64_t leaf_nodes) {
  ClusterNodes n;
  n.devices_per_node = devices_per_node;
  for (std::int64_t i = 0; i < nodes; ++i) n.leaf.push_back(static_cast<std::int32_t>(i / leaf_nodes));
  const std::int32_t leaves = static_cast<std::int32_t>((nodes + leaf_nodes - 1) / leaf_nodes);
  n.pod.assign(static_cast<std::size_t>(leaves), 0);
  n.uplink.assign(static_cast<std::size_t>(leaves), static_cast<double>(leaf_nodes));
  set_members(n, leaves);
  return n;
}

}  // namespace orrery::sim
