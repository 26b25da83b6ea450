// SPDX-License-Identifier: Apache-2.0
//
// A torus of nodes: a router each, joined to the next and the one before along every dimension, the node's
// bandwidth spread evenly over these links. Routes go dimension by dimension, the shorter way round; where
// that meets a failed link, the longer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/topology/network.h"

namespace orrery::sim {
namespace {

// The dimensions of the file when they hold the nodes; otherwise as many, as even as the nodes' divisors
// allow.
std::vector<std::int64_t> shape(const Cluster& c) {
  std::vector<std::int64_t> d = c.fabric.dimensions;
  std::int64_t product = 1;
  for (const std::int64_t x : d) product = product > c.nodes ? product : product * x;
  if (!d.empty() && product == c.nodes) return d;
  const std::size_t count = d.empty() ? 3 : d.size();
  d.clear();
  std::int64_t left = c.nodes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto remaining = static_cast<double>(count - i);
    auto x = static_cast<std::int64_t>(std::pow(static_cast<double>(left), 1 / remaining) + 1e-9);
    while (left % x != 0) --x;
    if (i + 1 == count) x = left;
    d.push_back(x);
    left /= x;
  }
  return d;
}

class Torus final : public Wiring {
 public:
  Torus(const Cluster& c, const Ports& ports, NetworkBuilder& builder)
      : ports_per_node_(ports.per_node), shape_(shape(c)) {
    constexpr std::size_t kMostDimensions = 8;
    builder.require_routing({Routing::kMinimal});
    if (c.fabric.sites > 1) builder.refuse("/fabric/sites", "a torus stands on one site", "1");
    if (shape_.size() > kMostDimensions)
      builder.refuse("/fabric/dimensions", std::to_string(shape_.size()) + " dimensions are too many",
                     "up to 8");
    std::int64_t hops = 0;  // of the longest route
    for (const std::int64_t x : shape_) hops += x / 2;
    constexpr std::int64_t kMostHops = 1 << 27;  // of one route from every node
    if (hops * c.nodes > kMostHops)
      builder.refuse(
          "/fabric/dimensions", fmt::format("routes of {} hops are too long", hops),
          fmt::format("{} hops on {} nodes: dimensions nearer to each other", kMostHops / c.nodes, c.nodes));
    const double node = ports.fastest * static_cast<double>(ports.per_node);
    std::int64_t wide = 0;  // dimensions that lead anywhere
    for (const std::int64_t x : shape_) wide += x > 1;
    const double each = node / static_cast<double>(2 * std::max<std::int64_t>(1, wide));
    std::vector<VertexId> router;
    for (std::int64_t n = 0; n < c.nodes; ++n) {
      router.push_back(builder.add(VertexKind::kRouter, n));
      for (std::int64_t r = 0; r < ports.per_node; ++r)
        to_router_.push_back(builder.connect(ports.at({n, r}), router.back(), ports.bandwidth(n)));
    }
    next_.resize(static_cast<std::size_t>(c.nodes) * shape_.size());
    for (std::int64_t n = 0; n < c.nodes; ++n) {
      for (std::size_t d = 0; d < shape_.size(); ++d) {
        if (shape_[d] == 1) continue;
        const std::int64_t to = step(n, d, 1);
        next_[static_cast<std::size_t>(n) * shape_.size() + d] =
            builder.connect(router[static_cast<std::size_t>(n)], router[static_cast<std::size_t>(to)], each,
                            c.fabric.switch_latency);
      }
    }
  }

  bool route(const Network& network, Port from, Port to, const Loads* /*loads*/, Path& path) const override {
    path.push_back(to_router_[static_cast<std::size_t>(from.node * ports_per_node_ + from.rail)]);
    std::int64_t at = from.node;
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      const std::int64_t forward = (coordinate(to.node, d) - coordinate(at, d) + shape_[d]) % shape_[d];
      if (forward == 0) continue;
      const std::size_t before = path.size();
      // Opposite nodes are as far either way: half of them go each.
      const bool up = 2 * forward == shape_[d] ? coordinate(at, d) % 2 == 0 : 2 * forward < shape_[d];
      const std::int64_t direction = up ? 1 : -1;
      std::int64_t end = walk(at, d, direction, to.node, path);
      const auto alive = [&](LinkId l) { return network.alive(l); };
      if (!std::all_of(path.begin() + static_cast<std::ptrdiff_t>(before), path.end(), alive)) {
        path.resize(before);
        end = walk(at, d, -direction, to.node, path);
        if (!std::all_of(path.begin() + static_cast<std::ptrdiff_t>(before), path.end(), alive)) return false;
      }
      at = end;
    }
    path.push_back(to_router_[static_cast<std::size_t>(to.node * ports_per_node_ + to.rail)] + 1);
    return true;
  }

  std::int64_t block_nodes() const override { return 0; }

 private:
  std::int64_t stride(std::size_t d) const {
    std::int64_t s = 1;
    for (std::size_t i = 0; i < d; ++i) s *= shape_[i];
    return s;
  }
  std::int64_t coordinate(std::int64_t node, std::size_t d) const { return node / stride(d) % shape_[d]; }
  std::int64_t step(std::int64_t node, std::size_t d, std::int64_t by) const {
    const std::int64_t x = coordinate(node, d);
    return node + ((x + by + shape_[d]) % shape_[d] - x) * stride(d);
  }
  // Along one dimension until its coordinate is that of `to`; returns where that is.
  std::int64_t walk(std::int64_t at, std::size_t d, std::int64_t direction, std::int64_t to,
                    Path& path) const {
    while (coordinate(at, d) != coordinate(to, d)) {
      const std::int64_t next = step(at, d, direction);
      const std::int64_t lower = direction > 0 ? at : next;
      const LinkId l = next_[static_cast<std::size_t>(lower) * shape_.size() + d];
      path.push_back(direction > 0 ? l : l + 1);
      at = next;
    }
    return at;
  }

  std::int64_t ports_per_node_;
  std::vector<std::int64_t> shape_;
  std::vector<LinkId> to_router_;  // by node and rail
  std::vector<LinkId> next_;       // by node and dimension: to the next
};

}  // namespace

std::unique_ptr<Wiring> make_torus(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder) {
  return std::make_unique<Torus>(cluster, ports, builder);
}

}  // namespace orrery::sim
