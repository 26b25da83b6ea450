// SPDX-License-Identifier: Apache-2.0
#include "sim/collective/collective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/scenario.h"
#include "sim/collective/nccl_tests.h"

namespace orrery::sim {
namespace {

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
  EXPECT_NEAR(seconds(CollectiveModel(c).cost(CollectiveKind::kAllReduce, k, g).time),
              2 * 3.0 / 4 * 1e9 / 25e9, 1e-12);
  EXPECT_NEAR(seconds(CollectiveModel(c).cost(CollectiveKind::kAllGather, k, g).time), 3.0 / 4 * 1e9 / 25e9,
              1e-12);
  EXPECT_NEAR(bus_bandwidth(CollectiveKind::kAllReduce, k, 4,
                            CollectiveModel(c).cost(CollectiveKind::kAllReduce, k, g).time),
              25e9, 1e3);
}

// Software that waits 150 us for each of four members adds 600 us, and no bytes.
TEST(Collective, SoftwareThatWaitsAddsItsTimeForEachMember) {
  const Cluster c = plain();
  const Time sync{150'000'000};
  const Topology t(c);
  for (const GroupLinks& g : {t.group(4, 1), t.group(4, 8)}) {
    const CollectiveCost without = CollectiveModel(c).cost(CollectiveKind::kAllReduce, Bytes{1 << 28}, g);
    const CollectiveCost with = CollectiveModel(c, sync).cost(CollectiveKind::kAllReduce, Bytes{1 << 28}, g);
    EXPECT_EQ((with.time - without.time).value, 600'000'000);
    EXPECT_EQ((with.wire.latency - without.wire.latency).value, 600'000'000);
    EXPECT_EQ(with.wire.rate, without.wire.rate);
  }
  const GroupLinks alone = t.group(1, 1);
  EXPECT_EQ(CollectiveModel(c, sync).cost(CollectiveKind::kAllReduce, Bytes{1 << 28}, alone).time.value, 0);
}

TEST(Collective, SmallMessagesCostLatencyThatGrowsWithTheRing) {
  Cluster c = plain();
  c.nic_latency = Time{14'000'000};
  c.nodes = 64;
  const Topology t(c);
  const Bytes small{1024};
  const Time few = CollectiveModel(c).cost(CollectiveKind::kAllGather, small, t.group(4, 8)).time;
  const Time many = CollectiveModel(c).cost(CollectiveKind::kAllGather, small, t.group(64, 8)).time;
  EXPECT_GT(many, few * 10);
  // A tree needs log2(K) hops, so the all-reduce of the same ranks takes less than the ring's 2(n-1).
  const CollectiveCost tree = CollectiveModel(c).cost(CollectiveKind::kAllReduce, small, t.group(64, 8));
  EXPECT_EQ(tree.algorithm, CollectiveAlgorithm::kTree);
}

TEST(Collective, NeverFasterThanBytesOverBandwidthAndMonotoneInBytes) {
  const Cluster c = plain();
  const Topology t(c);
  for (const auto& [size, stride] : {std::pair<std::int64_t, std::int64_t>{8, 1}, {4, 8}, {16, 2}, {32, 1}}) {
    const GroupLinks g = t.group(size, stride);
    Time before{0};
    for (std::int64_t bytes = 1024; bytes < 1LL << 34; bytes *= 4) {
      const Time time = CollectiveModel(c).cost(CollectiveKind::kReduceScatter, Bytes{bytes}, g).time;
      EXPECT_GE(time, before);
      EXPECT_GE(seconds(time) * static_cast<double>(g.ring.value) * 1.000001,
                static_cast<double>(bytes) * static_cast<double>(size - 1) / static_cast<double>(size));
      before = time;
    }
  }
}

TEST(Collective, AllBandwidthsTimesKGiveTimeOverK) {
  Cluster c = plain();
  const Time once =
      CollectiveModel(c).cost(CollectiveKind::kAllReduce, Bytes{1 << 28}, Topology(c).group(32, 1)).time;
  c.intra_bandwidth = c.intra_bandwidth * 4;
  c.nic_bandwidth = c.nic_bandwidth * 4;
  const Time faster =
      CollectiveModel(c).cost(CollectiveKind::kAllReduce, Bytes{1 << 28}, Topology(c).group(32, 1)).time;
  EXPECT_NEAR(ratio(once, faster), 4, 1e-6);
}

TEST(Collective, OneRankCostsNothing) {
  const Cluster c = plain();
  EXPECT_EQ(
      CollectiveModel(c).cost(CollectiveKind::kAllReduce, Bytes{1 << 20}, Topology(c).group(1, 1)).time.value,
      0);
}

// --- measured collectives -------------------------------------------------------------------------

double microseconds(const Cluster& c, CollectiveKind kind, std::int64_t ranks, std::int64_t bytes) {
  return 1e6 * seconds(CollectiveModel(c).cost(kind, Bytes{bytes}, Topology(c).group(ranks, 1)).time);
}

TEST(Measured, AGroupThatWasMeasuredTakesTheTimesOfItsCurve) {
  const Cluster c = load_cluster("dgx-h100", {}, {}, DataFolders());
  std::int64_t points = 0;
  for (const CollectiveCurve& curve : c.measured.measured) {
    for (std::size_t i = 0; i < curve.bytes.size(); ++i, ++points) {
      const double expected = 1e6 * seconds(curve.times[i]);
      EXPECT_NEAR(microseconds(c, curve.collective, curve.ranks, curve.bytes[i].value), expected,
                  1e-4 * expected);
    }
  }
  EXPECT_EQ(points, 12 * 21);
  // Between two sizes it lies between their times.
  const double at = microseconds(c, CollectiveKind::kAllReduce, 8, 400 << 20);
  EXPECT_GT(at, 1092.0);
  EXPECT_LT(at, 2111.2);
}

TEST(Measured, OtherBandwidthsScaleByTheFormula) {
  Cluster c = load_cluster("dgx-h100", {}, {}, DataFolders());
  const double once = microseconds(c, CollectiveKind::kAllGather, 8, 1 << 29);
  c.intra_bandwidth = c.intra_bandwidth * 2;
  const double twice = microseconds(c, CollectiveKind::kAllGather, 8, 1 << 29);
  // 39 us of 1400 are latency, and 0.4 times the root of it and the transfer, 93 us, falls to 66.
  EXPECT_NEAR(once / twice, 1.9, 0.03);
}

TEST(Measured, AGroupThatWasNotTakesWhatItsNeighboursSay) {
  Cluster c = load_cluster("dgx-a100", {}, {}, DataFolders());
  const double measured = microseconds(c, CollectiveKind::kReduceScatter, 4, 1 << 20);
  std::erase_if(c.measured.measured, [](const CollectiveCurve& curve) {
    return curve.collective == CollectiveKind::kReduceScatter && curve.ranks == 4;
  });
  const double neighbours = microseconds(c, CollectiveKind::kReduceScatter, 4, 1 << 20);
  c.measured = {};
  const double formula = microseconds(c, CollectiveKind::kReduceScatter, 4, 1 << 20);
  EXPECT_NE(neighbours, measured);
  EXPECT_LT(std::abs(neighbours / measured - 1), 0.1);
  EXPECT_GT(std::abs(formula / measured - 1), std::abs(neighbours / measured - 1));
  // Six devices lie between four and eight.
  c = load_cluster("dgx-a100", {}, {}, DataFolders());
  c.nodes = 1;
  const auto gather = [&](std::int64_t n) { return microseconds(c, CollectiveKind::kAllGather, n, 1 << 24); };
  EXPECT_GT(gather(6), gather(4));
  EXPECT_LT(gather(6), gather(8));
}

TEST(Measured, BeyondTheLargestSizeTheFormulaTakesOver) {
  const Cluster c = load_cluster("dgx-h100", {}, {}, DataFolders());
  Cluster bare = c;
  bare.measured = {};
  const auto correction = [&](std::int64_t bytes) {
    return std::log(microseconds(c, CollectiveKind::kAllReduce, 8, bytes) /
                    microseconds(bare, CollectiveKind::kAllReduce, 8, bytes));
  };
  EXPECT_NEAR(correction(1LL << 31), correction(1LL << 29) / 2, 1e-4);
  EXPECT_NEAR(correction(1LL << 33), correction(1LL << 29) / 4, 1e-4);
}

// --- nccl-tests -------------------------------------------------------------------------------------

constexpr const char* kPrinted =
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor)\n"
    "# Collective test starting: all_reduce_perf\n# Using devices\n"
    "#  Rank  0 Group  0 Pid  100 on  host device  0 [0x01] NVIDIA H100\n"
    "#  Rank  1 Group  0 Pid  100 on  host device  1 [0x02] NVIDIA H100\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   "
    "busbw\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  "
    "(GB/s)\n"
    "           0             0     float     sum      -1     0.10    0.00    0.00      0     0.10    0.00   "
    " 0.00\n"
    "     1048576        262144     float     sum      -1    14.69   71.38   71.38      0    14.50   72.31   "
    "72.31\n"
    "     2097152        524288     float     sum      -1    27.90   75.17   75.17      0    27.80   75.43   "
    "75.43\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 73.5\n";

TEST(NcclTests, TextAndJsonBecomeCurves) {
  const CollectiveCurve c = read_nccl_tests(kPrinted, "f", {}, 0);
  EXPECT_EQ(c.collective, CollectiveKind::kAllReduce);
  EXPECT_EQ(c.ranks, 2);
  ASSERT_EQ(c.bytes.size(), 2u);
  EXPECT_EQ(c.bytes[1].value, 2097152);
  EXPECT_EQ(c.times[0].value, 14'690'000);
  const CollectiveCurve j = read_nccl_tests(
      R"({"config": {"test": "alltoall_perf"}, "devices": [{}, {}, {}, {}],
          "results": [{"size": 1024, "out_of_place": {"time": 7.5}}]})",
      "f", {}, 0);
  EXPECT_EQ(j.collective, CollectiveKind::kAllToAll);
  EXPECT_EQ(j.ranks, 4);
  EXPECT_EQ(j.times[0].value, 7'500'000);
}

TEST(NcclTests, OfTwoRunsOfASizeTheFasterCounts) {
  const std::string slow = "1024 256 float sum -1 9.5 0.1 0.1 0\n",
                    fast = "1024 256 float sum -1 7.5 0.1 0.1 0\n";
  for (const std::string& text : {slow + fast, fast + slow}) {
    const CollectiveCurve c = read_nccl_tests(text, "f", CollectiveKind::kAllReduce, 8);
    ASSERT_EQ(c.times.size(), 1u);
    EXPECT_EQ(c.times[0].value, 7'500'000);
  }
}

TEST(NcclTests, WhatIsMissingIsAskedForAndWhatIsWrongIsNamed) {
  const auto why = [](const std::string& text, std::optional<CollectiveKind> kind, std::int64_t ranks) {
    try {
      (void)read_nccl_tests(text, "f", kind, ranks);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string row = "1024 256 float sum -1 7.5 0.1 0.1 0\n";
  EXPECT_NE(why(row, {}, 8).find("--collective"), std::string::npos);
  EXPECT_NE(why(row, CollectiveKind::kAllReduce, 0).find("--ranks"), std::string::npos);
  EXPECT_EQ(why(row, CollectiveKind::kAllReduce, 8), "");
  EXPECT_NE(why("1024 256 float sum\n", CollectiveKind::kAllReduce, 8).find("line 1"), std::string::npos);
  EXPECT_NE(why("1024 256 float sum -1 -7.5 0.1 0.1 0\n", CollectiveKind::kAllReduce, 8).find("line 1"),
            std::string::npos);
  EXPECT_NE(why("", CollectiveKind::kAllReduce, 8), "");
  EXPECT_NE(why(R"({"results": [{"size": "x"}]})", CollectiveKind::kAllReduce, 8).find("/results/0"),
            std::string::npos);
}

// All-to-all: what leaves the node takes its share of the ports, (n-g)/n of the tensor for each device.
TEST(Collective, AnExchangeIsBoundByThePorts) {
  const Cluster c = plain();
  const Bytes k{1'000'000'000};
  const double t =
      seconds(CollectiveModel(c).cost(CollectiveKind::kAllToAll, k, Topology(c).group(32, 1)).time);
  EXPECT_NEAR(t, 24.0 / 32 * 1e9 / 25e9, 1e-9);
}

// What a root scatters leaves its node through all ports, in channels over NVLink; without PXN through its
// own.
TEST(Collective, ARootUsesItsNodesPortsWherePxnLetsIt) {
  Cluster c = plain();
  const Bytes k{1'000'000'000};
  const auto scatter = [&] {
    return seconds(CollectiveModel(c).cost(CollectiveKind::kScatter, k, Topology(c).group(32, 1)).time);
  };
  EXPECT_NEAR(scatter(), 24.0 / 32 * 1e9 / 200e9, 1e-9);
  c.fabric.pxn = false;
  EXPECT_NEAR(scatter(), 24.0 / 32 * 1e9 / 25e9, 1e-9);
}

// Eight devices reduce in the switch, two take a ring; five pass 6/5 of the tensor, eight 9/8.
TEST(Collective, TheSwitchReducesForFiveOrMore) {
  Cluster c = plain();
  c.in_network_gain = 1.25;
  const Topology t(c);
  const auto cost = [&](std::int64_t n) {
    return CollectiveModel(c).cost(CollectiveKind::kAllReduce, Bytes{1 << 30}, t.group(n, 1, n));
  };
  EXPECT_EQ(cost(4).algorithm, CollectiveAlgorithm::kRing);
  EXPECT_EQ(cost(8).algorithm, CollectiveAlgorithm::kInNetwork);
  EXPECT_NEAR(seconds(cost(8).time), 1.75 * (1 << 30) / 375e9, 1e-9);
  EXPECT_NEAR(ratio(cost(5).time, cost(8).time), (6.0 / 5) / (9.0 / 8), 1e-6);
}

// The published plateaus that the shipped topologies stand on (docs/models.md).
TEST(Collective, ShippedTopologiesReachThePublishedBusBandwidth) {
  const DataFolders data;
  const auto plateau = [&](const char* name) {
    const Cluster c = load_cluster(name, {}, {}, data);
    const Bytes k{16LL << 30};
    return bus_bandwidth(
               CollectiveKind::kAllReduce, k, 8,
               CollectiveModel(c).cost(CollectiveKind::kAllReduce, k, Topology(c).group(8, 1)).time) /
           1e9;
  };
  EXPECT_NEAR(plateau("dgx-a100"), 234.9, 0.05 * 234.9);
  EXPECT_NEAR(plateau("dgx-h100"), 483, 0.05 * 483);
}

}  // namespace
}  // namespace orrery::sim
