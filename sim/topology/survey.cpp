// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <cmath>

#include "core/text.h"

namespace orrery::sim {
namespace {

using Graph = boost::compressed_sparse_row_graph<boost::directedS>;

// How many links the device farthest from `from` is away, and which it is.
std::pair<std::int64_t, VertexId> farthest(const Graph& graph, const Network& network, VertexId from) {
  std::vector<std::int64_t> distance(network.vertices());
  const auto index = boost::get(boost::vertex_index, graph);
  const auto recorder = boost::record_distances(boost::make_iterator_property_map(distance.begin(), index),
                                                boost::on_tree_edge());
  boost::breadth_first_search(graph, from, boost::visitor(boost::make_bfs_visitor(recorder)));
  const auto devices = distance.begin() + network.devices();
  const auto most = std::max_element(distance.begin(), devices);
  return {*most, static_cast<VertexId>(most - distance.begin())};
}

std::int64_t diameter(const Network& network) {
  std::vector<std::pair<VertexId, VertexId>> edges;
  for (LinkId l = 0; l < network.links(); ++l) {
    if (network.alive(l)) edges.push_back(network.ends(l));
  }
  std::sort(edges.begin(), edges.end());
  const Graph graph(boost::edges_are_sorted, edges.begin(), edges.end(), network.vertices());
  auto [most, far] = farthest(graph, network, 0);
  if (network.devices() > kExactDiameter) return std::max(most, farthest(graph, network, far).first);
  for (VertexId d = 1; d < static_cast<VertexId>(network.devices()); ++d)
    most = std::max(most, farthest(graph, network, d).first);
  return most;
}

}  // namespace

std::int64_t switch_ports(const Topology& topology) {
  const Network& n = topology.network();
  const Cluster& cluster = topology.cluster();
  double port = 0;  // of the fastest
  for (std::size_t i = 0; i < cluster.types(); ++i) {
    const NodeType& type = cluster.type(i);
    port = std::max(port, static_cast<double>(type.nic_bandwidth.value) * type.nic_efficiency /
                              static_cast<double>(cluster.nics));
  }
  std::int64_t out = 0;
  for (LinkId l = 0; l < n.links(); l += 2) {
    const auto [a, b] = n.ends(l);
    for (const VertexId end : {a, b}) {
      if (n.vertex(end).kind >= VertexKind::kLeaf && n.vertex(end).kind != VertexKind::kSite)
        out += std::llround(std::ceil(static_cast<double>(n.capacity(l)) / port * (1 - 1e-9)));
    }
  }
  return out;
}

Survey survey(const Topology& topology) {
  const Network& n = topology.network();
  Survey s;
  s.switch_ports = switch_ports(topology);
  for (VertexId v = 0; v < n.vertices(); ++v) ++s.vertices[name_of(n.vertex(v).kind)];
  for (LinkId l = 0; l < n.links(); l += 2) {
    const auto [a, b] = n.ends(l);
    LinkCount& c = s.links[{name_of(n.vertex(a).kind), name_of(n.vertex(b).kind)}];
    const std::int64_t capacity = n.capacity(l);
    c.least = c.count == 0 ? capacity : std::min(c.least, capacity);
    c.most = std::max(c.most, capacity);
    ++c.count;
  }
  s.diameter = diameter(n);
  if (const std::int64_t half = n.devices() / 2; half > 0) {
    LinkLoads loads(n);
    for (std::int64_t d = 0; d < half; ++d) {
      loads.add_flow(d, d + half);
      loads.add_flow(d + half, d);
    }
    const auto [each, bottleneck] = loads.bandwidth();
    s.bisection = each * half;
    s.bisection_bottleneck = bottleneck;
  }
  return s;
}

std::string to_dot(const Network& network) {
  std::string out = "graph network {\n";
  for (VertexId v = 0; v < network.vertices(); ++v)
    out += fmt::format("  {}{};\n", in_quotes(network.name(v)),
                       network.vertex(v).kind == VertexKind::kDevice ? " [shape=box]" : "");
  for (LinkId l = 0; l < network.links(); l += 2) {
    const auto [a, b] = network.ends(l);
    out +=
        fmt::format("  {} -- {} [label=\"{}\"{}];\n", in_quotes(network.name(a)), in_quotes(network.name(b)),
                    format(Bandwidth{network.capacity(l)}), network.alive(l) ? "" : ", style=dotted");
  }
  return out + "}\n";
}

}  // namespace orrery::sim
