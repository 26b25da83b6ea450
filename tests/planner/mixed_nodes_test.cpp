// SPDX-License-Identifier: Apache-2.0
//
// Clusters of several types of nodes: what one type says must hold when it is written as two, what a slower
// type costs follows from its rates, and layers are dealt by speed and memory.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "planner/balance.h"
#include "planner/evaluate.h"
#include "planner/plan.h"
#include "planner/search.h"

namespace orrery {
namespace {

// Two nodes of eight, then two of another type.
Problem mixed() {
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster("mixed-h100-a100", {}, {}, data);
  p.devices = load_devices(p.cluster, data);
  p.stack = load_stack("megatron-core", {}, data);
  p.scenario.model = preset_model("llama-2-7b");
  p.scenario.training.sequence = 2048;
  return p;
}

// All nodes are of one type.
Problem only(const Problem& of, std::size_t type) {
  Problem p = of;
  static_cast<NodeType&>(p.cluster) = of.cluster.type(type);
  p.cluster.other_nodes.clear();
  p.devices = {of.devices[type]};
  return p;
}

// The later nodes compute `factor` times as slowly, and are like the first ones in all else.
Problem slower(double factor) {
  Problem p = mixed();
  static_cast<NodeType&>(p.cluster.other_nodes[0]) = p.cluster;
  p.devices[1] = p.devices[0];
  p.devices[1].sustained /= factor;
  return p;
}

double step_of(const Problem& p, const Plan& plan) {
  const sim::Topology topology(p.cluster);
  return planner::evaluate(p, topology, plan).predicted.step_time_s;
}

Plan pipeline(std::int64_t pp, std::int64_t tp, std::int64_t dp, std::int64_t micro_batches) {
  Plan p;
  p.pp = pp;
  p.tp = tp;
  p.dp = dp;
  p.sequence_parallel = tp > 1;
  p.zero = dp > 1 ? 1 : 0;
  p.micro_batches = micro_batches;
  return p;
}

TEST(MixedNodes, PricesAddUpNodeByNode) {
  const Cluster c = mixed().cluster;
  EXPECT_EQ(c.types(), 2U);
  EXPECT_EQ(c.type_of_node(1), 0U);
  EXPECT_EQ(c.type_of_node(2), 1U);
  EXPECT_EQ(c.type_of_device(15), 0U);
  EXPECT_EQ(c.type_of_device(16), 1U);
  EXPECT_DOUBLE_EQ(c.dollars_per_hour(2), 2 * 55.04);
  EXPECT_DOUBLE_EQ(c.dollars_per_hour(3), 2 * 55.04 + 27.44705);
  EXPECT_DOUBLE_EQ(c.dollars_per_hour(4), 2 * 55.04 + 2 * 27.44705);
  Cluster unknown = c;
  unknown.other_nodes[0].node_hour = Dollars{0};
  EXPECT_DOUBLE_EQ(unknown.dollars_per_hour(2), 2 * 55.04);
  EXPECT_EQ(unknown.dollars_per_hour(3), 0);
}

// Types of nodes that do not differ change nothing, to the picosecond and the byte.
TEST(MixedNodes, ATypeWrittenTwiceIsOneType) {
  const Problem twice = slower(1), once = only(twice, 0);
  std::mt19937 random(20261125);
  for (int i = 0; i < 24; ++i) {
    Plan plan = pipeline(1 << random() % 3, 1 << random() % 4, 1, 8);
    plan.dp = 32 / (plan.pp * plan.tp);
    plan.zero = static_cast<std::int64_t>(random() % 4);
    plan.schedule = plan.pp > 1 && random() % 2 == 0 ? Schedule::kInterleaved : Schedule::k1F1B;
    plan.vpp = plan.schedule == Schedule::kInterleaved ? 2 : 1;
    plan.rank_order = random() % 2 == 0 ? RankOrder::kTpDpPp : RankOrder::kTpPpDp;
    if (plan.dp == 1) plan.zero = 0;
    SCOPED_TRACE(short_name(plan) + " " + std::string(name_of(plan.rank_order)));
    Problem a = twice, b = once;
    a.scenario.training.global_batch = b.scenario.training.global_batch = plan.global_batch();
    const sim::Topology in_a(a.cluster), in_b(b.cluster);
    EXPECT_EQ(planner::evaluate(a, in_a, plan).simulation.step,
              planner::evaluate(b, in_b, plan).simulation.step);
    const sim::Estimate x = sim::Estimator(a, in_a).estimate(plan),
                        y = sim::Estimator(b, in_b).estimate(plan);
    EXPECT_EQ(x.peak, y.peak);
    // Interleaved chunks of stages on different types are walked, and have a closed form where stages are
    // alike.
    EXPECT_NEAR(seconds(x.step) / seconds(y.step), 1, plan.vpp > 1 ? 0.015 : 1e-3);
  }
}

// Replicas on both types wait for each other in every step: the slower ones decide.
TEST(MixedNodes, AStageOfBothTypesIsAsSlowAsTheSlower) {
  const Problem p = slower(2);
  Problem slow = only(p, 1), fast = only(p, 0);
  const Plan plan = pipeline(1, 2, 16, 4);
  for (Problem* x : {&slow, &fast}) x->scenario.training.global_batch = plan.global_batch();
  Problem both = p;
  both.scenario.training.global_batch = plan.global_batch();
  EXPECT_EQ(step_of(both, plan), step_of(slow, plan));
  EXPECT_GT(step_of(both, plan), 1.5 * step_of(fast, plan));
  const sim::Topology topology(p.cluster);
  const sim::Topology of_slow(slow.cluster);
  EXPECT_EQ(sim::Estimator(both, topology).estimate(plan).step,
            sim::Estimator(slow, of_slow).estimate(plan).step);
}

// Of 32 layers on two stages, the second of half the speed, every split is tried in the engine.
TEST(MixedNodes, LayersAreDealtBySpeed) {
  Problem p = slower(2);
  Plan plan = pipeline(2, 8, 2, 32);
  p.scenario.training.global_batch = plan.global_batch();
  const sim::Topology topology(p.cluster);
  sim::Estimator estimator(p, topology);
  const auto all = [](Bytes memory) { return memory; };
  const auto balanced = planner::balanced_layers(estimator, plan, all);
  ASSERT_TRUE(balanced);
  // About two thirds of the layers are on the stage that is twice as fast; the second has the head too.
  EXPECT_NEAR(static_cast<double>(balanced->front()), 64.0 / 3, 2);
  double best = step_of(p, plan);
  const double even = best;
  for (std::int64_t first = 12; first <= 28; ++first) {
    Plan split = plan;
    split.chunk_layers = {first, 32 - first};
    best = std::min(best, step_of(p, split));
  }
  plan.chunk_layers = *balanced;
  EXPECT_LE(step_of(p, plan), 1.005 * best);
  EXPECT_LT(step_of(p, plan), 0.82 * even);
  // Where stages are of one type there is nothing to deal.
  Problem same = only(p, 0);
  same.scenario.training.global_batch = plan.global_batch();
  const sim::Topology alike(same.cluster);
  sim::Estimator of_same(same, alike);
  EXPECT_FALSE(planner::balanced_layers(of_same, pipeline(2, 8, 2, 32), all));
}

// Of equal speed, but with so little memory that half of the layers do not fit there.
TEST(MixedNodes, LayersAreDealtByMemory) {
  Problem p = slower(1);
  Plan plan = pipeline(2, 8, 2, 8);
  p.scenario.training.global_batch = plan.global_batch();
  const auto fits = [&](const Plan& of) {
    const sim::Topology topology(p.cluster);
    return planner::fit(p, of).fits();
  };
  const sim::Topology topology(p.cluster);
  {
    sim::Estimator estimator(p, topology);
    const Bytes even = estimator.device_bytes(plan, estimator.peak(plan).peak);
    p.devices[1].memory = Bytes{even.value * 3 / 4};
  }
  EXPECT_FALSE(fits(plan));
  EXPECT_EQ(planner::fit(p, plan).stage, 1);
  EXPECT_EQ(planner::fit(p, plan).available, p.devices[1].memory.value);
  sim::Estimator estimator(p, topology);
  const auto balanced = planner::balanced_layers(estimator, plan, [](Bytes memory) { return memory; });
  ASSERT_TRUE(balanced);
  EXPECT_GT(balanced->front(), balanced->back());
  plan.chunk_layers = *balanced;
  EXPECT_TRUE(fits(plan));
  const planner::Evaluation e = planner::evaluate(p, topology, plan);
  EXPECT_TRUE(planner::fit(p, plan, e.predicted).fits());
  // One layer more on the second stage is too much.
  --plan.chunk_layers.front();
  ++plan.chunk_layers.back();
  EXPECT_FALSE(fits(plan));
}

// The estimate against the engine on H100 beside A100: time within 5 %, memory to the byte.
TEST(MixedNodes, TheEstimateIsTheEngines) {
  std::mt19937 random(11252026);
  double worst = 0;
  for (int i = 0; i < 40; ++i) {
    Problem p = mixed();
    p.devices[0].host_op = p.devices[1].host_op = Time{0};
    Plan plan =
        pipeline(1 << random() % 3, 1 << random() % 4, 1, 8 * (1 + static_cast<std::int64_t>(random() % 3)));
    plan.dp = 32 / (plan.pp * plan.tp);
    plan.zero = plan.dp == 1 ? 0 : static_cast<std::int64_t>(random() % 4);
    if (plan.pp > 1) plan.schedule = random() % 2 == 0 ? Schedule::kInterleaved : Schedule::k1F1B;
    plan.vpp = plan.schedule == Schedule::kInterleaved ? 2 : 1;
    plan.recompute = random() % 2 == 0 ? Recompute::kFull : Recompute::kNone;
    plan.rank_order = random() % 2 == 0 ? RankOrder::kTpDpPp : RankOrder::kTpPpDp;
    p.scenario.training.global_batch = plan.global_batch();
    const sim::Topology topology(p.cluster);
    if (plan.pp > 1 && plan.vpp == 1) {
      sim::Estimator estimator(p, topology);
      if (const auto layers = planner::balanced_layers(estimator, plan, [](Bytes m) { return m * 100; }))
        plan.chunk_layers = *layers;
    }
    SCOPED_TRACE(short_name(plan) + " " + std::string(name_of(plan.rank_order)));
    const planner::Evaluation e = planner::evaluate(p, topology, plan);
    const sim::Estimate x = sim::Estimator(p, topology).estimate(plan);
    std::int64_t peak = 0;
    for (const program::RankClass& c : e.program.classes) {
      if (c.stage == x.fullest_stage) peak = c.logical_peak.value;
    }
    EXPECT_EQ(x.peak.value, peak);
    const double error = seconds(x.step) / e.predicted.step_time_s - 1;
    EXPECT_NEAR(error, 0, 0.05);
    worst = std::max(worst, std::abs(error));
  }
  RecordProperty("worst", std::to_string(worst));
}

// The answer is no slower than what the fast nodes do alone, and than any even split.
TEST(MixedNodes, SlowNodesNeverMakeTheBestSlower) {
  Problem p = mixed();
  p.scenario.training.global_batch = 64;
  p.scenario.search.micro_batch = {1, 2};
  const planner::Answer all = planner::plan(p, {.top = 3, .threads = 2});
  Problem fast = p;
  fast.cluster.nodes = 2;
  const planner::Answer alone = planner::plan(fast, {.top = 3, .threads = 2});
  ASSERT_FALSE(all.plans.empty());
  ASSERT_FALSE(alone.plans.empty());
  EXPECT_LE(all.plans[0].predicted.step_time_s, alone.plans[0].predicted.step_time_s);
  for (const planner::Candidate& c : all.search.best) EXPECT_LE(c.device, c.capacity);
  // Utilisation counts what both types could do: 16 H100 and as many A100 as the plan uses.
  const planner::Ranked& best = all.plans[0];
  const double flops =
      model_flops_per_sequence(p.scenario.model, p.scenario.training, AttentionFlops::kFull).value;
  const auto ranks = static_cast<double>(best.plan.ranks());
  const double peak = std::min(ranks, 16.0) * 989.5e12 + std::max(0.0, ranks - 16) * 312e12;
  EXPECT_NEAR(best.predicted.mfu, 64 * flops / best.predicted.step_time_s / peak, 1e-3);
}

std::string refused(const std::string& other_nodes) {
  const std::string file = ::testing::TempDir() + "mixed-cluster.json";
  std::ofstream(file) << R"({"name": "x", "device": "h100-sxm", "nodes": 4, "devices_per_node": 8,
    "scale_up_nodes": 2, "intra_bandwidth": "450 GB/s", "nic_bandwidth": "3200 Gb/s", "other_nodes": )"
                      << other_nodes << "}";
  try {
    const DataFolders data;
    (void)load_devices(load_cluster(file, {}, {}, data), data);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(MixedNodes, WrongNodesAreRefusedAtTheirPlace) {
  const auto one = [](const char* from, const char* device, const char* links) {
    return fmt::format(R"({{"from_node": {}, "device": "{}", "nic_bandwidth": "1600 Gb/s"{}}})", from, device,
                       links);
  };
  const char* const links = R"(, "links": "nvlink3-a100")";
  EXPECT_EQ(refused("[" + one("2", "a100-80gb", links) + "]"), "no error");
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refused("[" + one("1", "a100-80gb", links) + "]"),
      "/other_nodes/0/from_node: 1 is inside a domain of 2 nodes");
  has(refused("[" + one("2", "a100-80gb", links) + "," + one("2", "a100-40gb", links) + "]"),
      "/other_nodes/1/from_node: 2 does not come after the entry before");
  has(refused("[" + one("4", "a100-80gb", links) + "]"),
      "/other_nodes/0/from_node: 4 is not one of the 4 nodes");
  has(refused("[" + one("2", "a100-80gb", "") + "]"), "/other_nodes/0: neither");
  has(refused("[" + one("2", "a100-80g", links) + "]"),
      "/other_nodes/0/device: \"a100-80g\" is not in profiles");
  has(refused("[" + one("0", "a100-80gb", links) + "]"), "/other_nodes/0/from_node: 0 is out of range");
  has(refused("[" + one("2", "a100-80gb", R"(, "links": "nvlink9")") + "]"),
      "/other_nodes/0/links: \"nvlink9\"");
}

}  // namespace
}  // namespace orrery
