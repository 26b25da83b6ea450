// SPDX-License-Identifier: Apache-2.0
//
// Free graphs, and clusters from what other tools print.
#include "sim/topology/import.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "sim/topology/survey.h"

namespace orrery::sim {
namespace {

constexpr Bandwidth kNvlink{25'000'000'000};

Cluster base() {
  Cluster c;
  c.name = "imported";
  c.device = "h100-sxm";
  c.devices_per_node = 2;
  c.intra_bandwidth = Bandwidth{450'000'000'000};
  c.intra_efficiency = 1;
  c.nic_bandwidth = Bandwidth{50'000'000'000};
  return c;
}
Cluster edges(const std::string& text) {
  return import_topology(text, TopologyFormat::kEdges, kNvlink, base(), "edges.txt");
}

// Two leaves of two nodes, joined over two spines.
constexpr const char* kTwoLeaves =
    "# a comment\n"
    "port0.0 leafA 400Gb/s\nport1.0 leafA 400Gb/s\n"
    "port2.0 leafB 400Gb/s\nport3.0 leafB 400Gb/s   # and another\n\n"
    "leafA spine1 400Gb/s 500ns\nleafA spine2 400Gb/s 500ns\n"
    "leafB spine1 400Gb/s 500ns\nleafB spine2 400Gb/s 500ns\n";

TEST(Import, AnEdgeListIsAGraph) {
  const Cluster c = edges(kTwoLeaves);
  EXPECT_EQ(c.nodes, 4);
  EXPECT_EQ(c.nics, 1);
  EXPECT_EQ(c.nic_bandwidth.value, 50'000'000'000);
  EXPECT_EQ(c.fabric.cables.size(), 8u);
  const Topology t(c);
  const Survey s = survey(t);
  EXPECT_EQ(s.vertices.at("named switch"), 4);
  // Four cables to ports and four between switches: an end of each of the former, both of the latter.
  EXPECT_EQ(s.switch_ports, 4 + 2 * 4);
  Path path;
  t.network().route(0, 6, path);
  ASSERT_EQ(path.size(), 6u);
  EXPECT_EQ(t.network().link_name(path[1]), "port0.0 > leafA");
  EXPECT_EQ(t.network().extra_latency(path).value, 1'000'000);
  // Written and read again it is the same.
  const Cluster again = read_fields<Cluster>(write_fields(c), {"again.json", ""});
  EXPECT_EQ(write_fields(again), write_fields(c));
}

// The destination chooses among equally short ways: ports 2 and 3 come over different spines.
TEST(Import, DestinationsSpreadOverEquallyShortWays) {
  const Network n(edges(kTwoLeaves));
  Path a, b;
  n.route(0, 4, a);
  n.route(0, 6, b);
  EXPECT_NE(a[2], b[2]);
  Cluster broken = edges(kTwoLeaves);
  broken.fabric.faults = {{"leafA", "spine1", 0}};
  const Network one(broken);
  one.route(0, 4, a);
  one.route(0, 6, b);
  EXPECT_EQ(a[2], b[2]) << "one spine is left";
  broken.fabric.faults.push_back({"leafA", "spine2", 0});
  const Network none(broken);
  EXPECT_THROW(none.route(0, 4, a), Error);
  none.route(0, 2, a);  // below the leaf nothing has changed
}

// A graph that spells out a tree gives groups what the tree gives them.
TEST(Import, AGraphOfATreeIsTheTree) {
  Cluster tree = base();
  tree.nodes = 8;
  tree.nics = 1;
  tree.nic_bandwidth = Bandwidth{50'000'000'000};
  tree.nic_efficiency = 1;
  tree.fabric = {.routing = Routing::kMinimal, .leaf_nodes = 4};
  std::string text;
  for (int n = 0; n < 8; ++n)
    text += "port" + std::to_string(n) + ".0 leaf" + std::to_string(n / 4) + " 400Gb/s\n";
  for (int l = 0; l < 2; ++l) {
    for (int s = 0; s < 4; ++s)
      text += "leaf" + std::to_string(l) + " spine" + std::to_string(s) + " 400Gb/s\n";
  }
  const Topology a(tree), b(edges(text));
  for (const auto& [size, stride] : {std::pair{2, 1}, {8, 2}, {16, 1}, {4, 2}, {2, 8}})
    EXPECT_EQ(a.group(size, stride).ring, b.group(size, stride).ring) << size << " x " << stride;
  EXPECT_EQ(survey(a).bisection, survey(b).bisection);
}

constexpr const char* kXml =
    R"(<system version="1"><cpu numaid="0">
    <pci busid="0000:17:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0"><nvlink target="0000:05:00.0" count="18"/></gpu></pci>
      <pci busid="0000:19:00.0" class="0x020700"><nic><net name="mlx5_0" speed="400000"/></nic></pci></pci>
    <pci busid="0000:2a:00.0" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1"><nvlink target="0000:05:00.0" count="17"/></gpu></pci>
    <pci busid="0000:2b:00.0"><nic><net name="mlx5_1" speed="200000"/></nic></pci></cpu></system>)";

TEST(Import, NcclTopology) {
  const Cluster c = import_topology(kXml, TopologyFormat::kNccl, kNvlink, base(), "topo.xml");
  EXPECT_EQ(c.devices_per_node, 2);
  EXPECT_EQ(c.nics, 2);
  EXPECT_EQ(c.nic_bandwidth.value, 75'000'000'000);           // 400 + 200 Gb/s
  EXPECT_EQ(c.intra_bandwidth.value, 17 * 20'600'000'000LL);  // of the GPU with fewer links
  // Without NVLink the slot counts: 16 lanes of Gen4 are 24 GB/s to NCCL.
  std::string slots = kXml;
  for (std::size_t at = slots.find("<nvlink"); at != std::string::npos; at = slots.find("<nvlink"))
    slots.erase(at, slots.find("/>", at) + 2 - at);
  EXPECT_EQ(import_topology(slots, TopologyFormat::kNccl, kNvlink, base(), "topo.xml").intra_bandwidth.value,
            24'000'000'000);
}

// Two sockets; a bridge of two NVLinks between the GPUs of the first.
TEST(Import, NcclTopologyWithoutSwitchesKeepsItsCables) {
  const std::string text =
      R"(<system version="1"><cpu numaid="0" vendor="AuthenticAMD">
      <pci busid="0:1" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
        <pci busid="0:2" link_speed="16.0 GT/s PCIe" link_width="16">
          <gpu dev="0" sm="80"><nvlink target="0:3" count="2"/></gpu></pci>
        <pci busid="0:3" link_speed="16.0 GT/s PCIe" link_width="16">
          <gpu dev="1" sm="80"><nvlink target="0:2" count="2"/></gpu></pci>
        <pci busid="0:4" link_speed="8.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" speed="100000"/></nic></pci>
      </pci></cpu><cpu numaid="1" vendor="AuthenticAMD">
      <pci busid="1:2" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="2" sm="80"/></pci></cpu></system>)";
  const Cluster c = import_topology(text, TopologyFormat::kNccl, kNvlink, base(), "topo.xml");
  std::map<std::pair<std::string, std::string>, std::int64_t> cables;
  for (const Cable& cable : c.inside) cables[{cable.from, cable.to}] = cable.bandwidth.value;
  const std::map<std::pair<std::string, std::string>, std::int64_t> expected{
      {{"pci-0", "cpu0"}, 24'000'000'000}, {{"gpu0", "pci-0"}, 24'000'000'000},
      {{"gpu1", "pci-0"}, 24'000'000'000}, {{"nic0", "pci-0"}, 12'000'000'000},
      {{"gpu2", "cpu1"}, 24'000'000'000},  {{"cpu0", "cpu1"}, 16'000'000'000},
      {{"gpu0", "gpu1"}, 40'000'000'000}};
  EXPECT_EQ(cables, expected);
  const Network n(c);
  Path path;
  n.route(0, 1, path);
  EXPECT_EQ(path.size(), 1U);
  n.route(0, 2, path);
  EXPECT_EQ(path.size(), 4U);
  EXPECT_TRUE(import_topology(kXml, TopologyFormat::kNccl, kNvlink, base(), "topo.xml").inside.empty());
}

TEST(Import, NvidiaSmi) {
  const auto read = [](const std::string& cell) {
    return import_topology("\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m\nGPU0\t X \t" + cell + "\t" +
                               cell + "\tPIX\t0-3\nGPU1\t" + cell + "\t X \t" + cell + "\tSYS\nGPU2\t" +
                               cell + "\t" + cell + "\t X \tSYS\nNIC0\tPIX\tSYS\tSYS\t X \n",
                           TopologyFormat::kNvidiaSmi, kNvlink, base(), "topo.txt");
  };
  EXPECT_EQ(read("NV18").devices_per_node, 3);
  EXPECT_EQ(read("NV18").nics, 1);
  EXPECT_EQ(read("NV18").intra_bandwidth.value, 450'000'000'000);  // through switches
  EXPECT_EQ(read("NV2").intra_bandwidth.value, 100'000'000'000);   // a mesh: two links to each of two
  EXPECT_EQ(read("PHB").intra_bandwidth.value, 450'000'000'000);   // as given
}

TEST(Import, TheFormatIsSeenInTheText) {
  EXPECT_EQ(format_of(kXml), TopologyFormat::kNccl);
  EXPECT_EQ(format_of(kTwoLeaves), TopologyFormat::kEdges);
  EXPECT_EQ(format_of("\t\x1b[4mGPU0\tGPU1\n"), TopologyFormat::kNvidiaSmi);
}

TEST(Import, WrongInputIsNamed) {
  const auto why = [](const std::string& text, TopologyFormat format) {
    try {
      const Cluster c = import_topology(text, format, kNvlink, base(), "f");
      const Network n(c);
      return std::string();
    } catch (const InputError& e) {
      return std::string(e.what());
    }
  };
  using enum TopologyFormat;
  const std::pair<std::string, TopologyFormat> wrong[] = {{"port0.0 leaf\n", kEdges},
                                                          {"port0.0 leaf fast\n", kEdges},
                                                          {"port0.0 leaf 400Gb/s soon\n", kEdges},
                                                          {"a b 400Gb/s\n", kEdges},
                                                          {"port0.0 port0.0 400Gb/s\n", kEdges},
                                                          {"port99999999.0 leaf 400Gb/s\n", kEdges},
                                                          {"<system><cpu></system>", kNccl},
                                                          {"<system><cpu/></system>", kNccl},
                                                          {"<topology/>", kNccl},
                                                          {"GPU0 GPU1\nGPU0 X NV18\n", kNvidiaSmi},
                                                          {"GPU0 GPU1\nGPU0 X NVx\nGPU1 NV1 X\n", kNvidiaSmi},
                                                          {"GPU0 GPU1\nGPU0 X QQ\nGPU1 QQ X\n", kNvidiaSmi},
                                                          {"hello\n", kNvidiaSmi}};
  for (const auto& [text, format] : wrong) EXPECT_FALSE(why(text, format).empty()) << text;
  const std::string port = "port0.99999999999999999999";  // more than 64 bits hold
  EXPECT_EQ(why(port + " leaf 400Gb/s\n", kEdges),
            "f: line 1: \"" + port + "\" is out of range; allowed: port0.0 to port1048575.1023");
  for (const std::string speed : {"1e30 GT/s", "1e400 GT/s", "-5", "nan"}) {
    std::string text = kXml;
    text.replace(text.find("32.0 GT/s PCIe"), 14, speed);
    EXPECT_EQ(why(text, kNccl), "f: <pci busid=\"0000:17:00.0\">: link_speed=\"" + speed +
                                    "\" is out of range; allowed: 0 to 1000");
  }
  std::string deep;
  for (int i = 0; i < 200000; ++i) deep += "<a>";
  EXPECT_NE(why("<system>" + deep, kNccl).find("deep"), std::string::npos);
}

// Cut and changed anywhere, it is read or refused.
TEST(Import, DamagedTextNeverCrashes) {
  std::mt19937_64 random(11);
  int refused = 0;
  const std::string texts[] = {kTwoLeaves, kXml, "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"};
  for (int i = 0; i < 3000; ++i) {
    std::string text = texts[i % 3];
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
    if (i % 2 == 0) text.resize(random() % text.size());
    try {
      const Cluster c = import_topology(text, static_cast<TopologyFormat>(i % 3), kNvlink, base(), "f");
      const Network n(c);
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace orrery::sim
