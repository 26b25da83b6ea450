// SPDX-License-Identifier: Apache-2.0
//
// A dragonfly: groups of routers that are all joined to each other, every two groups joined by global links
// at routers of their own. With p ports of nodes at a router, a routers in a group: local links carry 2 p
// ports' bandwidth a router, global links a p a group (Kim et al., 2008, the balanced case), less the
// oversubscription. Minimal routes take the one global link between both groups; adaptive ones take two, over
// a third group, where the links of the minimal route are loaded more than twice as much (UGAL).
#include <algorithm>

#include "sim/topology/network.h"

namespace orrery::sim {
namespace {

class Dragonfly final : public Wiring {
 public:
  Dragonfly(const Cluster& c, const Ports& ports, NetworkBuilder& builder)
      : fabric_(c.fabric), ports_per_node_(ports.per_node), routers_(fabric_.group_routers) {
    const std::int64_t all = (c.nodes + fabric_.router_nodes - 1) / fabric_.router_nodes;
    groups_ = (all + routers_ - 1) / routers_;
    const double injection = ports.fastest * static_cast<double>(ports.per_node * fabric_.router_nodes);
    builder.require_routing({Routing::kMinimal, Routing::kAdaptive});
    if (fabric_.sites > 1) builder.refuse("/fabric/sites", "a dragonfly stands on one site", "1");
    builder.require(groups_ * routers_ * routers_);
    builder.require(groups_ * (groups_ + routers_));
    std::vector<VertexId> router;
    for (std::int64_t r = 0; r < groups_ * routers_; ++r)
      router.push_back(builder.add(VertexKind::kRouter, r / routers_, r % routers_));
    for (std::int64_t n = 0; n < c.nodes; ++n) {
      for (std::int64_t r = 0; r < ports.per_node; ++r) {
        to_router_.push_back(builder.connect(ports.at({n, r}),
                                             router[static_cast<std::size_t>(n / fabric_.router_nodes)],
                                             ports.bandwidth(n)));
      }
    }
    local_.resize(router.size() * static_cast<std::size_t>(routers_));
    for (std::int64_t g = 0; g < groups_; ++g) {
      for (std::int64_t a = 0; a < routers_; ++a) {
        for (std::int64_t b = a + 1; b < routers_; ++b) {
          const std::int64_t ra = g * routers_ + a, rb = g * routers_ + b;
          const LinkId l =
              builder.connect(router[static_cast<std::size_t>(ra)], router[static_cast<std::size_t>(rb)],
                              2 * injection / static_cast<double>(routers_ - 1), fabric_.switch_latency);
          local_[static_cast<std::size_t>(ra * routers_ + b)] = l;
          local_[static_cast<std::size_t>(rb * routers_ + a)] = l + 1;
        }
      }
    }
    if (groups_ == 1) return;
    // So many links join two groups, at routers that are as far apart as there are.
    parallel_ = std::max<std::int64_t>(1, routers_ / (groups_ - 1));
    const double global = injection * static_cast<double>(routers_) / fabric_.oversubscription /
                          static_cast<double>((groups_ - 1) * parallel_);
    global_.resize(static_cast<std::size_t>(groups_ * groups_ * parallel_));
    for (std::int64_t a = 0; a < groups_; ++a) {
      for (std::int64_t b = a + 1; b < groups_; ++b) {
        for (std::int64_t k = 0; k < parallel_; ++k) {
          const LinkId l = builder.connect(router[static_cast<std::size_t>(gateway(a, b, k))],
                                           router[static_cast<std::size_t>(gateway(b, a, k))], global,
                                           fabric_.switch_latency);
          global_[index(a, b, k)] = l;
          global_[index(b, a, k)] = l + 1;
        }
      }
    }
  }

  bool route(const Network& network, Port from, Port to, const Loads* loads, Path& path) const override {
    path.push_back(to_router_[static_cast<std::size_t>(from.node * ports_per_node_ + from.rail)]);
    const std::size_t before = path.size();
    const std::int64_t ra = from.node / fabric_.router_nodes, rb = to.node / fabric_.router_nodes;
    const std::int64_t a = ra / routers_, b = rb / routers_;
    const std::uint64_t hash = route_hash(fabric_, from, to);
    bool open = false;
    double minimal = 0;  // the most loaded link of the way
    for (std::int64_t k = 0; k < parallel_ && !open; ++k) {
      path.resize(before);
      std::int64_t at = ra;
      at = hop_groups(at, a, b, (static_cast<std::int64_t>(hash % 4096) + k) % parallel_, path);
      within(at, rb, path);
      open = usable(network, path, before);
    }
    if (open && loads != nullptr) minimal = load(network, *loads, path, before);
    const bool detour = !open || (fabric_.routing == Routing::kAdaptive && loads != nullptr && minimal > 0);
    if (detour && groups_ > 2 && a != b) {
      const Path straight(path.begin(), path.end());
      bool better = false;
      for (std::int64_t i = 0; i < groups_ && !better; ++i) {
        const auto via = static_cast<std::int64_t>((hash >> 32) % static_cast<std::uint64_t>(groups_) +
                                                   static_cast<std::uint64_t>(i)) %
                         groups_;
        if (via == a || via == b) continue;
        path.resize(before);
        std::int64_t at = ra;
        const auto k = static_cast<std::int64_t>((hash >> 16) % static_cast<std::uint64_t>(parallel_));
        at = hop_groups(at, a, via, k, path);
        at = hop_groups(at, via, b, k, path);
        within(at, rb, path);
        if (!usable(network, path, before)) continue;
        better = !open || 2 * load(network, *loads, path, before) < minimal;
        if (open) break;  // one candidate, as UGAL has
      }
      if (!better) path.assign(straight.begin(), straight.end());
      open = open || better;
    }
    path.push_back(to_router_[static_cast<std::size_t>(to.node * ports_per_node_ + to.rail)] + 1);
    return open;
  }

  std::int64_t block_nodes() const override { return 0; }

 private:
  std::size_t index(std::int64_t a, std::int64_t b, std::int64_t k) const {
    return static_cast<std::size_t>((a * groups_ + b) * parallel_ + k);
  }
  // The router of group a that has link k to group b.
  std::int64_t gateway(std::int64_t a, std::int64_t b, std::int64_t k) const {
    const std::int64_t other = (b - a + groups_) % groups_ - 1;
    return a * routers_ + (other * parallel_ + k) % routers_;
  }
  void within(std::int64_t from, std::int64_t to, Path& path) const {
    if (from != to) path.push_back(local_[static_cast<std::size_t>(from * routers_ + to % routers_)]);
  }
  // Over link k between both groups; returns the router where that ends.
  std::int64_t hop_groups(std::int64_t at, std::int64_t a, std::int64_t b, std::int64_t k, Path& path) const {
    if (a == b) return at;
    within(at, gateway(a, b, k), path);
    path.push_back(global_[index(a, b, k)]);
    return gateway(b, a, k);
  }
  static bool usable(const Network& network, const Path& path, std::size_t first) {
    return std::all_of(path.begin() + static_cast<std::ptrdiff_t>(first), path.end(),
                       [&](LinkId l) { return network.alive(l); });
  }
  static double load(const Network& network, const Loads& loads, const Path& path, std::size_t first) {
    double most = 0;
    for (std::size_t i = first; i < path.size(); ++i)
      most = std::max(most, loads[path[i]] / static_cast<double>(network.capacity(path[i])));
    return most;
  }

  Fabric fabric_;
  std::int64_t ports_per_node_, routers_, groups_ = 1, parallel_ = 1;
  std::vector<LinkId> to_router_;  // by node and rail
  std::vector<LinkId> local_;      // by router and router of its group
  std::vector<LinkId> global_;     // by group, group and link
};

}  // namespace

std::unique_ptr<Wiring> make_dragonfly(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder) {
  return std::make_unique<Dragonfly>(cluster, ports, builder);
}

}  // namespace orrery::sim
