// SPDX-License-Identifier: Apache-2.0
//
// A free graph of switches: whatever the cluster's cables say. Routes are shortest by links; where several
// next hops are as short, the destination picks one, or with ecmp the hash of both ends. A cable that has
// failed is passed over where another of the same length is left.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/topology/network.h"

namespace orrery::sim {
namespace {

constexpr std::uint16_t kFar = UINT16_MAX;

class Graph final : public Wiring {
 public:
  Graph(const Cluster& c, const Ports& ports, NetworkBuilder& builder)
      : fabric_(c.fabric), per_node_(ports.per_node) {
    builder.require_routing({Routing::kMinimal, Routing::kEcmp});
    if (fabric_.sites > 1) builder.refuse("/fabric/sites", "a graph says itself where its sites are", "1");
    // Vertices of the graph: ports first, by node and rail, then switches.
    const std::int64_t all_ports = c.nodes * per_node_;
    for (std::int64_t p = 0; p < all_ports; ++p) vertices_.push_back(ports.ids[static_cast<std::size_t>(p)]);
    std::map<std::string, std::uint32_t, std::less<>> switches;
    struct Edge {
      std::uint32_t a, b;
      LinkId link;
    };
    std::vector<Edge> edges;
    for (std::size_t i = 0; i < fabric_.cables.size(); ++i) {
      const Cable& cable = fabric_.cables[i];
      const auto find = [&](const std::string& name, const char* end) {
        const std::string at = "/fabric/cables/" + std::to_string(i) + end;
        if (const auto p = port_named(name)) {
          if (p->node >= c.nodes || p->rail >= per_node_)
            builder.refuse(
                at, "\"" + name + "\" is no port of this cluster",
                "port0.0 to port" + std::to_string(c.nodes - 1) + "." + std::to_string(per_node_ - 1));
          return static_cast<std::uint32_t>(p->node * per_node_ + p->rail);
        }
        const auto [found, added] = switches.try_emplace(name, static_cast<std::uint32_t>(vertices_.size()));
        if (added) vertices_.push_back(builder.add_named(name));
        return found->second;
      };
      const std::uint32_t a = find(cable.from, "/from"), b = find(cable.to, "/to");
      if (a == b)
        builder.refuse("/fabric/cables/" + std::to_string(i), "joins a vertex to itself", "two vertices");
      const LinkId l = builder.connect(vertices_[a], vertices_[b], static_cast<double>(cable.bandwidth.value),
                                       cable.latency);
      edges.push_back({a, b, l});
      edges.push_back({b, a, l + 1});
    }
    builder.require(all_ports * static_cast<std::int64_t>(vertices_.size()));
    constexpr std::int64_t kMostSteps = 1 << 28;  // of the searches from all ports
    if (all_ports * static_cast<std::int64_t>(edges.size()) > kMostSteps)
      builder.refuse("/fabric/cables", fmt::format("{} cables are too many", fabric_.cables.size()),
                     fmt::format("{} with {} ports of nodes", kMostSteps / all_ports / 2, all_ports));
    std::stable_sort(edges.begin(), edges.end(), [](const Edge& x, const Edge& y) { return x.a < y.a; });
    first_.assign(vertices_.size() + 1, 0);
    for (const Edge& e : edges) {
      ++first_[e.a + 1];
      hops_.push_back({e.b, e.link});
    }
    for (std::size_t v = 0; v < vertices_.size(); ++v) first_[v + 1] += first_[v];
    for (std::int64_t p = 0; p < all_ports; ++p) measure(static_cast<std::uint32_t>(p));
  }

  bool route(const Network& network, Port from, Port to, const Loads*, Path& path) const override {
    const auto target = static_cast<std::uint32_t>(to.node * per_node_ + to.rail);
    const std::uint16_t* left = &distance_[target * vertices_.size()];
    const std::uint64_t choice = fabric_.routing == Routing::kEcmp ? route_hash(fabric_, from, to) : target;
    auto at = static_cast<std::uint32_t>(from.node * per_node_ + from.rail);
    if (left[at] == kFar) return false;
    boost::container::small_vector<std::uint32_t, 64> shorter;
    while (at != target) {
      shorter.clear();
      for (std::uint32_t i = first_[at]; i < first_[at + 1]; ++i) {
        if (left[hops_[i].to] + 1 == left[at] && network.alive(hops_[i].link)) shorter.push_back(i);
      }
      if (shorter.empty()) return false;
      const Hop& hop = hops_[shorter[choice % shorter.size()]];
      path.push_back(hop.link);
      at = hop.to;
    }
    return true;
  }

  std::int64_t block_nodes() const override { return 0; }

 private:
  struct Hop {
    std::uint32_t to;
    LinkId link;
  };

  // Links from every vertex to a port, by breadth-first search.
  void measure(std::uint32_t target) {
    const std::size_t offset = distance_.size();
    distance_.resize(offset + vertices_.size(), kFar);
    std::vector<std::uint32_t> queue{target};
    distance_[offset + target] = 0;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::uint32_t v = queue[i];
      for (std::uint32_t h = first_[v]; h < first_[v + 1]; ++h) {
        std::uint16_t& d = distance_[offset + hops_[h].to];
        if (d != kFar) continue;
        d = static_cast<std::uint16_t>(distance_[offset + v] + 1);
        if (d >= kFar - 1) continue;
        queue.push_back(hops_[h].to);
      }
    }
  }

  Fabric fabric_;
  std::int64_t per_node_;
  std::vector<VertexId> vertices_;
  std::vector<std::uint32_t> first_;  // by vertex, into hops_
  std::vector<Hop> hops_;
  std::vector<std::uint16_t> distance_;  // by port, then by vertex
};

}  // namespace

std::unique_ptr<Wiring> make_graph(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder) {
  return std::make_unique<Graph>(cluster, ports, builder);
}

}  // namespace orrery::sim
