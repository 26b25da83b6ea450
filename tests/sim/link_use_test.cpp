// SPDX-License-Identifier: Apache-2.0
//
// How full links are: the average of a step is what its moments add up to, and what its users have together.
#include "sim/link_use.h"

#include <gtest/gtest.h>

#include "planner/evaluate.h"

namespace orrery::sim {
namespace {

struct Step {
  explicit Step(const Plan& plan) {
    const DataFolders data;
    problem.cluster = load_cluster("p4d", {}, {}, data);
    problem.cluster.nodes = (plan.ranks() + 7) / 8;
    problem.devices = {load_device("a100-40gb", {}, data)};
    problem.stack = load_stack("megatron-core", {}, data);
    problem.scenario.model = preset_model("llama-2-7b");
    problem.scenario.model.layers = 4;
    problem.scenario.training = {.global_batch = plan.global_batch(), .sequence = 1024};
    topology.emplace(problem.cluster);
    evaluation = planner::evaluate(problem, *topology, plan, {.record = true});
    links = plan_links(*topology, plan);
    cost.emplace(problem.devices, problem.stack, problem.cluster, links, problem.scenario.training);
    use.emplace(*topology, evaluation.program, *cost, evaluation.simulation.step);
    lanes.emplace(std::move(evaluation.simulation.timeline));
  }
  Problem problem;
  std::optional<Topology> topology;
  planner::Evaluation evaluation;
  PlanLinks links;
  std::optional<CostModel> cost;
  std::optional<LinkUse> use;
  std::optional<Lanes> lanes;
};

// Tensor ranks in the node, the other axes over the NICs; in the second plan replicas and stages use them at
// once and slow each other.
const Plan kPlans[] = {{.tp = 2, .dp = 8, .zero = 1, .micro_batches = 2},
                       {.tp = 8, .pp = 2, .dp = 2, .zero = 1, .micro_batches = 4},
                       {.dp = 16, .zero = 3, .micro_batches = 1}};

TEST(LinkUse, UsersMakeTheAverageOfALink) {
  for (const Plan& plan : kPlans) {
    const Step s(plan);
    const Network& n = s.topology->network();
    double most = 0;
    for (LinkId l = 0; l < n.links(); ++l) {
      double sum = 0;
      for (const LinkUser& u : s.use->users(l)) sum += u.share;
      EXPECT_NEAR(sum, s.use->average()[l], 1e-9) << n.link_name(l) << " under " << short_name(plan);
      most = std::max(most, sum);
    }
    EXPECT_GT(most, 0.05) << short_name(plan);
    EXPECT_LE(most, 1 + 1e-9) << short_name(plan);
  }
}

// 16 nodes of one device, eight to a leaf. In a ring one member's bytes leave the leaf. In an all-to-all each
// of the leaf's eight members sends 8 of its 15 parts to the other leaf: 8 x 8/15 of the bytes that one
// member sends.
TEST(LinkUse, AnAllToAllIsOnTheLinksOfItsParts) {
  const Plan plan{.dp = 16, .micro_batches = 1};
  const DataFolders data;
  Cluster cluster = load_cluster("p4d", {}, {}, data);
  cluster.nodes = 16;
  cluster.devices_per_node = cluster.nics = 1;
  cluster.fabric.leaf_nodes = 8;
  const Topology topology(cluster);
  const Device device = load_device("a100-40gb", {}, data);
  const Stack stack = load_stack("megatron-core", {}, data);
  Model model = preset_model("llama-2-7b");
  model.layers = 1;
  const Training training{.global_batch = 16, .sequence = 1024};
  const PlanLinks links = plan_links(topology, plan);
  const CostModel cost({&device, 1}, stack, cluster, links, training);
  program::Program program = program::compile(model, plan, training, stack);
  const auto up_per_byte = [&] {
    const LinkUse use(topology, program, cost, Time{1'000'000'000'000});
    double up = 0, out = 0;
    for (LinkId l = 0; l < topology.network().links(); ++l) {
      const double bytes = use.average()[l] * static_cast<double>(topology.network().capacity(l));
      if (topology.network().link_name(l) == "leaf0 > spine0") up = bytes;
      if (topology.network().link_name(l) == "device0 > port0.0") out = bytes;
    }
    return up / out;
  };
  EXPECT_NEAR(up_per_byte(), 1, 1e-9);
  std::int64_t changed = 0;
  for (program::Segment& s : program.classes[0].segments) {
    for (program::Op& op : s.ops) {
      auto* collective = std::get_if<program::ops::Collective>(&op.kind);
      if (collective == nullptr) continue;
      collective->collective = CollectiveKind::kAllToAll;
      ++changed;
    }
  }
  ASSERT_GT(changed, 0);
  EXPECT_NEAR(up_per_byte(), 64.0 / 15, 1e-4);
}

// The bytes that cross a link are the same however fast they do: sampled over the step, its use has the
// average.
TEST(LinkUse, MomentsAddUpToTheAverage) {
  for (const Plan& plan : kPlans) {
    const Step s(plan);
    const Network& n = s.topology->network();
    if (plan.pp > 1) {
      ASSERT_FALSE(s.evaluation.simulation.links.empty());
      EXPECT_GT(s.evaluation.simulation.links[0].lost, Time{0});
    }
    constexpr std::int64_t kSamples = 4000;
    std::vector<double> sums(n.links());
    const std::int64_t step = s.evaluation.simulation.step.value;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      const auto now = s.use->at(*s.lanes, Time{step / kSamples * i + step / (2 * kSamples)});
      for (std::size_t l = 0; l < now.size(); ++l) sums[l] += now[l] / kSamples;
    }
    for (LinkId l = 0; l < n.links(); ++l)
      EXPECT_NEAR(sums[l], s.use->average()[l], 0.01 + 0.02 * s.use->average()[l])
          << n.link_name(l) << " under " << short_name(plan);
  }
}

}  // namespace
}  // namespace orrery::sim
