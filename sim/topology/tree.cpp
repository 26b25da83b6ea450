// SPDX-License-Identifier: Apache-2.0
//
// Trees of switches: two or three levels, with or without rails, on one site or several.
//
// Without rails all ports of a node reach one leaf; with rails, port r reaches the leaf of rail r of its
// group of nodes. Rail-only fabrics have no switch that joins rails. Sprayed traffic spreads evenly over
// parallel links, so these are one trunk of their sum; other routings choose, so there each link stands by
// itself, and uplink u of every leaf reaches spine u.
#include <algorithm>
#include <cmath>

#include "sim/topology/network.h"

namespace orrery::sim {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

class Tree final : public Wiring {
 public:
  Tree(const Cluster& c, const Ports& ports, NetworkBuilder& builder) : fabric_(c.fabric) {
    builder.require_routing({Routing::kSpray, Routing::kEcmp, Routing::kMinimal});
    if (fabric_.sites > 1 && fabric_.site_bandwidth.value == 0)
      builder.refuse("/fabric/site_bandwidth", "sites are joined by nothing", "a bandwidth such as 800 Gb/s");
    const bool rails = fabric_.kind != FabricKind::kFatTree;
    const bool spray = fabric_.routing == Routing::kSpray;
    ports_per_node_ = ports.per_node;
    rails_ = rails ? ports.per_node : 1;
    planes_ = fabric_.kind == FabricKind::kRailOnly ? rails_ : 1;
    nodes_per_site_ = ceil_div(c.nodes, fabric_.sites);
    groups_per_site_ = ceil_div(nodes_per_site_, fabric_.leaf_nodes);
    fabric_.pod_leaves = std::min(fabric_.pod_leaves, groups_per_site_);
    pods_per_site_ = ceil_div(groups_per_site_, fabric_.pod_leaves);
    const std::int64_t groups = groups_per_site_ * fabric_.sites;

    const double down = static_cast<double>(fabric_.leaf_nodes * ports.per_node / rails_);
    const double up = down * ports.fastest / fabric_.oversubscription;
    uplinks_ = spray ? 1 : std::max<std::int64_t>(1, std::llround(down / fabric_.oversubscription));
    const double uplink = up / static_cast<double>(uplinks_);

    std::vector<VertexId> leaf;
    for (std::int64_t g = 0; g < groups; ++g) {
      for (std::int64_t r = 0; r < rails_; ++r)
        leaf.push_back(builder.add(VertexKind::kLeaf, g, rails_ > 1 ? r : -1));
    }
    for (std::int64_t n = 0; n < c.nodes; ++n) {
      for (std::int64_t r = 0; r < ports.per_node; ++r) {
        const Port p{n, r};
        to_leaf_.push_back(
            builder.connect(ports.at(p), leaf[static_cast<std::size_t>(leaf_of(p))], ports.bandwidth(n)));
      }
    }
    if (leaf.size() == 1) return;

    // The switches above the leaves: of a site, or of a pod when there is a third level.
    const bool pods = fabric_.levels == 3;
    const std::int64_t tops = pods ? pods_per_site_ * fabric_.sites : fabric_.sites;
    const VertexKind kind = pods ? VertexKind::kAggregation : VertexKind::kSpine;
    builder.require(saturating_multiply(tops * planes_, uplinks_));
    std::vector<VertexId> middle;
    for (std::int64_t i = 0; i < tops * planes_ * uplinks_; ++i)
      middle.push_back(builder.add(kind, i / uplinks_, uplinks_ > 1 ? i % uplinks_ : -1));
    for (std::int64_t l = 0; l < static_cast<std::int64_t>(leaf.size()); ++l) {
      for (std::int64_t u = 0; u < uplinks_; ++u) {
        leaf_up_.push_back(builder.connect(leaf[static_cast<std::size_t>(l)],
                                           middle[static_cast<std::size_t>(middle_of(l, u))], uplink));
      }
    }
    std::vector<VertexId> top = middle;
    if (pods) top = add_cores(middle, uplink, spray, builder);
    if (fabric_.sites > 1) join_sites(top, builder);
  }

  bool route(const Network& network, Port from, Port to, const Loads* /*loads*/, Path& path) const override {
    const std::int64_t a = leaf_of(from), b = leaf_of(to);
    path.push_back(to_leaf_[static_cast<std::size_t>(from.node * ports_per_node_ + from.rail)]);
    const LinkId last = to_leaf_[static_cast<std::size_t>(to.node * ports_per_node_ + to.rail)] + 1;
    if (a == b) {
      path.push_back(last);
      return true;
    }
    // Where the search for links that are alive begins: by hash, or by the digits of the destination
    // (d-mod-k).
    const bool hashed = fabric_.routing == Routing::kEcmp;
    const std::uint64_t hash = hashed ? route_hash(fabric_, from, to) : 0;
    const auto destination = static_cast<std::uint64_t>(to.node * ports_per_node_ + to.rail);
    const std::uint64_t uplink = hashed ? hash : destination;
    const std::uint64_t corelink = hashed ? hash >> 32 : destination / static_cast<std::uint64_t>(uplinks_);
    const std::size_t before = path.size();
    const auto alive = [&] {
      return !network.faulty() || std::all_of(path.begin() + static_cast<std::ptrdiff_t>(before), path.end(),
                                              [&](LinkId l) { return network.alive(l); });
    };
    for (std::int64_t tried = 0; tried < uplinks_; ++tried) {
      const std::int64_t u = static_cast<std::int64_t>((uplink + static_cast<std::uint64_t>(tried)) %
                                                       static_cast<std::uint64_t>(uplinks_));
      for (std::int64_t again = 0; again < corelinks_; ++again) {
        path.resize(before);
        const auto v = static_cast<std::int64_t>((corelink + static_cast<std::uint64_t>(again)) %
                                                 static_cast<std::uint64_t>(corelinks_));
        climb(a, b, u, v, path);
        if (alive()) {
          path.push_back(last);
          return true;
        }
      }
    }
    return false;
  }

  std::int64_t block_nodes() const override {
    if (fabric_.routing != Routing::kSpray || fabric_.sites > 1) return 0;
    return fabric_.leaf_nodes * (fabric_.levels == 3 ? fabric_.pod_leaves : 1);
  }

 private:
  std::int64_t site_of_leaf(std::int64_t leaf) const { return leaf / rails_ / groups_per_site_; }
  std::int64_t leaf_of(Port p) const {
    const std::int64_t site = p.node / nodes_per_site_;
    const std::int64_t group = site * groups_per_site_ + p.node % nodes_per_site_ / fabric_.leaf_nodes;
    return rails_ > 1 ? group * rails_ + p.rail : group;
  }
  std::int64_t middle_of(std::int64_t leaf, std::int64_t uplink) const {
    const std::int64_t site = site_of_leaf(leaf), plane = planes_ > 1 ? leaf % rails_ : 0;
    const std::int64_t top =
        fabric_.levels == 3 ? site * pods_per_site_ + leaf / rails_ % groups_per_site_ / fabric_.pod_leaves
                            : site;
    return (top * planes_ + plane) * uplinks_ + uplink;
  }

  // Aggregation switch u of every pod reaches the same cores.
  std::vector<VertexId> add_cores(const std::vector<VertexId>& aggregation, double uplink, bool spray,
                                  NetworkBuilder& builder) {
    const double down = static_cast<double>(fabric_.pod_leaves * rails_ / planes_);
    const double up = down * uplink / fabric_.pod_oversubscription;
    corelinks_ = spray ? 1 : std::max<std::int64_t>(1, std::llround(down / fabric_.pod_oversubscription));
    std::vector<VertexId> core;
    const std::int64_t each = saturating_multiply(planes_ * uplinks_, corelinks_);
    builder.require(saturating_multiply(fabric_.sites, each));
    for (std::int64_t i = 0; i < fabric_.sites * each; ++i)
      core.push_back(builder.add(VertexKind::kSpine, i / corelinks_, corelinks_ > 1 ? i % corelinks_ : -1));
    for (std::size_t m = 0; m < aggregation.size(); ++m) {
      const auto at = static_cast<std::int64_t>(m);
      const std::int64_t site = at / (planes_ * uplinks_) / pods_per_site_;
      for (std::int64_t v = 0; v < corelinks_; ++v) {
        core_up_.push_back(builder.connect(
            aggregation[m],
            core[static_cast<std::size_t>(site * each + at % (planes_ * uplinks_) * corelinks_ + v)],
            up / static_cast<double>(corelinks_), fabric_.switch_latency));
      }
    }
    return core;
  }

  void join_sites(const std::vector<VertexId>& top, NetworkBuilder& builder) {
    const auto each = static_cast<std::int64_t>(top.size()) / fabric_.sites;
    const double line = static_cast<double>(fabric_.site_bandwidth.value);
    std::vector<VertexId> site;
    for (std::int64_t s = 0; s < fabric_.sites; ++s) {
      site.push_back(builder.add(VertexKind::kSite, s));
      for (std::int64_t t = 0; t < each; ++t) {
        to_site_.push_back(builder.connect(top[static_cast<std::size_t>(s * each + t)], site.back(),
                                           line * static_cast<double>(fabric_.sites - 1)));
      }
    }
    between_.resize(static_cast<std::size_t>(fabric_.sites * fabric_.sites));
    for (std::int64_t a = 0; a < fabric_.sites; ++a) {
      for (std::int64_t b = a + 1; b < fabric_.sites; ++b) {
        const LinkId l = builder.connect(site[static_cast<std::size_t>(a)], site[static_cast<std::size_t>(b)],
                                         line, fabric_.site_latency);
        between_[static_cast<std::size_t>(a * fabric_.sites + b)] = l;
        between_[static_cast<std::size_t>(b * fabric_.sites + a)] = l + 1;
      }
    }
  }

  // From leaf a over uplink u, and core link v where that is needed, to leaf b.
  void climb(std::int64_t a, std::int64_t b, std::int64_t u, std::int64_t v, Path& path) const {
    const std::int64_t site_a = site_of_leaf(a), site_b = site_of_leaf(b);
    const std::int64_t ma = middle_of(a, u), mb = middle_of(b, u);
    const auto leaf_up = [&](std::int64_t leaf) {
      return leaf_up_[static_cast<std::size_t>(leaf * uplinks_ + u)];
    };
    const auto core_up = [&](std::int64_t m) {
      return core_up_[static_cast<std::size_t>(m * corelinks_ + v)];
    };
    path.push_back(leaf_up(a));
    if (ma != mb) {
      const bool cores = !core_up_.empty();
      if (cores) path.push_back(core_up(ma));
      if (site_a != site_b) {
        const std::int64_t each = static_cast<std::int64_t>(to_site_.size()) / fabric_.sites;
        const std::int64_t within = cores ? ma % (planes_ * uplinks_) * corelinks_ + v : ma % each;
        const auto to_site = [&](std::int64_t s) {
          return to_site_[static_cast<std::size_t>(s * each + within)];
        };
        path.push_back(to_site(site_a));
        path.push_back(between_[static_cast<std::size_t>(site_a * fabric_.sites + site_b)]);
        path.push_back(to_site(site_b) + 1);
      }
      if (cores) path.push_back(core_up(mb) + 1);
    }
    path.push_back(leaf_up(b) + 1);
  }

  Fabric fabric_;
  std::int64_t ports_per_node_ = 1, rails_ = 1, planes_ = 1;  // planes: sets of spines that do not meet
  std::int64_t nodes_per_site_ = 1, groups_per_site_ = 1, pods_per_site_ = 1;
  std::int64_t uplinks_ = 1, corelinks_ = 1;
  std::vector<LinkId> to_leaf_;  // by node and rail
  std::vector<LinkId> leaf_up_;  // by leaf and uplink
  std::vector<LinkId> core_up_;  // by aggregation switch and core link
  std::vector<LinkId> to_site_;  // by site and top switch
  std::vector<LinkId> between_;  // by site and site
};

}  // namespace

std::unique_ptr<Wiring> make_tree(const Cluster& cluster, const Ports& ports, NetworkBuilder& builder) {
  return std::make_unique<Tree>(cluster, ports, builder);
}

}  // namespace orrery::sim
