// SPDX-License-Identifier: Apache-2.0
//
// A plan on some nodes of a cluster.
#include "planner/placed.h"

#include <gtest/gtest.h>

#include "core/json.h"
#include "sim/estimate/estimate.h"

namespace orrery::planner {
namespace {

// GPT-3 13B-like work on DGX A100s, 4 nodes under a leaf, 1:4.
struct Fixture {
  Problem problem;
  Plan plan;
  explicit Fixture(double oversubscription = 4) {
    const DataFolders data{std::filesystem::path(ORRERY_ROOT)};
    problem = load_problem(std::filesystem::path(ORRERY_ROOT) / "scenarios/llama2-70b-800-gpus.json", data);
    problem.cluster = load_cluster("dgx-a100", {}, Cursor{"test"}, data);
    problem.cluster.nodes = 16;
    problem.cluster.fabric = Fabric{};
    problem.cluster.fabric.leaf_nodes = 4;
    problem.cluster.fabric.oversubscription = oversubscription;
    problem.devices = load_devices(problem.cluster, data);
    problem.scenario.training.global_batch = 32;
    plan.tp = 8;
    plan.pp = 2;
    plan.dp = 4;
    plan.micro_batches = 8;
    plan.zero = 1;
  }
};

double step_s(const Problem& p, const Plan& plan) {
  const sim::Topology topology(p.cluster);
  return seconds(sim::Estimator(p, topology).estimate(plan).step);
}

// The graph of a part costs what the tree costs where the part is how ranks fill the tree.
TEST(PlacedPlan, APartIsAsTheWhole) {
  for (const FabricKind kind : {FabricKind::kFatTree, FabricKind::kRailOptimized}) {
    Fixture f;
    f.problem.cluster.fabric.kind = kind;
    const sim::Topology whole(f.problem.cluster);
    const sim::ClusterNodes nodes = sim::cluster_nodes(whole);
    const PlacedPlan placed(f.problem, f.plan, whole, nodes);
    EXPECT_EQ(placed.nodes(), 8);
    EXPECT_EQ(placed.best_step_s(), step_s(f.problem, f.plan)) << name_of(kind);
    const std::vector<std::int32_t> other{8, 9, 10, 11, 0, 1, 2, 3};
    EXPECT_EQ(placed.cost(other).slow, 1);
  }
}

TEST(PlacedPlan, IsSlowerUnderMoreSwitches) {
  Fixture f;
  const sim::Topology whole(f.problem.cluster);
  const sim::ClusterNodes nodes = sim::cluster_nodes(whole);
  EXPECT_EQ(nodes.leaves(), 4);
  EXPECT_DOUBLE_EQ(nodes.uplink[0], 1);  // four nodes, 1:4
  f.plan.pp = 1;                         // replicas of one node, all of whose sums cross switches
  f.plan.micro_batches = 8;
  const PlacedPlan placed(f.problem, f.plan, whole, nodes);
  EXPECT_EQ(placed.cost(std::vector<std::int32_t>{4, 5, 6, 7}).slow, 1);
  EXPECT_EQ(placed.cost(std::vector<std::int32_t>{4, 5, 6, 7}).sensitivity, 0);  // it uses no uplinks
  const sim::ShapeCost spread = placed.cost(std::vector<std::int32_t>{0, 4, 8, 12});
  EXPECT_GE(spread.slow, 1);
  EXPECT_GT(spread.sensitivity, 0.001);
  // Hand: half of the uplinks' bandwidth for all four is what 1:8 is.
  Fixture narrow(8);
  narrow.plan = f.plan;
  const sim::Topology narrower(narrow.problem.cluster);
  const sim::ClusterNodes narrow_nodes = sim::cluster_nodes(narrower);
  const PlacedPlan same(narrow.problem, f.plan, narrower, narrow_nodes);
  EXPECT_NEAR(same.cost(std::vector<std::int32_t>{0, 4, 8, 12}).slow, spread.slow + spread.sensitivity, 1e-9);
}

TEST(PlacedPlan, KeepsNodeTypesAndDomains) {
  const DataFolders data{std::filesystem::path(ORRERY_ROOT)};
  Cluster mixed = load_cluster("mixed-h100-a100", {}, Cursor{"test"}, data);
  const sim::Topology whole(mixed);
  ASSERT_GT(mixed.types(), 1U);
  const auto second = static_cast<std::int32_t>(mixed.first_node_of(1));
  const Cluster part = part_of(whole, std::vector<std::int32_t>{second, 0, second + 1});
  EXPECT_EQ(part.device, mixed.device);  // node 0 goes first
  ASSERT_EQ(part.other_nodes.size(), 1U);
  EXPECT_EQ(part.other_nodes[0].device, mixed.other_nodes[0].device);
  EXPECT_EQ(part.other_nodes[0].from_node, 1);
  EXPECT_EQ(sim::cluster_nodes(whole).regular, false);

  Cluster racks = load_cluster("gb200-nvl72", {}, Cursor{"test"}, data);
  ASSERT_EQ(racks.scale_up_nodes, 18);
  racks.nodes = 36;
  const sim::Topology two(racks);
  EXPECT_EQ(sim::cluster_nodes(two).leaves(), 2);
  const auto domain = [&](std::initializer_list<std::int32_t> nodes) {
    return part_of(two, std::vector<std::int32_t>(nodes)).scale_up_nodes;
  };
  EXPECT_EQ(domain({0, 1, 2, 3}), 4);
  EXPECT_EQ(domain({0, 1, 2, 18}), 1);
  EXPECT_EQ(domain({0, 1, 2, 3, 18, 19}), 2);
}

// Racks of 18 nodes of four GPUs: a job within one has what it asks for, whole racks are whole, and else 16
// nodes of each make a block, so that 64 neighbouring ranks from a multiple of 64 on are in one.
TEST(Racks, JobsHaveBlocksOfThem) {
  Cluster racks =
      load_cluster("gb200-nvl72", {}, Cursor{"test"}, DataFolders{std::filesystem::path(ORRERY_ROOT)});
  const auto domain = [&](std::int64_t nodes) {
    racks.nodes = nodes;
    return racks.domain_nodes();
  };
  EXPECT_EQ(domain(1), 18);
  EXPECT_EQ(domain(18), 18);
  EXPECT_EQ(domain(36), 18);
  for (const std::int64_t nodes : {19, 20, 32, 64, 128}) EXPECT_EQ(domain(nodes), 16) << nodes;
  racks.nodes = 64;
  EXPECT_EQ(racks.scale_up_domain(), 64);
  const sim::Topology blocks(racks);
  EXPECT_EQ(blocks.group(64, 1).domains, 1);
  EXPECT_EQ(blocks.group(128, 1).domains, 2);
  racks.nodes = 72;  // four whole racks
  const sim::Topology whole(racks);
  EXPECT_EQ(whole.group(64, 1, 256).domains, 2);
  EXPECT_EQ(whole.group(72, 1).domains, 1);
}

}  // namespace
}  // namespace orrery::planner
