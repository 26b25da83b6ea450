// SPDX-License-Identifier: Apache-2.0
#include "sim/collective/collective.h"

#include <gtest/gtest.h>

#include "core/scenario.h"

namespace orrery::sim {
namespace {

using program::OpKind;

Cluster plain() {
  Cluster c;
  c.nodes = 4;
  c.intra_bandwidth = Bandwidth{300'000'000'000};
  c.intra_efficiency = 1;
  c.nic_bandwidth = Bandwidth{200'000'000'000};
  c.nic_efficiency = 1;
  c.intra_latency = c.nic_latency = c.collective_latency = Time{0};
  return c;
}

TEST(Topology, AGroupInTheNodeGetsItsLinkAndAcrossNodesItsShareOfTheNics) {
  const Topology t(plain());
  const GroupLinks node = t.group(8, 1);
  EXPECT_TRUE(node.local());
  EXPECT_EQ(node.ring.value, 300'000'000'000);
  // Eight groups, one member per node each, share 200 GB/s.
  const GroupLinks across = t.group(4, 8);
  EXPECT_EQ(across.domains, 4);
  EXPECT_EQ(across.per_domain, 1);
  EXPECT_EQ(across.ring.value, 25'000'000'000);
  // One group over everything crosses with all NICs at once.
  EXPECT_EQ(t.group(32, 1).ring.value, 200'000'000'000);
  // Two groups of half the node each: half the NICs.
  EXPECT_EQ(t.group(16, 2).ring.value, 100'000'000'000);
}

TEST(Topology, OversubscriptionSlowsWhatLeavesTheLeaf) {
  Cluster c = plain();
  c.fabric.leaf_nodes = 2;
  c.fabric.oversubscription = 4;
  const Topology t(c);
  EXPECT_EQ(t.group(2, 8).ring.value, 25'000'000'000);  // neighbours under one leaf
  EXPECT_LT(t.group(4, 8).ring.value, 25'000'000'000);  // half of the hops leave it
}

// Ring all-reduce: 2 (n-1)/n K bytes per rank over the link; all-gather half of it.
// Loads are counted in a group's neighbourhood only: more nodes of the same kind change nothing for it.
TEST(Topology, AGroupGetsTheSameInALargerCluster) {
  Cluster c = plain();
  c.fabric.oversubscription = 2;
  c.nodes = 64;
  const Topology small(c);
  c.nodes = 512;
  const Topology large(c);
  for (const auto& [size, stride] : {std::pair{8, 1}, {4, 8}, {3, 8}, {64, 8}, {16, 32}, {2, 256}, {12, 2}}) {
    EXPECT_EQ(small.group(size, stride).ring, large.group(size, stride).ring) << size << " x " << stride;
    EXPECT_EQ(small.pairs(stride, 2, 512).ring, large.pairs(stride, 2, 512).ring) << stride;
  }
}

TEST(Collective, LargeMessagesMoveTheRingVolume) {
  const Cluster c = plain();
  const GroupLinks g = Topology(c).group(4, 8);
  const Bytes k{1'000'000'000};
  EXPECT_NEAR(seconds(collective_cost(OpKind::kAllReduce, k, g, c).time), 2 * 3.0 / 4 * 1e9 / 25e9, 1e-12);
  EXPECT_NEAR(seconds(collective_cost(OpKind::kAllGather, k, g, c).time), 3.0 / 4 * 1e9 / 25e9, 1e-12);
  EXPECT_NEAR(bus_bandwidth(OpKind::kAllReduce, k, 4, collective_cost(OpKind::kAllReduce, k, g, c).time),
              25e9, 1e3);
}

TEST(Collective, SmallMessagesCostLatencyThatGrowsWithTheRing) {
  Cluster c = plain();
  c.nic_latency = Time{14'000'000};
  c.nodes = 64;
  const Topology t(c);
  const Bytes small{1024};
  const Time few = collective_cost(OpKind::kAllGather, small, t.group(4, 8), c).time;
  const Time many = collective_cost(OpKind::kAllGather, small, t.group(64, 8), c).time;
  EXPECT_GT(many, few * 10);
  // A tree needs log2(K) hops, so the all-reduce of the same ranks takes less than the ring's 2(n-1).
  const CollectiveCost tree = collective_cost(OpKind::kAllReduce, small, t.group(64, 8), c);
  EXPECT_EQ(tree.algorithm, CollectiveAlgorithm::kTree);
}

TEST(Collective, NeverFasterThanBytesOverBandwidthAndMonotoneInBytes) {
  const Cluster c = plain();
  const Topology t(c);
  for (const auto& [size, stride] : {std::pair<std::int64_t, std::int64_t>{8, 1}, {4, 8}, {16, 2}, {32, 1}}) {
    const GroupLinks g = t.group(size, stride);
    Time before{0};
    for (std::int64_t bytes = 1024; bytes < 1LL << 34; bytes *= 4) {
      const Time time = collective_cost(OpKind::kReduceScatter, Bytes{bytes}, g, c).time;
      EXPECT_GE(time, before);
      EXPECT_GE(seconds(time) * static_cast<double>(g.ring.value) * 1.000001,
                static_cast<double>(bytes) * static_cast<double>(size - 1) / static_cast<double>(size));
      before = time;
    }
  }
}

TEST(Collective, AllBandwidthsTimesKGiveTimeOverK) {
  Cluster c = plain();
  const Time once = collective_cost(OpKind::kAllReduce, Bytes{1 << 28}, Topology(c).group(32, 1), c).time;
  c.intra_bandwidth = c.intra_bandwidth * 4;
  c.nic_bandwidth = c.nic_bandwidth * 4;
  const Time faster = collective_cost(OpKind::kAllReduce, Bytes{1 << 28}, Topology(c).group(32, 1), c).time;
  EXPECT_NEAR(ratio(once, faster), 4, 1e-6);
}

TEST(Collective, OneRankCostsNothing) {
  const Cluster c = plain();
  EXPECT_EQ(collective_cost(OpKind::kAllReduce, Bytes{1 << 20}, Topology(c).group(1, 1), c).time.value, 0);
}

// The published plateaus that the shipped topologies stand on (docs/models.md).
TEST(Collective, ShippedTopologiesReachThePublishedBusBandwidth) {
  const DataFolders data;
  const auto plateau = [&](const char* name) {
    const Cluster c = load_cluster(name, {}, {}, data);
    const Bytes k{16LL << 30};
    return bus_bandwidth(OpKind::kAllReduce, k, 8,
                         collective_cost(OpKind::kAllReduce, k, Topology(c).group(8, 1), c).time) /
           1e9;
  };
  EXPECT_NEAR(plateau("dgx-a100"), 234.9, 0.05 * 234.9);
  EXPECT_NEAR(plateau("dgx-h100"), 483, 0.05 * 483);
}

}  // namespace
}  // namespace orrery::sim
