// SPDX-License-Identifier: Apache-2.0
#include "planner/placed.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "sim/estimate/estimate.h"
#include "sim/scheduling/free_nodes.h"

namespace orrery::planner {
namespace {

using sim::LinkId;
using sim::Network;
using sim::Vertex;
using sim::VertexId;
using sim::VertexKind;

bool is_switch(const Network& network, VertexId v) {
  const VertexKind kind = network.vertex(v).kind;
  return kind != VertexKind::kDevice && kind != VertexKind::kScaleUp && kind != VertexKind::kPort;
}

bool is_tree(FabricKind kind) {
  switch (kind) {
    case FabricKind::kFatTree:
    case FabricKind::kRailOptimized:
    case FabricKind::kRailOnly:
      return true;
    case FabricKind::kTorus:
    case FabricKind::kDragonfly:
    case FabricKind::kGraph:
      return false;
  }
  throw Error("a kind of fabric that is not known");
}

// Consecutive nodes of one domain: the largest size that divides all of their runs.
std::int64_t domain_of(const Cluster& whole, std::span<const std::int32_t> nodes) {
  if (whole.scale_up_nodes == 1) return 1;
  std::int64_t size = 0, run = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    ++run;
    const bool last =
        i + 1 == nodes.size() || nodes[i + 1] / whole.domain_nodes() != nodes[i] / whole.domain_nodes();
    if (last) size = std::gcd(size, std::exchange(run, 0));
  }
  return size;
}

// Cables from the nodes' ports to switches, and between switches. In a tree, leaf switches of other nodes
// lead nowhere.
std::vector<Cable> cables_of(const sim::Topology& whole, std::span<const std::int32_t> nodes,
                             double uplinks) {
  const Network& network = whole.network();
  std::vector<std::int64_t> place(static_cast<std::size_t>(whole.cluster().nodes), -1);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    place[static_cast<std::size_t>(nodes[i])] = static_cast<std::int64_t>(i);
  std::set<VertexId> ours, others;  // switches at ports
  std::vector<Cable> out;
  const auto add = [&](std::string from, std::string to, LinkId l, double factor) {
    const double bandwidth = static_cast<double>(network.capacity(l)) * factor;
    out.push_back({std::move(from), std::move(to), Bandwidth{saturating_cast(bandwidth)},
                   network.extra_latency(sim::Path{l})});
  };
  for (LinkId l = 0; l < network.links(); l += 2) {  // the other direction is l + 1
    const auto [a, b] = network.ends(l);
    if (is_switch(network, a) == is_switch(network, b)) continue;
    const VertexId port = is_switch(network, a) ? b : a, at = is_switch(network, a) ? a : b;
    const Vertex& p = network.vertex(port);
    if (p.kind != VertexKind::kPort || !network.alive(l)) continue;
    const std::int64_t node = place[static_cast<std::size_t>(p.a)];
    (node >= 0 ? ours : others).insert(at);
    if (node >= 0) add(fmt::format("port{}.{}", node, p.b), network.name(at), l, 1);
  }
  const bool tree = is_tree(whole.cluster().fabric.kind);
  const auto leads_nowhere = [&](VertexId v) { return tree && others.contains(v) && !ours.contains(v); };
  for (LinkId l = 0; l < network.links(); l += 2) {
    const auto [a, b] = network.ends(l);
    if (!is_switch(network, a) || !is_switch(network, b) || !network.alive(l)) continue;
    if (!leads_nowhere(a) && !leads_nowhere(b)) add(network.name(a), network.name(b), l, uplinks);
  }
  return out;
}

// Types of the nodes, in order, each once: the types of the whole that they have.
std::vector<std::size_t> types_of(const Cluster& whole, std::span<const std::int32_t> nodes) {
  std::vector<std::size_t> out;
  for (const std::int32_t n : nodes) {
    const std::size_t type = whole.type_of_node(n);
    if (out.empty() || out.back() != type) out.push_back(type);
  }
  return out;
}

// The fastest type first, as the whole cluster has them.
std::vector<std::int32_t> by_type(const Cluster& whole, std::span<const std::int32_t> nodes) {
  std::vector<std::int32_t> out(nodes.begin(), nodes.end());
  std::stable_sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) {
    return whole.type_of_node(a) < whole.type_of_node(b);
  });
  return out;
}

}  // namespace

Cluster part_of(const sim::Topology& whole, std::span<const std::int32_t> given, double uplinks) {
  const Cluster& c = whole.cluster();
  const std::vector<std::int32_t> nodes = by_type(c, given);
  Cluster out = c;
  out.nodes = std::ssize(nodes);
  out.scale_up_nodes = domain_of(c, nodes);
  static_cast<NodeType&>(out) = c.type(c.type_of_node(nodes.front()));
  out.other_nodes.clear();
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const std::size_t type = c.type_of_node(nodes[i]);
    if (type == c.type_of_node(nodes[i - 1])) continue;
    OtherNodes other;
    static_cast<NodeType&>(other) = c.type(type);
    other.from_node = static_cast<std::int64_t>(i);
    out.other_nodes.push_back(std::move(other));
  }
  out.fabric = Fabric{.kind = FabricKind::kGraph, .routing = Routing::kMinimal};
  if (c.fabric.routing == Routing::kEcmp) out.fabric.routing = Routing::kEcmp;
  out.fabric.seed = c.fabric.seed;
  out.fabric.pxn = c.fabric.pxn;
  if (nodes.size() > 1) out.fabric.cables = cables_of(whole, nodes, uplinks);
  return out;
}

PlacedPlan::PlacedPlan(Problem problem, Plan plan, const sim::Topology& whole, const sim::ClusterNodes& nodes)
    : problem_(std::move(problem)), plan_(std::move(plan)), whole_(whole), cluster_(nodes) {
  check_ranks(plan_, whole.cluster(), problem_.at.child("plan"));
  const std::int64_t per_node = nodes.devices_per_node;
  count_ = (plan_.ranks() + per_node - 1) / per_node;
  std::vector<std::int32_t> best;
  sim::FreeNodes(nodes).choose(count_ * per_node, NodeChoice::kTopology, best);
  best_s_ = step_s(best, 1);
}

double PlacedPlan::step_s(std::span<const std::int32_t> nodes, double uplinks) const {
  Problem here = problem_;
  here.cluster = part_of(whole_, nodes, uplinks);
  here.devices.clear();
  for (const std::size_t type : types_of(whole_.cluster(), by_type(whole_.cluster(), nodes)))
    here.devices.push_back(problem_.devices[type]);
  const sim::Topology topology(here.cluster);
  return seconds(sim::Estimator(here, topology).estimate(plan_).step);
}

sim::ShapeCost PlacedPlan::cost(std::span<const std::int32_t> nodes) const {
  const double step = step_s(nodes, 1);
  sim::ShapeCost out{std::max(1.0, step / best_s_), 0};
  if (sim::leaf_parts(cluster_, nodes).size() > 1)
    out.sensitivity = std::max(0.0, (step_s(nodes, 0.5) - step) / best_s_);
  return out;
}

}  // namespace orrery::planner
