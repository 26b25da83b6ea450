// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "core/error.h"
#include "sim/network/fair_shares.h"
#include "sim/topology/topology.h"

namespace orrery::sim {
namespace {

using FlowRates = std::vector<std::int64_t>;

FlowRates all(FairShares& s, std::int64_t limit = kNoLimit) {
  std::vector<std::int32_t> active;
  for (std::size_t i = 0; i < s.activities(); ++i) active.push_back(static_cast<std::int32_t>(i));
  const auto r = s.solve(active, FlowRates(active.size(), limit));
  return {r.begin(), r.end()};
}

// Two links of 100 and 50; a uses the first, b both, c the second: b and c share 50, a gets what is left.
TEST(FairShares, WhatIsHeldBackElsewhereLeavesItsShareToOthers) {
  FairShares s({100, 50});
  s.add({{0, 1}});
  s.add({{0, 1}, {1, 1}});
  s.add({{1, 1}});
  EXPECT_EQ(all(s), (FlowRates{75, 25, 25}));
  EXPECT_EQ(std::vector(s.bottlenecks().begin(), s.bottlenecks().end()),
            (std::vector<std::int32_t>{0, 1, 1}));
}

TEST(FairShares, ALimitLeavesTheRestToOthers) {
  FairShares s({90});
  for (int i = 0; i < 3; ++i) s.add({{0, 1}});
  const std::int32_t active[] = {0, 1, 2};
  const std::int64_t limits[] = {10, kNoLimit, kNoLimit};
  const auto r = s.solve(active, limits);
  EXPECT_EQ(FlowRates(r.begin(), r.end()), (FlowRates{10, 40, 40}));
  EXPECT_EQ(s.bottlenecks()[0], -1);
}

struct Problem {
  std::vector<std::int64_t> capacity;
  std::vector<std::vector<FairShares::Use>> flows;
  std::vector<std::int64_t> limits;
};

Problem random_problem(std::mt19937& random) {
  Problem p;
  const std::size_t links = 1 + random() % 12, flows = 1 + random() % 20;
  for (std::size_t l = 0; l < links; ++l) p.capacity.push_back(1'000'000 + random() % 100'000'000'000);
  for (std::size_t f = 0; f < flows; ++f) {
    auto& uses = p.flows.emplace_back();
    for (std::size_t l = 0; l < links; ++l) {
      if (random() % 3 == 0)
        uses.push_back({static_cast<std::int32_t>(l), 1 + static_cast<std::int64_t>(random() % 4)});
    }
    if (uses.empty()) uses.push_back({static_cast<std::int32_t>(random() % links), 1});
    p.limits.push_back(random() % 4 == 0 ? 1 + static_cast<std::int64_t>(random() % 10'000'000'000)
                                         : kNoLimit);
  }
  return p;
}

FlowRates solve(const Problem& p, std::vector<std::int32_t>* bottlenecks = nullptr) {
  FairShares s(p.capacity);
  std::vector<std::int32_t> active;
  for (const auto& uses : p.flows) active.push_back(s.add(uses));
  const auto r = s.solve(active, p.limits);
  if (bottlenecks != nullptr) bottlenecks->assign(s.bottlenecks().begin(), s.bottlenecks().end());
  return {r.begin(), r.end()};
}

// The most that rounding down to whole bytes per second can lose on a link: one per unit of weight.
std::int64_t weight_on(const Problem& p, std::int32_t link) {
  std::int64_t w = 0;
  for (const auto& uses : p.flows) {
    for (const auto& u : uses) w += u.link == link ? u.weight : 0;
  }
  return w;
}

TEST(FairShares, InvariantsHoldForTenThousandRandomProblems) {
  constexpr unsigned kSeed = 20261122;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 10'000; ++trial) {
    SCOPED_TRACE(fmt::format("seed {} trial {}", kSeed, trial));
    const Problem p = random_problem(random);
    std::vector<std::int32_t> bottlenecks;
    const FlowRates rates = solve(p, &bottlenecks);
    // Conservation: no link carries more than it can.
    FlowRates load(p.capacity.size());
    FlowRates fastest(p.capacity.size());
    for (std::size_t f = 0; f < rates.size(); ++f) {
      for (const auto& u : p.flows[f]) {
        load[static_cast<std::size_t>(u.link)] += u.weight * rates[f];
        fastest[static_cast<std::size_t>(u.link)] =
            std::max(fastest[static_cast<std::size_t>(u.link)], rates[f]);
      }
    }
    for (std::size_t l = 0; l < load.size(); ++l) ASSERT_LE(load[l], p.capacity[l]);
    // Max-min: what holds a flow back is its limit, or a full link on which nobody is faster.
    for (std::size_t f = 0; f < rates.size(); ++f) {
      if (bottlenecks[f] < 0) {
        ASSERT_EQ(rates[f], p.limits[f]);
        continue;
      }
      const auto l = static_cast<std::size_t>(bottlenecks[f]);
      ASSERT_GE(load[l] + weight_on(p, bottlenecks[f]), p.capacity[l]);
      ASSERT_EQ(fastest[l], rates[f]);
    }
    const std::int64_t least = *std::min_element(rates.begin(), rates.end());
    // Another flow never raises the smallest rate.
    Problem more = p;
    more.flows.push_back({{static_cast<std::int32_t>(random() % p.capacity.size()), 1}});
    more.limits.push_back(kNoLimit);
    const FlowRates with = solve(more);
    ASSERT_LE(*std::min_element(with.begin(), with.end() - 1), least);
    // k times the capacities and limits: k times the rates, to the rounding of each.
    Problem scaled = p;
    constexpr std::int64_t k = 1000;
    for (auto& c : scaled.capacity) c *= k;
    for (auto& limit : scaled.limits) limit = limit == kNoLimit ? limit : limit * k;
    const FlowRates larger = solve(scaled);
    for (std::size_t f = 0; f < rates.size(); ++f) {
      ASSERT_NEAR(static_cast<double>(larger[f]) / k, static_cast<double>(rates[f]),
                  1 + static_cast<double>(p.flows.size()) * 40);
    }
    // Flows in another order: the same rates.
    Problem reversed = p;
    std::reverse(reversed.flows.begin(), reversed.flows.end());
    std::reverse(reversed.limits.begin(), reversed.limits.end());
    FlowRates back = solve(reversed);
    std::reverse(back.begin(), back.end());
    ASSERT_EQ(back, rates);
    // A class of n flows has the rate that n single ones have, to the last bit.
    Problem folded = p, single = p;
    const std::int64_t n = 2 + static_cast<std::int64_t>(random() % 5);
    for (auto& u : folded.flows[0]) u.weight *= n;
    for (std::int64_t i = 1; i < n; ++i) {
      single.flows.push_back(p.flows[0]);
      single.limits.push_back(p.limits[0]);
    }
    const FlowRates f = solve(folded), s = solve(single);
    for (std::size_t i = 0; i < f.size(); ++i) ASSERT_EQ(f[i], s[i]);
  }
}

// --- networks --------------------------------------------------------------------------------------

Cluster cluster(FabricKind kind, std::int64_t nodes) {
  Cluster c;
  c.name = "test";
  c.nodes = nodes;
  c.devices_per_node = c.nics = 4;
  c.intra_bandwidth = Bandwidth{450'000'000'000};
  c.nic_bandwidth = Bandwidth{200'000'000'000};
  c.intra_efficiency = c.nic_efficiency = 1;
  c.fabric.kind = kind;
  c.fabric.leaf_nodes = 4;
  c.fabric.pod_leaves = 2;
  c.fabric.router_nodes = 2;
  c.fabric.group_routers = 4;
  return c;
}

// Every fabric, routing and number of levels of 48 nodes.
std::vector<Cluster> fabrics() {
  std::vector<Cluster> out;
  for (const FabricKind kind : {FabricKind::kFatTree, FabricKind::kRailOptimized, FabricKind::kRailOnly}) {
    for (const std::int64_t levels : {2, 3}) {
      for (const Routing routing : {Routing::kSpray, Routing::kEcmp, Routing::kMinimal}) {
        for (const std::int64_t sites : {1, 2}) {
          Cluster c = cluster(kind, 48);
          c.fabric.levels = levels;
          c.fabric.routing = routing;
          c.fabric.sites = sites;
          c.fabric.site_bandwidth = Bandwidth{100'000'000'000};
          out.push_back(c);
        }
      }
    }
  }
  for (const Routing routing : {Routing::kMinimal, Routing::kAdaptive}) {
    out.push_back(cluster(FabricKind::kDragonfly, 48));
    out.back().fabric.routing = routing;
  }
  for (const auto& d : {std::vector<std::int64_t>{8, 6}, {4, 4, 3}, {48}, {}}) {
    out.push_back(cluster(FabricKind::kTorus, 48));
    out.back().fabric.routing = Routing::kMinimal;
    out.back().fabric.dimensions = d;
  }
  return out;
}

std::string text(const Cluster& c) {
  return fmt::format("{} {} levels, {} sites, {}", name_of(c.fabric.kind), c.fabric.levels, c.fabric.sites,
                     name_of(c.fabric.routing));
}

// Every route of every fabric is a path of its graph from one device to the other that visits nothing twice.
TEST(Network, RoutesAreSimplePaths) {
  for (const Cluster& c : fabrics()) {
    SCOPED_TRACE(text(c));
    const Network n(c);
    const Loads loads(n.links(), 1.0);
    Path path;
    for (std::int64_t from = 0; from < n.devices(); from += 7) {
      for (std::int64_t to = 0; to < n.devices(); ++to) {
        n.route(from, to, path, n.adaptive() ? &loads : nullptr);
        if (from == to) {
          ASSERT_TRUE(path.empty());
          continue;
        }
        auto at = static_cast<VertexId>(from);
        std::set<VertexId> seen{at};
        for (const LinkId l : path) {
          ASSERT_EQ(n.ends(l).first, at) << from << " to " << to << ": " << n.link_name(l);
          at = n.ends(l).second;
          ASSERT_TRUE(seen.insert(at).second || n.name(at).starts_with("switch")) << n.name(at);
        }
        ASSERT_EQ(at, static_cast<VertexId>(to));
      }
    }
  }
}

TEST(Network, ARingNeverBeatsItsPortsAndSharingNeverHelps) {
  for (const Cluster& c : fabrics()) {
    SCOPED_TRACE(text(c));
    const Topology t(c);
    for (const auto& [size, stride] : {std::pair<std::int64_t, std::int64_t>{48, 4}, {12, 16}, {6, 32}}) {
      const GroupLinks g = t.group(size, stride);
      EXPECT_EQ(g.per_domain, 1);
      // One member a node: its port, 50 GB/s.
      EXPECT_LE(g.ring.value, 50'000'000'000);
      EXPECT_GT(g.ring.value, 0);
    }
    LinkLoads one(t.network()), two(t.network());
    const std::vector<std::int64_t> a{0, 16, 32, 48}, b{4, 20, 36, 52};
    one.add_ring(a, 4);
    two.add_ring(a, 4);
    two.add_ring(b, 4);
    EXPECT_LE(two.bandwidth().first, one.bandwidth().first);
  }
}

// What group() finds from the first block of a fabric is what the loads of all groups give.
TEST(Network, GroupsAreBoundedByTheLoadsOfAllOfThem) {
  for (const FabricKind kind : {FabricKind::kFatTree, FabricKind::kRailOptimized}) {
    for (const std::int64_t nodes : {64, 128}) {
      Cluster c = cluster(kind, nodes);
      c.fabric.oversubscription = 2;
      c.fabric.levels = nodes == 128 ? 3 : 2;
      c.fabric.pod_oversubscription = 3;
      const Topology t(c);
      for (std::int64_t size = 2; size <= c.devices(); size *= 2) {
        for (std::int64_t stride = 1; size * stride <= c.devices(); stride *= 2) {
          LinkLoads loads(t.network());
          for (std::int64_t first = 0; first < c.devices(); first += size * stride) {
            for (std::int64_t offset = 0; offset < stride; ++offset) {
              std::vector<std::int64_t> members;
              for (std::int64_t i = 0; i < size; ++i) members.push_back(first + offset + i * stride);
              loads.add_ring(members, 4);
            }
          }
          ASSERT_EQ(t.group(size, stride).ring, loads.bandwidth().first)
              << text(c) << ", " << size << " ranks " << stride << " apart";
        }
      }
    }
  }
}

// A ring over all nodes in order: every leaf is left and entered once, whatever the oversubscription.
TEST(Network, OversubscriptionCostsWhatLeavesALeaf) {
  Cluster c = cluster(FabricKind::kFatTree, 48);
  c.fabric.oversubscription = 4;
  const Topology t(c);
  // Four devices of a node, one ring each, leave the leaf once: 16 ports, 200 GB/s up, 4 flows: 50 GB/s each.
  EXPECT_EQ(t.group(48, 4).ring.value, 50'000'000'000);
  // Members four nodes apart: every hop leaves its leaf. 16 flows share 200 GB/s.
  EXPECT_EQ(t.group(12, 16).ring.value, 12'500'000'000);
}

// Four nodes of a device each, two to a leaf: of the three parts that a member of an all-to-all sends, two
// leave its leaf, so the uplink carries 2 x 2/3 of a member's bytes, and a ring's carries one member's. All
// parts of a gather come through the root's port: all that it receives.
TEST(Network, DirectCollectivesLoadTheLinksOfTheirParts) {
  Cluster c = cluster(FabricKind::kFatTree, 4);
  c.devices_per_node = c.nics = 1;
  c.fabric.leaf_nodes = 2;
  const Network n(c);
  const std::vector<std::int64_t> members{0, 1, 2, 3};
  const auto on = [&](const LinkLoads& loads, const char* link) {
    for (const LinkId l : loads.used()) {
      if (n.link_name(l) == link) return static_cast<double>(loads[l]) / LinkLoads::kWhole;
    }
    return 0.0;
  };
  LinkLoads ring(n), exchange(n), gather(n), scatter(n);
  ring.add_ring(members, 1);
  EXPECT_DOUBLE_EQ(on(ring, "leaf0 > spine0"), 1);
  exchange.add_direct(program::Pattern::kEachToEach, members);
  EXPECT_NEAR(on(exchange, "leaf0 > spine0"), 4.0 / 3, 1e-5);
  EXPECT_NEAR(on(exchange, "device0 > port0.0"), 1, 1e-5);
  gather.add_direct(program::Pattern::kToRoot, members);
  EXPECT_NEAR(on(gather, "port0.0 > device0"), 1, 1e-5);
  EXPECT_NEAR(on(gather, "leaf1 > spine0"), 2.0 / 3, 1e-5);
  EXPECT_EQ(on(gather, "leaf0 > spine0"), 0);
  scatter.add_direct(program::Pattern::kFromRoot, members);
  EXPECT_NEAR(on(scatter, "device0 > port0.0"), 1, 1e-5);
  EXPECT_EQ(on(scatter, "leaf1 > spine0"), 0);
}

// The latency of a hop reaches as far as a pod; the way over the core adds a switch up and one down. Leaves
// join 4 nodes of 4 devices, pods 2 leaves.
TEST(Network, TheWayOverTheCoreTakesTwoSwitchesMore) {
  Cluster c = cluster(FabricKind::kFatTree, 64);
  c.fabric.levels = 3;
  c.fabric.switch_latency = Time{700'000};
  for (const Routing routing : {Routing::kSpray, Routing::kMinimal}) {
    c.fabric.routing = routing;
    const Topology t(c);
    const auto extra = [&](std::int64_t to) {
      LinkLoads loads(t.network());
      loads.add_flow(0, to);
      return loads.extra_latency().value;
    };
    EXPECT_EQ(extra(4), 0) << name_of(routing);
    EXPECT_EQ(extra(16), 0) << name_of(routing);
    EXPECT_EQ(extra(32), 2 * 700'000) << name_of(routing);
  }
}

// Three levels. A leaf joins 4 nodes of 200 GB/s, so 800 GB/s climb from it; a pod joins 2 leaves, 1600 GB/s.
// Members 8 nodes apart: every hop leaves its pod, and 32 flows share what climbs from it.
TEST(Network, OversubscriptionOfPodsCostsWhatLeavesAPod) {
  for (const Routing routing : {Routing::kSpray, Routing::kMinimal}) {
    Cluster c = cluster(FabricKind::kFatTree, 64);
    c.fabric.routing = routing;
    c.fabric.levels = 3;
    c.fabric.pod_leaves = 2;
    const auto ring = [&](std::int64_t pod_oversubscription) {
      c.fabric.pod_oversubscription = static_cast<double>(pod_oversubscription);
      const Topology t(c);
      LinkLoads loads(t.network());
      for (std::int64_t d = 0; d < 256; ++d) loads.add_flow(d, (d + 32) % 256);
      return loads.bandwidth().first.value;
    };
    EXPECT_EQ(ring(1), 50'000'000'000) << name_of(routing);
    EXPECT_EQ(ring(4), 1'600'000'000'000 / 4 / 32) << name_of(routing);
    EXPECT_EQ(Topology(c).group(2, 16).ring.value, 50'000'000'000) << "4 nodes apart they share a pod";
    EXPECT_EQ(Topology(c).group(8, 32).ring.value, 12'500'000'000) << name_of(routing);
  }
}

// On a torus of 8 x 6 a ring along the first dimension uses one link of 50 GB/s a hop: a node's 200 GB/s over
// four directions.
TEST(Network, ATorusSpreadsTheNodeOverItsDirections) {
  Cluster c = cluster(FabricKind::kTorus, 48);
  c.fabric.routing = Routing::kMinimal;
  c.fabric.dimensions = {8, 6};
  const Topology t(c);
  LinkLoads ring(t.network());
  std::vector<std::int64_t> row;
  for (std::int64_t x = 0; x < 8; ++x) row.push_back(4 * x);
  ring.add_ring(row, 4);
  EXPECT_EQ(ring.bandwidth().first.value, 50'000'000'000);
  // Every second node of the row: each hop takes two links, which no other hop of the ring takes.
  ring.clear();
  ring.add_ring(std::vector<std::int64_t>{0, 8, 16, 24}, 4);
  EXPECT_EQ(ring.bandwidth().first.value, 50'000'000'000);
  // Opposite nodes use both ways round: 8 columns x 2 ways x 50 GB/s, of which every node sends its share
  // of 24.
  ring.clear();
  for (std::int64_t node = 0; node < 48; ++node)
    ring.add_flow(4 * node, 4 * (node % 8 + 8 * ((node / 8 + 3) % 6)));
  EXPECT_EQ(ring.bandwidth().first.value, 50'000'000'000 / 2);
  Path path;
  t.network().route(0, 4 * (4 + 8 * 3), path);
  EXPECT_EQ(path.size(), 4U + 4U + 3U);  // device, port, router and back; 4 along x, 3 along y
}

// Sprayed uplinks never collide; hashed ones do: of 16 flows on 16 links, some share.
TEST(Network, EcmpCollides) {
  Cluster c = cluster(FabricKind::kFatTree, 48);
  const auto permutation = [](const Topology& t) {
    LinkLoads loads(t.network());
    for (std::int64_t d = 0; d < 192; ++d) loads.add_flow(d, (d + 16) % 192);
    return loads.bandwidth().first.value;
  };
  EXPECT_EQ(permutation(Topology(c)), 50'000'000'000);
  c.fabric.routing = Routing::kMinimal;  // d-mod-k spreads a shift perfectly
  EXPECT_EQ(permutation(Topology(c)), 50'000'000'000);
  c.fabric.routing = Routing::kEcmp;
  const std::int64_t hashed = permutation(Topology(c));
  EXPECT_LE(hashed, 25'000'000'000);
  c.fabric.seed = 2;
  EXPECT_LE(permutation(Topology(c)), 25'000'000'000);
}

// All nodes of one group send to the next: one global link takes all of it, unless routes adapt.
TEST(Network, AdaptiveRoutesDetourWhereADragonflyIsLoaded) {
  Cluster c = cluster(FabricKind::kDragonfly, 64);  // 8 groups of 8 nodes
  const auto shift = [](const Topology& t) {
    LinkLoads loads(t.network());
    for (std::int64_t d = 0; d < 256; ++d) loads.add_flow(d, (d + 32) % 256);
    return loads.bandwidth().first.value;
  };
  c.fabric.routing = Routing::kMinimal;
  const std::int64_t minimal = shift(Topology(c));
  c.fabric.routing = Routing::kAdaptive;
  const std::int64_t adaptive = shift(Topology(c));
  EXPECT_GE(adaptive, 3 * minimal / 2);
}

TEST(Network, FailedLinksAreAvoidedOrNamed) {
  Cluster c = cluster(FabricKind::kFatTree, 48);
  c.fabric.routing = Routing::kMinimal;
  const Path before = [&] {
    Path p;
    Network(c).route(0, 100, p);
    return p;
  }();
  const Network whole(c);
  const std::string link = whole.link_name(before[2]);  // leaf > spine
  const auto split = link.find(" > ");
  c.fabric.faults = {{link.substr(0, split), link.substr(split + 3), 0}};
  const Network broken(c);
  Path p;
  broken.route(0, 100, p);
  EXPECT_EQ(p.size(), before.size());
  EXPECT_NE(p[2], before[2]);
  // All ports of a node.
  c.fabric.faults.clear();
  for (std::int64_t r = 0; r < whole.ports(); ++r)
    c.fabric.faults.push_back({fmt::format("port0.{}", r), "leaf0", 0});
  const Network cut(c);
  EXPECT_THROW(cut.route(0, 100, p), Error);
  c.fabric.faults = {{"leaf99", "leaf0", 0}};
  EXPECT_THROW(Network{c}, InputError);
  // Half a link is half as fast.
  c.fabric.faults = {{"port0.0", "leaf0", 1e-9}};
  EXPECT_THROW(Network{c}, InputError);
  c.fabric.faults = {{"port0.0", "leaf0", 0.5}};
  const Network slow(c);
  LinkLoads loads(slow);
  loads.add_flow(0, 100);
  EXPECT_EQ(loads.bandwidth().first.value, 25'000'000'000);
}

std::string words(const Network& n, const Path& path) {
  std::string out = n.name(n.ends(path.front()).first);
  for (const LinkId l : path) out += " " + n.name(n.ends(l).second);
  return out;
}

// Data of a failed NIC go by the next one of the node, as NCCL's do: across the node to the device that it
// serves, on its rail, and back across the other node.
TEST(Network, AFailedNicSendsOverTheNodesOthers) {
  for (const FabricKind kind : {FabricKind::kRailOptimized, FabricKind::kRailOnly, FabricKind::kFatTree}) {
    SCOPED_TRACE(name_of(kind));
    Cluster c = cluster(kind, 2);
    const std::int64_t each = c.devices_per_node;
    ASSERT_EQ(c.nics, each);
    const auto leaf = [&](std::int64_t rail) {
      return kind == FabricKind::kFatTree ? std::string("leaf0") : fmt::format("leaf0.{}", rail);
    };
    const auto seconds =
        [&](const Cluster& of) {  // of device i of the one node to device i of the other, all at once
          const Network n(of);
          LinkLoads loads(n);
          for (std::int64_t d = 0; d < each; ++d) loads.add_flow(d, each + d);
          return 1e9 / static_cast<double>(loads.bandwidth().first.value);
        };
    const double whole = seconds(c);
    c.fabric.faults = {{"port0.1", leaf(1), 0}};
    const Network n(c);
    Path path;
    n.route(1, each + 1, path);
    EXPECT_EQ(words(n, path),
              fmt::format("device1 switch0 device2 port0.2 {} port1.2 device{} switch1 device{}", leaf(2),
                          each + 2, each + 1));
    n.route(each + 1, 1, path);
    EXPECT_EQ(words(n, path),
              fmt::format("device{} switch1 device{} port1.2 {} port0.2 device2 switch0 device1", each + 1,
                          each + 2, leaf(2)));
    n.route(0, each, path);  // others stay where they were
    EXPECT_EQ(words(n, path), fmt::format("device0 port0.0 {} port1.0 device{}", leaf(0), each));
    EXPECT_NEAR(seconds(c) / whole, 2, 1e-6);  // two of the flows share the second port
    // One at each end: a third rail has both.
    c.fabric.faults.push_back({"port1.2", leaf(2), 0});
    const Network both(c);
    both.route(1, each + 1, path);
    EXPECT_EQ(words(both, path),
              fmt::format("device1 switch0 device3 port0.3 {} port1.3 device{} switch1 device{}", leaf(3),
                          each + 3, each + 1));
    // Half of a port that is left is used.
    c.fabric.faults = {{"port0.1", leaf(1), 0.5}};
    const Network slow(c);
    slow.route(1, each + 1, path);
    EXPECT_EQ(path.size(), 4U);
  }
}

// Without PXN and with two devices to a NIC: where the sender's port alone has failed, data leave by the
// receiver's rail, through the device that has the receiver's number.
TEST(Network, AFailedNicOfTheSenderLeavesTheReceiverItsRail) {
  Cluster c = cluster(FabricKind::kFatTree, 2);
  c.nics = 2;
  c.fabric.pxn = false;
  Path path;
  Network(c).route(0, 7, path);
  EXPECT_EQ(words(Network(c), path), "device0 port0.0 leaf0 port1.1 device7");
  c.fabric.faults = {{"port0.0", "leaf0", 0}};
  const Network n(c);
  n.route(0, 7, path);
  EXPECT_EQ(words(n, path), "device0 switch0 device3 port0.1 leaf0 port1.1 device7");
}

// What a fabric cannot do is refused, not left out.
TEST(Network, WhatAFabricCannotDoIsRefused) {
  const auto refused = [](FabricKind kind, auto change) {
    Cluster c = cluster(kind, 48);
    if (kind == FabricKind::kTorus || kind == FabricKind::kDragonfly) c.fabric.routing = Routing::kMinimal;
    EXPECT_NO_THROW(Network{c});
    change(c.fabric);
    EXPECT_THROW(Network{c}, InputError);
  };
  refused(FabricKind::kFatTree, [](Fabric& f) { f.routing = Routing::kAdaptive; });
  refused(FabricKind::kTorus, [](Fabric& f) { f.routing = Routing::kSpray; });
  refused(FabricKind::kTorus, [](Fabric& f) { f.dimensions.assign(9, 1 << 20); });
  refused(FabricKind::kTorus, [](Fabric& f) { f.sites = 2; });
  refused(FabricKind::kDragonfly, [](Fabric& f) { f.routing = Routing::kEcmp; });
  refused(FabricKind::kDragonfly, [](Fabric& f) { f.sites = 2; });
  refused(FabricKind::kRailOnly, [](Fabric& f) { f.sites = 2; });  // and no line between them
}

}  // namespace
}  // namespace orrery::sim
