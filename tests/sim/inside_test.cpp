// SPDX-License-Identifier: Apache-2.0
//
// Nodes with cables of their own: PCIe trees, bridged pairs, meshes.
#include "sim/topology/inside.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "sim/collective/on_network.h"

namespace orrery::sim {
namespace {

constexpr Bandwidth operator""_GBs(unsigned long long n) {
  return Bandwidth{static_cast<std::int64_t>(n) * 1'000'000'000};
}

Cluster with(std::vector<Cable> inside, std::int64_t devices, std::int64_t nics = 1, std::int64_t nodes = 1) {
  Cluster c;
  c.name = "box";
  c.nodes = nodes;
  c.devices_per_node = devices;
  c.nics = nics;
  c.nic_bandwidth = 10_GBs * nics;
  c.nic_efficiency = 1;
  c.fabric = {.leaf_nodes = 4};
  c.inside = std::move(inside);
  return c;
}

// Two sockets, two PCIe switches on each, two GPUs on each of these, a NIC on the first switch of each
// socket.
std::vector<Cable> pcie_box() {
  std::vector<Cable> out{{"cpu0", "cpu1", 20_GBs}};
  for (int plx = 0; plx < 4; ++plx) {
    out.push_back({fmt::format("plx{}", plx), fmt::format("cpu{}", plx / 2), 25_GBs});
    for (int g = 0; g < 2; ++g)
      out.push_back({fmt::format("gpu{}", 2 * plx + g), fmt::format("plx{}", plx), 25_GBs});
  }
  out.push_back({"nic0", "plx0", 12_GBs});
  out.push_back({"nic1", "plx2", 12_GBs});
  return out;
}

std::vector<std::string> route(const Network& n, std::int64_t from, std::int64_t to) {
  Path path;
  n.route(from, to, path);
  std::vector<std::string> out;
  for (const LinkId l : path) out.push_back(n.link_name(l));
  return out;
}

TEST(Inside, WaysHaveTheFewestCables) {
  const Network n(with(pcie_box(), 8, 2, 2));
  EXPECT_EQ(route(n, 0, 1), (std::vector<std::string>{"device0 > node0/plx0", "node0/plx0 > device1"}));
  EXPECT_EQ(route(n, 1, 6), (std::vector<std::string>{"device1 > node0/plx0", "node0/plx0 > node0/cpu0",
                                                      "node0/cpu0 > node0/cpu1", "node0/cpu1 > node0/plx3",
                                                      "node0/plx3 > device6"}));
  // To the other node by the rail of the destination: over PCIe to a device that is on it, out by its NIC.
  const auto out = route(n, 1, 12);
  EXPECT_EQ(out.back(), "node1/plx2 > device12");
  EXPECT_NE(std::find(out.begin(), out.end(), "port0.1 > leaf0"), out.end())
      << fmt::format("{}", fmt::join(out, ", "));
}

// The ring crosses between sockets once each way: 20 GB/s. Of an even exchange among eight each device sends
// 4/7 over there, four of them: 20 / (4 x 4/7) = 8.75 GB/s each.
TEST(Inside, ThePathBetweenSocketsBoundsAPcieBox) {
  const Topology t(with(pcie_box(), 8, 2));
  const GroupLinks all = t.group(8, 1), pair = t.group(2, 1), across = t.group(2, 4);
  EXPECT_EQ(all.ring.value, 20'000'000'000);
  EXPECT_EQ(t.network().link_name(all.bottleneck), "node0/cpu0 > node0/cpu1");
  EXPECT_EQ(pair.ring.value, 25'000'000'000);
  EXPECT_EQ(across.ring.value, 5'000'000'000);  // four pairs at once, on one path
  EXPECT_NEAR(static_cast<double>(t.network().intra(0).value), 8.75e9, 1);
}

std::vector<Cable> mesh(int devices, Bandwidth each) {
  std::vector<Cable> out;
  for (int a = 0; a < devices; ++a) {
    for (int b = a + 1; b < devices; ++b)
      out.push_back({fmt::format("gpu{}", a), fmt::format("gpu{}", b), each});
  }
  out.push_back({"nic0", "gpu0", 25_GBs});
  return out;
}

// One ring uses one of a device's cables; all six orders of four use all three, so that a ring has what a
// switch of the same bandwidth would give.
TEST(Inside, RingsUseAllCablesOfAMesh) {
  Cluster c = with(mesh(4, 100_GBs), 4);
  for (int g = 1; g < 4; ++g) c.inside.push_back({"nic0", fmt::format("gpu{}", g), 25_GBs});
  const Topology t(c);
  EXPECT_NEAR(static_cast<double>(t.group(4, 1).ring.value) / 300e9, 1, 1e-5);
  EXPECT_EQ(t.group(2, 1).ring.value, 100'000'000'000);
  EXPECT_EQ(t.network().intra(0).value, 300'000'000'000);
  std::vector<std::int64_t> all{0, 1, 2, 3};
  const NetworkRun run =
      run_on_network(t, {CollectiveKind::kAllReduce, program::Algorithm::kRing, Bytes{1 << 30}}, all);
  const double bus = 1.5 * (1 << 30) / seconds(run.time - t.cluster().collective_latency);
  EXPECT_NEAR(bus / 300e9, 1, 0.02);
}

// Eight MI300X joined each with each: 47.7 GB/s between two, 312.9 GB/s of bus bandwidth among eight at 4 GiB
// (stas00/ml-engineering@744d01e, network/README.md). Seven cables of what two have would be 334; rings reach
// 322.
TEST(Inside, AMeshOfEightComesNearWhatWasMeasured) {
  std::vector<Cable> cables = mesh(8, Bandwidth{47'671'000'000});
  for (int g = 1; g < 8; ++g) cables.push_back({"nic0", fmt::format("gpu{}", g), 25_GBs});
  const Topology t(with(cables, 8));
  EXPECT_NEAR(static_cast<double>(t.group(8, 1).ring.value) / 312.912e9, 1, 0.04);
}

// DGX-1 with V100s: six NVLinks of 25 GB/s each way, single and double, and PCIe beside them. Rings exist
// that use them all.
TEST(Inside, RingsOfTheHybridCubeMeshUseAllSixNvlinks) {
  constexpr int kLinks[][3] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1},
                               {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1},
                               {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};
  std::vector<Cable> cables = pcie_box();
  for (const auto& [a, b, links] : kLinks)
    cables.push_back({fmt::format("gpu{}", a), fmt::format("gpu{}", b), 25_GBs * links});
  const Topology t(with(cables, 8, 2));
  EXPECT_GE(t.group(8, 1).ring.value, 140'000'000'000);
  EXPECT_LE(t.group(8, 1).ring.value, 151'000'000'000);
}

TEST(Inside, WhatMakesNoNodeIsRefused) {
  const auto refused = [](Cluster c, const char* text) {
    try {
      Network n(c);
      ADD_FAILURE() << "no error: " << text;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  Cluster c = with(pcie_box(), 8, 2);
  c.inside.push_back({"gpu8", "plx0", 25_GBs});
  refused(c, "/inside/15/from: \"gpu8\" is not in a node; allowed: gpu0 to gpu7");
  c = with(pcie_box(), 8, 2);
  c.inside.push_back({"plx0", "plx0", 25_GBs});
  refused(c, "/inside/15: joins a vertex to itself");
  c = with(pcie_box(), 9, 2);
  refused(c, "there is no way from gpu0 to gpu8");
  c = with(pcie_box(), 8, 2);
  c.scale_up_nodes = 2;
  refused(c, "a domain of several nodes has switches");
}

}  // namespace
}  // namespace orrery::sim
