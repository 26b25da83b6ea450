// SPDX-License-Identifier: Apache-2.0
//
// Every term of a collective's time in closed form, with the arithmetic of sim/collective/collective.h
// written out. Latencies here are those of NCCL 2.30 in microseconds: base 8.4 (Simple), 14 (LL128), 6.6
// (LL); a hop in the domain 3.4, 1.9, 0.6; a hop between domains 14, 4, 2.7. LL128 passes 0.92 of the
// bandwidth, LL 0.45.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/collective/collective.h"

namespace orrery::sim {
namespace {

constexpr double kUs = 1e-6;
constexpr double kRounding = 2e-12;  // times are whole picoseconds

Cluster cluster() {
  Cluster c;
  c.intra_bandwidth = Bandwidth{300'000'000'000};
  c.intra_efficiency = 1;
  c.intra_latency = Time{3'400'000};
  c.nic_latency = Time{14'000'000};
  c.collective_latency = Time{8'400'000};
  return c;
}

GroupLinks group(std::int64_t domains, std::int64_t per_domain, std::int64_t gigabytes) {
  GroupLinks g;
  g.ranks = domains * per_domain;
  g.domains = domains;
  g.per_domain = per_domain;
  g.ring = Bandwidth{gigabytes * 1'000'000'000};
  return g;
}

// Microseconds of latency and seconds of transfer, with what passing in pieces adds: 0.4 of the root of both
// inside a domain, and twice the root between domains, at most twice the latency.
double in_domain(double latency_us, double transfer) {
  const double latency = latency_us * kUs;
  return latency + transfer + 0.4 * std::sqrt(latency * transfer);
}
double across(double latency_us, double transfer) {
  const double latency = latency_us * kUs;
  return latency + transfer + std::min(2 * std::sqrt(latency * transfer), 2 * latency);
}

double time_of(CollectiveKind kind, std::int64_t bytes, const GroupLinks& g, const Cluster& c = cluster()) {
  return seconds(collective_formula(kind, Bytes{bytes}, g, c).time);
}

// Eight ranks in a node: seven hops. 800 bytes: 700 pass each link.
TEST(CollectiveFormula, ARingPaysEveryHopInTheDomain) {
  EXPECT_NEAR(time_of(CollectiveKind::kAllGather, 800, group(1, 8, 300)),
              in_domain(6.6 + 7 * 0.6, 700 / (300e9 * 0.45)), kRounding);
  // Both passes of an all-reduce.
  EXPECT_NEAR(time_of(CollectiveKind::kAllReduce, 800, group(1, 8, 300)),
              in_domain(6.6 + 14 * 0.6, 1400 / (300e9 * 0.45)), kRounding);
  // Four domains of eight: 31 hops, 3 of them between domains.
  EXPECT_NEAR(time_of(CollectiveKind::kReduceScatter, 3200, group(4, 8, 200)),
              across(6.6 + 28 * 0.6 + 3 * 2.7, 3100 / (200e9 * 0.45)), kRounding);
  // A cluster file may say what a small hop between domains takes, whatever the protocol; and longer cables
  // add to every hop between domains.
  Cluster slow = cluster();
  slow.nic_latency_small = Time{20'000'000};
  GroupLinks far = group(4, 8, 200);
  EXPECT_NEAR(time_of(CollectiveKind::kReduceScatter, 3200, far, slow),
              across(6.6 + 28 * 0.6 + 3 * 20, 3100 / (200e9 * 0.45)), kRounding);
  far.extra_latency = Time{5'000'000};
  EXPECT_NEAR(time_of(CollectiveKind::kReduceScatter, 3200, far, slow),
              across(6.6 + 28 * 0.6 + 3 * 25, 3100 / (200e9 * 0.45)), kRounding);
}

// An all-gather of eight at 300 GB/s whose data alone take T. The protocols' offers in microseconds are
// Simple 8.4 + 23.8 + T, LL128 14 + 13.3 + T / 0.92, LL 6.6 + 4.2 + T / 0.45.
TEST(CollectiveFormula, TheCheapestProtocolIsTaken) {
  const auto time_at = [](double t) {
    const auto bytes = static_cast<std::int64_t>(std::llround(t * kUs * 300e9 * 8 / 7));
    const CollectiveCost c =
        collective_formula(CollectiveKind::kAllGather, Bytes{bytes}, group(1, 8, 300), cluster());
    EXPECT_EQ(c.low_latency, t < 56);
    EXPECT_EQ(c.algorithm, CollectiveAlgorithm::kRing);
    return seconds(c.time);
  };
  EXPECT_NEAR(time_at(10), in_domain(10.8, 10 * kUs / 0.45), 1e-11);
  EXPECT_NEAR(time_at(30), in_domain(27.3, 30 * kUs / 0.92), 1e-11);
  EXPECT_NEAR(time_at(1000), in_domain(32.2, 1000 * kUs), 1e-11);
}

// A member also copies its own part to the output where a cluster says so: half a round here, 7.5 / 8.
TEST(CollectiveFormula, ARingCopiesTheMembersOwnPartInsideADomainOnly) {
  Cluster c = cluster();
  c.ring_copy = 0.5;
  EXPECT_NEAR(time_of(CollectiveKind::kAllGather, 8'000'000'000, group(1, 8, 300), c),
              in_domain(8.4 + 7 * 3.4, 7.5 * 1e9 / 300e9), kRounding);
  EXPECT_NEAR(time_of(CollectiveKind::kAllReduce, 8'000'000'000, group(1, 8, 300), c),
              in_domain(8.4 + 14 * 3.4, 14.5 * 1e9 / 300e9), kRounding);
  EXPECT_NEAR(time_of(CollectiveKind::kAllGather, 8'000'000'000, group(8, 1, 25), c),
              across(8.4 + 7 * 14, 7.0 * 1e9 / 25e9), kRounding);
}

// 64 nodes with one member each: a tree climbs and descends log2(64) = 6 hops and passes the tensor twice, at
// 0.92 of the bandwidth.
TEST(CollectiveFormula, ATreeClimbsAndDescendsOnce) {
  const GroupLinks g = group(64, 1, 25);
  const CollectiveCost simple =
      collective_formula(CollectiveKind::kAllReduce, Bytes{50'000'000}, g, cluster());
  EXPECT_EQ(simple.algorithm, CollectiveAlgorithm::kTree);
  EXPECT_FALSE(simple.low_latency);
  EXPECT_NEAR(seconds(simple.time), across(8.4 + 2 * 6 * 14, 2 * 50e6 / (25e9 * 0.92)), kRounding);
  const CollectiveCost small = collective_formula(CollectiveKind::kAllReduce, Bytes{6'250'000}, g, cluster());
  EXPECT_EQ(small.algorithm, CollectiveAlgorithm::kTree);
  EXPECT_TRUE(small.low_latency);
  EXPECT_NEAR(seconds(small.time), across(14 + 2 * 6 * 4, 2 * 6.25e6 / (25e9 * 0.92 * 0.92)), kRounding);
  // Four members a node: three hops inside to gather what the node has, and three back.
  EXPECT_NEAR(time_of(CollectiveKind::kAllReduce, 6400, group(64, 4, 100)),
              across(6.6 + 2 * (3 * 0.6 + 6 * 2.7), 2 * 6400 / (100e9 * 0.45 * 0.92)), kRounding);
}

// The switch reduces: each of eight passes 9/8 of the tensor, 1.75 / 1.25 of a ring's bus. Two passes of the
// switch take 25 us where a hop takes 4.1, and in proportion.
TEST(CollectiveFormula, TheSwitchTakesSevenHops) {
  Cluster c = cluster();
  c.in_network_gain = 1.25;
  c.intra_latency = Time{4'100'000};
  const std::int64_t bytes = 1'000'000'000;
  const auto cost = [&](const GroupLinks& g) {
    const CollectiveCost out = collective_formula(CollectiveKind::kAllReduce, Bytes{bytes}, g, c);
    EXPECT_EQ(out.algorithm,
              g.local() ? CollectiveAlgorithm::kInNetwork : CollectiveAlgorithm::kInNetworkTree);
    return seconds(out.time);
  };
  EXPECT_NEAR(cost(group(1, 8, 300)), in_domain(8.4 + 25, 1.75 * 1e9 / (300e9 * 1.25)), kRounding);
  // In two domains, each with a switch: one more hop up and down between them, and the links between them
  // carry the tensor meanwhile, which takes longer here.
  EXPECT_NEAR(cost(group(2, 8, 200)), across(8.4 + 25 + 2 * 14, 1e9 / 200e9), kRounding);
  c.intra_latency = Time{8'200'000};
  EXPECT_NEAR(cost(group(1, 8, 300)), in_domain(8.4 + 50, 1.75 * 1e9 / (300e9 * 1.25)), kRounding);
  // Sixteen devices under one switch pass 17/16 of the tensor, but no more than a bus of 2 x 15/16 would.
  EXPECT_NEAR(cost(group(1, 16, 300)), in_domain(8.4 + 50, 1.875 * 1e9 / (300e9 * 1.25)), kRounding);
}

// Reduce in the domain, between domains, and gather in the domain. Of the shorter leg 0.6 is not hidden.
TEST(CollectiveFormula, AHierarchyHidesTwoFifthsOfTheShorterLeg) {
  Cluster c = cluster();
  c.intra_bandwidth = Bandwidth{900'000'000'000};
  const CollectiveCost cost =
      collective_formula(CollectiveKind::kAllReduce, Bytes{8'000'000'000}, group(4, 8, 200), c);
  EXPECT_EQ(cost.algorithm, CollectiveAlgorithm::kHierarchical);
  const double inside = 2 * 7.0 / 8 * 8e9 / 900e9, between = 2 * 3.0 / 4 * 8e9 / 200e9;
  EXPECT_NEAR(seconds(cost.time), across(2 * 8.4 + 2 * 7 * 3.4 + 2 * 2 * 14, between + 0.6 * inside),
              kRounding);
}

// An all-to-all of 16 devices in two nodes at 25 GB/s a port: of 1.6 GB each device sends 100 MB to each
// other, 700 MB inside and 800 MB through its port. Inside a cluster's copy counts as one more part.
TEST(CollectiveFormula, AnExchangePaysForWhatLeavesOrWhatStays) {
  Cluster c = cluster();
  GroupLinks g = group(2, 8, 200);
  EXPECT_NEAR(time_of(CollectiveKind::kAllToAll, 1'600'000'000, g, c), across(8.4 + 3.4 + 14, 0.8e9 / 25e9),
              kRounding);
  c.intra_bandwidth = Bandwidth{10'000'000'000};
  EXPECT_NEAR(time_of(CollectiveKind::kAllToAll, 1'600'000'000, g, c), across(8.4 + 3.4 + 14, 0.7e9 / 10e9),
              kRounding);
  g.intra = Bandwidth{14'000'000'000};  // what the links of this group give, where that is known
  EXPECT_NEAR(time_of(CollectiveKind::kAllToAll, 1'600'000'000, g, c), across(8.4 + 3.4 + 14, 0.7e9 / 14e9),
              kRounding);
  c.exchange_copy = 1;
  EXPECT_NEAR(time_of(CollectiveKind::kAllToAll, 800'000'000, group(1, 8, 10), c),
              in_domain(8.4 + 3.4, 0.8e9 / 10e9), kRounding);
}

// 16 devices in two nodes, eight rows of each token for experts anywhere: the other node gets one of them for
// 2 (1 - 1/2^8) / 8 = 0.249 of the 800 MB that would leave one by one, and all of 1.6 GB pass inside but for
// the eighth that is there. Where its experts are on 4 of 8 nodes, 4 (1 - (3/4)^8) = 3.6 nodes get one.
TEST(CollectiveFormula, AnExchangeByNodeSendsATokenToANodeOnce) {
  const Cluster c = cluster();
  program::ops::Collective op{CollectiveKind::kAllToAll};
  op.copies = 8;
  constexpr double kLatency = 8.4 + 3.4 + 14;
  const auto time = [&](const GroupLinks& g) {
    return seconds(collective_formula(op, Bytes{1'600'000'000}, g, c).time);
  };
  GroupLinks g = group(2, 8, 200);
  g.intra = Bandwidth{1'000'000'000'000};
  EXPECT_NEAR(time(g), across(kLatency, 2 * (1 - std::pow(0.5, 8)) / 8 * 0.8e9 / 25e9), kRounding);
  g.intra = Bandwidth{10'000'000'000};
  EXPECT_NEAR(time(g), across(kLatency, 1.6e9 * 7 / 8 / 10e9), kRounding);
  op.groups = 8;
  op.top_groups = 4;
  GroupLinks wide = group(8, 8, 200);
  wide.intra = Bandwidth{1'000'000'000'000};
  EXPECT_NEAR(time(wide), across(kLatency, 4 * (1 - std::pow(0.75, 8)) / 8 * 1.4e9 / 25e9), kRounding);
  // Four of eight groups, four of which are on each of two nodes: a node has none of them for 1 of 70 tokens.
  g.intra = Bandwidth{1'000'000'000'000};
  const double of = 2 * (1 - 1.0 / 70);
  EXPECT_NEAR(time(g), across(kLatency, of * (1 - std::pow(1 - 1 / of, 8)) / 8 * 0.8e9 / 25e9), kRounding);
  // Inside a node it is an exchange like others.
  EXPECT_EQ(collective_formula(op, Bytes{800'000'000}, group(1, 8, 200), c).time,
            collective_formula(CollectiveKind::kAllToAll, Bytes{800'000'000}, group(1, 8, 200), c).time);
}

// Each device passes its tensor to the next one, between nodes through its own port.
TEST(CollectiveFormula, AShiftPassesTheTensorOnce) {
  Cluster c = cluster();
  EXPECT_NEAR(time_of(CollectiveKind::kShift, 800'000'000, group(2, 8, 200), c),
              across(8.4 + 3.4 + 14, 0.8e9 / 25e9), kRounding);
  // Of four adapters of 50 GB/s for eight devices, the one that sends has a whole one.
  c.nics = 4;
  c.nic_bandwidth = Bandwidth{200'000'000'000};
  c.nic_efficiency = 1;
  EXPECT_NEAR(time_of(CollectiveKind::kShift, 800'000'000, group(2, 8, 200), c),
              across(8.4 + 3.4 + 14, 0.8e9 / 50e9), kRounding);
  GroupLinks inside = group(1, 8, 200);
  inside.intra = Bandwidth{300'000'000'000};
  EXPECT_NEAR(time_of(CollectiveKind::kShift, 800'000'000, inside, c), in_domain(8.4 + 3.4, 0.8e9 / 300e9),
              kRounding);
}

// A chain from the root: the tensor passes each link once.
TEST(CollectiveFormula, ABroadcastPassesTheTensorOnce) {
  EXPECT_NEAR(time_of(CollectiveKind::kBroadcast, 8'000'000'000, group(1, 8, 200)),
              in_domain(8.4 + 7 * 3.4, 8e9 / 200e9), kRounding);
}

// A message to the next pipeline stage: one hop and its bytes.
TEST(CollectiveFormula, ATransferIsAHopAndItsBytes) {
  GroupLinks pair = group(1, 2, 250);
  EXPECT_EQ(transfer_cost(Bytes{250'000'000}, pair, cluster()).value, 3'400'000 + 1'000'000'000);
  pair = group(2, 1, 25);
  pair.extra_latency = Time{1'000'000};
  EXPECT_EQ(transfer_cost(Bytes{25'000'000}, pair, cluster()).value, 14'000'000 + 1'000'000 + 1'000'000'000);
}

// nccl-tests: S over t, times 2 (n-1)/n for an all-reduce, (n-1)/n for what passes once, 1 for rooted ones.
TEST(CollectiveFormula, BusBandwidth) {
  const Bytes s{8'000'000'000};
  const Time t{80'000'000'000};  // 80 ms: 100 GB/s
  EXPECT_DOUBLE_EQ(bus_bandwidth(CollectiveKind::kAllReduce, s, 8, t), 175e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(CollectiveKind::kReduceScatter, s, 8, t), 87.5e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(CollectiveKind::kAllToAll, s, 8, t), 87.5e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(CollectiveKind::kReduce, s, 8, t), 100e9);
}

}  // namespace
}  // namespace orrery::sim
