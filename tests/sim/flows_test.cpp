// SPDX-License-Identifier: Apache-2.0
//
// Flows and collectives on networks: closed forms, invariants of random traffic, what other simulators get
// wrong, and SimGrid beside it.
#include "sim/network/flows.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/scenario.h"
#include "sim/collective/collective.h"
#include "sim/collective/on_network.h"

namespace orrery::sim {
namespace {

using program::Algorithm;

// Nodes of one device and one 50 GB/s NIC, 1 us away from each other.
Cluster hosts(std::int64_t n, Fabric fabric) {
  Cluster c;
  c.name = "hosts";
  c.nodes = n;
  c.devices_per_node = c.nics = 1;
  c.intra_bandwidth = c.nic_bandwidth = Bandwidth{50'000'000'000};
  c.intra_efficiency = c.nic_efficiency = 1;
  c.nic_latency = Time{1'000'000};
  c.collective_latency = Time{0};
  c.fabric = std::move(fabric);
  return c;
}
Cluster one_switch(std::int64_t n) {
  return hosts(n, {.leaf_nodes = n});
}
// k leaves of k hosts, k spines, routed by destination.
Cluster square_tree(std::int64_t k) {
  return hosts(k * k, {.routing = Routing::kMinimal, .leaf_nodes = k});
}

constexpr Bytes kGiB{1 << 30};
constexpr double kBytes = 1 << 30;
constexpr double kB = 50e9;

NetworkRun play(const Cluster& c, CollectiveKind kind, Algorithm algorithm, Bytes whole = kGiB,
                std::int32_t chunks = 64) {
  const Topology t(c);
  std::vector<std::int64_t> all(static_cast<std::size_t>(c.devices()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  return run_on_network(t, {kind, algorithm, whole, chunks}, all);
}

// --- closed forms ---------------------------------------------------------------------------------

TEST(Flows, ShareALinkAndSpeedUpWhenOneEnds) {
  const Cluster c = one_switch(4);
  const Network n(c);
  Flows flows(n);
  Path path;
  const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t bytes, Time start) {
    n.route(from, to, path);
    flows.add(path, Bytes{bytes}, start);
  };
  add(0, 2, 50'000'000, Time{0});
  add(1, 2, 100'000'000, Time{0});
  add(3, 1, 50'000'000, Time{1'000'000});
  add(3, 3, 50'000'000, Time{7});
  const FlowTimes t = flows.run();
  // Two flows into device 2 get 25 GB/s each: 2 ms for the first; the second has 50 MB left, 1 ms alone.
  EXPECT_EQ(t.ends[0].value, 2'000'000'000);
  EXPECT_EQ(t.ends[1].value, 3'000'000'000);
  EXPECT_EQ(t.ends[2].value, 1'001'000'000);
  EXPECT_EQ(t.ends[3].value, 7);
  EXPECT_EQ(t.end, t.ends[1]);
}

// Ring all-reduce: 2(n-1)/n S/B + 2(n-1) L; the table of case A for 50 GB/s and 1 us where a switch is
// passed.
TEST(CollectiveOnNetwork, ARingIsItsClosedForm) {
  for (const std::int64_t n : {8, 64, 256}) {
    const NetworkRun r = play(one_switch(n), CollectiveKind::kAllReduce, Algorithm::kRing);
    const double expected = 2.0 * static_cast<double>(n - 1) * (kBytes / static_cast<double>(n) / kB + 1e-6);
    EXPECT_NEAR(seconds(r.time), expected, 1e-6 * expected) << n;
    EXPECT_EQ(r.rounds, 2 * (n - 1));
    EXPECT_EQ(r.most_classes, 1u) << "all flows of a ring round are alike";
  }
}

TEST(CollectiveOnNetwork, AGatherIsBoundByItsRoot) {
  const NetworkRun r = play(one_switch(16), CollectiveKind::kGather, Algorithm::kDirect);
  EXPECT_NEAR(seconds(r.time), 15.0 / 16 * kBytes / kB + 1e-6, 1e-9);
}

TEST(CollectiveOnNetwork, HalvingAndDoublingMovesTheRingsBytesInFewerRounds) {
  const NetworkRun r = play(one_switch(64), CollectiveKind::kAllReduce, Algorithm::kHalvingDoubling);
  EXPECT_EQ(r.rounds, 12);
  EXPECT_NEAR(seconds(r.time), 2 * 63.0 / 64 * kBytes / kB + 12e-6, 1e-8);
}

// A broadcast along a chain of 16: 64 chunks and 14 more rounds; each of 15 hops is waited for once.
TEST(CollectiveOnNetwork, ChunksOfAChainMeetTheLatencyOnce) {
  const NetworkRun r = play(one_switch(16), CollectiveKind::kBroadcast, Algorithm::kRing);
  EXPECT_EQ(r.rounds, 64 + 14);
  EXPECT_NEAR(seconds(r.time), (64 + 14) * (kBytes / 64) / kB + 15e-6, 1e-8);
}

// Two nodes of eight: seven eighths inside, then a ring of the nodes on each rail.
TEST(CollectiveOnNetwork, AHierarchyUsesTheFastLinksFirst) {
  Cluster c = load_cluster("dgx-h100", {}, {}, DataFolders());
  c.nodes = 2;
  c.collective_latency = c.intra_latency = c.nic_latency = Time{0};
  const NetworkRun r = play(c, CollectiveKind::kAllReduce, Algorithm::kHierarchical);
  const double inside = 450e9 * 0.84, port = 400e9 * 0.92 / 8;
  EXPECT_NEAR(seconds(r.time), 2 * 7.0 / 8 * kBytes / inside + kBytes / 8.0 / port, 1e-8);
  // A flat ring of eight channels on the same nodes crosses with all rails at once.
  const NetworkRun flat = play(c, CollectiveKind::kAllReduce, Algorithm::kRing);
  EXPECT_NEAR(seconds(flat.time), 2 * 15.0 / 16 * kBytes / (8 * port), 0.01 * seconds(flat.time));
}

// Four nodes of eight in two trees: each node sends three halves of the tensor on all rails at once, while
// the chains inside pass it up and down, 2 (g-1)/g of it through each device.
TEST(CollectiveOnNetwork, TreesUseAllRails) {
  Cluster c = load_cluster("dgx-h100", {}, {}, DataFolders());
  c.nodes = 4;
  c.collective_latency = c.intra_latency = c.nic_latency = Time{0};
  const auto played = [&] {
    return seconds(play(c, CollectiveKind::kAllReduce, Algorithm::kTree, kGiB, 256).time);
  };
  const double inside = 2 * 7.0 / 8 * kBytes / (450e9 * 0.84);
  EXPECT_GT(played(), inside);
  EXPECT_LT(played(), 1.1 * inside);
  c.intra_bandwidth = c.intra_bandwidth * 10;
  const double between = 1.5 * kBytes / (400e9 * 0.92);
  EXPECT_GT(played(), between);
  EXPECT_LT(played(), 1.1 * between);
}

// --- what other simulators get wrong (ASTRA-sim's unaware and aware backends) -----------------------

// Fifteen others send the first member three sixteenths of 1 GiB each: its port takes 3 * 15/16 GiB.
TEST(OnNetwork, APopularMembersPortBoundsAnUnevenAllToAll) {
  const Topology t(one_switch(16));
  std::vector<std::int64_t> all(16);
  std::iota(all.begin(), all.end(), 0);
  NetworkCollective c{CollectiveKind::kAllToAll, Algorithm::kDirect, kGiB};
  c.imbalance = 3;
  const NetworkRun run = run_on_network(t, c, all);
  EXPECT_NEAR(seconds(run.time), 3 * 15.0 / 16 * kBytes / kB + 1e-6, 1e-7);
  EXPECT_EQ(t.network().link_name(run.busiest), "port0.0 > device0");
  c.imbalance = 1;
  EXPECT_NEAR(seconds(run_on_network(t, c, all).time), 15.0 / 16 * kBytes / kB + 1e-6, 1e-7);
}

TEST(Artefacts, AnAllToAllDoesNotGetFasterWithMoreRanks) {
  double before = 0;
  for (const std::int64_t n : {8, 64, 256}) {
    const double t = seconds(play(one_switch(n), CollectiveKind::kAllToAll, Algorithm::kDirect).time);
    const double sent = static_cast<double>(n - 1) / static_cast<double>(n) * kBytes / kB;
    EXPECT_NEAR(t, sent + 1e-6, 1e-3 * sent) << n;
    EXPECT_GT(t, before);
    before = t;
  }
}

TEST(Artefacts, ASwitchDoesNotDoubleARing) {
  // 36.8 ms on direct links, 71.8 ms where whole chunks are stored and forwarded at each hop.
  EXPECT_NEAR(seconds(play(one_switch(8), CollectiveKind::kAllReduce, Algorithm::kRing).time), 37.6e-3,
              0.1e-3);
}

TEST(Artefacts, TreesArePipelined) {
  // 2 S / B = 42.9 ms; without pipelining 236 to 601 ms.
  const double t = seconds(play(one_switch(64), CollectiveKind::kAllReduce, Algorithm::kTree).time);
  EXPECT_GT(t, 2 * kBytes / kB);
  EXPECT_LT(t, 1.2 * 2 * kBytes / kB);
  // With one chunk it is the unpipelined tree.
  EXPECT_GT(seconds(play(one_switch(64), CollectiveKind::kAllReduce, Algorithm::kTree, kGiB, 1).time), 4 * t);
}

TEST(Artefacts, TwoHalvesAtOnceAreNotFasterThanTheWhole) {
  const Cluster c = one_switch(8);
  const Network n(c);
  Flows one(n), two(n);
  Path path;
  for (std::int64_t i = 0; i < 8; ++i) {
    n.route(i, (i + 1) % 8, path);
    one.add(path, kGiB);
    for (int half = 0; half < 2; ++half) two.add(path, Bytes{kGiB.value / 2});
  }
  EXPECT_EQ(one.run().end, two.run().end);
}

TEST(Artefacts, EightH100sAreNeitherTwiceAsFastNorAsSlowAsMeasured) {
  // 1 GiB: measured 4.25 ms; 2.66 and 4.93 predicted.
  const Cluster c = load_cluster("dgx-h100", {}, {}, DataFolders());
  const double t =
      seconds(CollectiveModel(c).cost(CollectiveKind::kAllReduce, kGiB, Topology(c).group(8, 1)).time);
  EXPECT_NEAR(t, 4.25e-3, 0.05 * 4.25e-3);
}

// --- placement ------------------------------------------------------------------------------------

// Static routes put four to five flows of a random ring on one uplink (SimGrid: 169 ms against 42.5).
TEST(CollectiveOnNetwork, ABadOrderOfRanksCostsWhatItsWorstLinkSays) {
  const Cluster c = square_tree(8);
  const Topology t(c);
  std::vector<std::int64_t> all(64);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const NetworkCollective ring{CollectiveKind::kAllReduce, Algorithm::kRing, kGiB};
  const NetworkRun good = run_on_network(t, ring, all);
  const NetworkRun bad = run_on_network(t, ring, shuffled(all, 1));
  EXPECT_NEAR(seconds(good.time), 42.4e-3, 0.1e-3);
  const double worst = ratio(bad.busiest_needs, good.busiest_needs);
  EXPECT_EQ(worst, std::round(worst)) << "a whole number of flows";
  EXPECT_GE(worst, 2);
  EXPECT_NEAR(ratio(bad.time, good.time), worst, 0.01 * worst);
  EXPECT_NE(t.network().link_name(bad.busiest).find("spine"), std::string::npos);
}

// The planner's closed form against the rounds: one ring through all devices of four nodes.
TEST(CollectiveOnNetwork, AgreesWithTheBandwidthThatThePlannerUses) {
  for (const char* name : {"dgx-a100", "p5en", "dgx-b200"}) {
    Cluster c = load_cluster(name, {}, {}, DataFolders());
    c.nodes = 4;
    c.collective_latency = c.intra_latency = c.nic_latency = Time{0};
    const Topology t(c);
    const NetworkRun r = play(c, CollectiveKind::kAllGather, Algorithm::kRing);
    const double ring = static_cast<double>(t.group(c.devices(), 1).ring.value);
    const double n = static_cast<double>(c.devices());
    EXPECT_NEAR(seconds(r.time), (n - 1) / n * kBytes / ring, 0.02 * seconds(r.time)) << name;
  }
}

// --- invariants of random traffic -----------------------------------------------------------------

Cluster random_cluster(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  Fabric f;
  std::int64_t nodes = 0;
  switch (pick(0, 3)) {
    case 0:
      f = {.routing = Routing::kMinimal,
           .leaf_nodes = pick(1, 4),
           .oversubscription = static_cast<double>(pick(1, 4))};
      nodes = f.leaf_nodes * pick(1, 5);
      break;
    case 1:
      f = {.routing = Routing::kEcmp,
           .seed = pick(0, 99),
           .levels = 3,
           .leaf_nodes = pick(1, 3),
           .pod_leaves = 2};
      nodes = f.leaf_nodes * 2 * pick(1, 3);
      break;
    case 2:
      f = {.kind = FabricKind::kTorus, .routing = Routing::kMinimal, .dimensions = {pick(2, 5), pick(2, 4)}};
      nodes = f.dimensions[0] * f.dimensions[1];
      break;
    default:
      f = {.kind = FabricKind::kDragonfly,
           .routing = Routing::kMinimal,
           .router_nodes = 2,
           .group_routers = 2};
      nodes = 4 * pick(1, 4);
  }
  Cluster c = hosts(nodes, f);
  c.devices_per_node = c.nics = pick(1, 2);
  return c;
}

struct Traffic {
  std::int64_t from, to, bytes;
  Time start;
};
std::vector<Traffic> random_traffic(std::mt19937_64& random, std::int64_t devices) {
  std::vector<Traffic> out;
  const std::size_t n = 1 + random() % 40;
  for (std::size_t i = 0; i < n; ++i) {
    const auto device = [&] {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(devices));
    };
    out.push_back({device(), device(), static_cast<std::int64_t>(1 + random() % 4) << (10 + random() % 12),
                   Time{static_cast<std::int64_t>(random() % 3) * 1'000'000}});
  }
  return out;
}
FlowTimes run(const Network& n, const std::vector<Traffic>& traffic, bool fold = true) {
  Flows flows(n);
  Path path;
  for (const Traffic& t : traffic) {
    n.route(t.from, t.to, path);
    flows.add(path, Bytes{t.bytes}, t.start);
  }
  return flows.run(fold);
}

TEST(FlowsProperty, RandomTrafficOnRandomNetworks) {
  constexpr std::uint64_t kSeed = 20261122;
  constexpr int kCases = 10000;
  std::printf("seed %llu, %d cases\n", static_cast<unsigned long long>(kSeed), kCases);
  std::mt19937_64 random(kSeed);
  std::size_t flows = 0, classes = 0;
  for (int i = 0; i < kCases; ++i) {
    const Cluster c = random_cluster(random);
    const Network n(c);
    const std::vector<Traffic> traffic = random_traffic(random, c.devices());
    const FlowTimes t = run(n, traffic);
    ASSERT_EQ(t.ends, run(n, traffic, false).ends) << "folded differs from single flows, case " << i;
    flows += traffic.size();
    classes += t.classes;
    // No flow is faster than its bytes over its narrowest link; no link passes more than its capacity.
    std::map<LinkId, std::int64_t> carried;
    Path path;
    for (std::size_t f = 0; f < traffic.size(); ++f) {
      n.route(traffic[f].from, traffic[f].to, path);
      for (const LinkId l : path) {
        carried[l] += traffic[f].bytes;
        ASSERT_GE((t.ends[f] - traffic[f].start) + Time{1},
                  transfer_time(Bytes{traffic[f].bytes}, Bandwidth{n.capacity(l)}));
      }
    }
    for (const auto& [l, bytes] : carried)
      ASSERT_GE(t.end + Time{1}, transfer_time(Bytes{bytes}, Bandwidth{n.capacity(l)}));
    // The order in which flows are named changes nothing.
    std::vector<Traffic> reversed(traffic.rbegin(), traffic.rend());
    const FlowTimes back = run(n, reversed);
    ASSERT_TRUE(std::equal(t.ends.begin(), t.ends.end(), back.ends.rbegin())) << "case " << i;
    // All capacities and all latencies times two: half the time, but for the rounding of rates and times.
    Cluster twice = c;
    twice.nic_bandwidth = c.nic_bandwidth * 2;
    twice.intra_bandwidth = c.intra_bandwidth * 2;
    std::vector<Traffic> sooner = traffic;
    for (Traffic& f : sooner) f.start = Time{f.start.value / 2};
    const double half = static_cast<double>(run(Network(twice), sooner).end.value);
    ASSERT_NEAR(static_cast<double>(t.end.value), 2 * half, 100 + 1e-6 * half) << "case " << i;
  }
  EXPECT_LT(classes, flows);
}

// --- SimGrid --------------------------------------------------------------------------------------

// Ends of the flows as SimGrid has them; empty where it is not there.
std::vector<double> simgrid(const Network& n, const std::vector<Traffic>& traffic) {
  const std::string file = ::testing::TempDir() + "/flows-" + std::to_string(getpid()) + ".txt";
  std::ofstream out(file);
  std::map<LinkId, std::size_t> ids;
  std::vector<LinkId> order;
  std::vector<Path> paths;
  for (const Traffic& t : traffic) {
    n.route(t.from, t.to, paths.emplace_back());
    for (const LinkId l : paths.back()) {
      if (ids.try_emplace(l, order.size()).second) order.push_back(l);
    }
  }
  out << order.size() << "\n";
  for (const LinkId l : order) out << n.capacity(l) << "\n";
  out << traffic.size() << "\n";
  for (std::size_t f = 0; f < traffic.size(); ++f) {
    out << seconds(traffic[f].start) << " " << traffic[f].bytes << " " << paths[f].size();
    for (const LinkId l : paths[f]) out << " " << ids[l];
    out << "\n";
  }
  out.close();
  std::FILE* pipe = popen((std::string(ORRERY_SIMGRID) + " < " + file + " 2>/dev/null").c_str(), "r");
  std::vector<double> ends;
  for (double end = 0; pipe != nullptr && std::fscanf(pipe, "%lf", &end) == 1;) ends.push_back(end);
  if (pipe != nullptr) pclose(pipe);
  std::filesystem::remove(file);
  return ends;
}

class SimGrid : public ::testing::TestWithParam<const char*> {};

Cluster compared(const std::string& name) {
  if (name == "fat_tree") return square_tree(8);
  if (name == "oversubscribed") {
    Cluster c = square_tree(8);
    c.fabric.oversubscription = 4;
    return c;
  }
  if (name == "torus")
    return hosts(64, {.kind = FabricKind::kTorus, .routing = Routing::kMinimal, .dimensions = {4, 4, 4}});
  return hosts(
      72,
      {.kind = FabricKind::kDragonfly, .routing = Routing::kMinimal, .router_nodes = 2, .group_routers = 4});
}

TEST_P(SimGrid, EndsFlowsWhenWeDo) {
  if (std::string_view(ORRERY_SIMGRID).empty()) GTEST_SKIP() << "built without libsimgrid-dev";
  const Cluster c = compared(GetParam());
  const Network n(c);
  std::mt19937_64 random(7);
  double worst = 0;
  const auto compare = [&](const std::vector<Traffic>& traffic, const char* what) {
    const std::vector<double> theirs = simgrid(n, traffic);
    ASSERT_EQ(theirs.size(), traffic.size()) << what;
    const FlowTimes ours = run(n, traffic);
    for (std::size_t f = 0; f < traffic.size(); ++f) {
      const double error = std::abs(seconds(ours.ends[f]) / theirs[f] - 1);
      worst = std::max(worst, error);
      ASSERT_LT(error, 0.02) << what << ", flow " << f << ": " << seconds(ours.ends[f]) << " and "
                             << theirs[f];
    }
  };
  const auto device = [&] {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.devices()));
  };
  for (int i = 0; i < 5; ++i) {
    std::vector<Traffic> traffic;
    for (int f = 0; f < 200; ++f) {
      const std::int64_t from = device();
      std::int64_t to = device();
      while (to == from) to = device();
      traffic.push_back({from, to, static_cast<std::int64_t>(1 + random() % 1000) * 1'000'000,
                         Time{static_cast<std::int64_t>(random() % 1000) * 10'000'000}});
    }
    compare(traffic, "random flows");
  }
  // A permutation, as of a badly ordered ring, and everyone to everyone.
  std::vector<std::int64_t> all(static_cast<std::size_t>(c.devices()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const std::vector<std::int64_t> order = shuffled(all, 3);
  std::vector<Traffic> permutation, exchange;
  for (std::size_t i = 0; i < all.size(); ++i) {
    permutation.push_back({order[i], order[(i + 1) % order.size()], 1 << 30, Time{0}});
    for (std::size_t j = 0; j < 16; ++j) {
      if (i != j * 4) exchange.push_back({all[i], all[j * 4], 1 << 24, Time{0}});
    }
  }
  compare(permutation, "permutation");
  compare(exchange, "exchange");
  std::printf("%s: farthest %.4f %%\n", GetParam(), 100 * worst);
}

INSTANTIATE_TEST_SUITE_P(Cross, SimGrid,
                         ::testing::Values("fat_tree", "oversubscribed", "torus", "dragonfly"));

}  // namespace
}  // namespace orrery::sim
