// SPDX-License-Identifier: Apache-2.0
//
// The answers of `orrery plan` over scenarios drawn from clusters, numbers of nodes (primes too), stacks,
// models, sequences, batches, calibrated devices, limits of the search and rank orders, with the host's time
// on: how near the estimate is to the engine for every plan shown, that no plan shown is faster than the
// best, and that more nodes never give a slower best. ORRERY_SCENARIOS sets how many; nightly 600.
// ORRERY_FIRST_SCENARIO passes over those before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "planner/plan.h"

namespace orrery::planner {
namespace {

constexpr const char* kClusters[] = {"dgx-a100",
                                     "p4d",
                                     "p5",
                                     "dgx-h100",
                                     "dgx-b200",
                                     "gb200-nvl72",
                                     "designed-rail",
                                     "designed-dragonfly",
                                     "nd40rs-v2",
                                     "designed-fat-tree-4to1",
                                     "a3-high",
                                     "p5en"};
constexpr const char* kStacks[] = {"megatron-core", "fsdp",   "deepspeed",   "torchtitan",
                                   "maxtext",       "orrery", "orrery-graph"};
constexpr const char* kModels[] = {"gpt2-124m", "gpt2-350m", "megatron-1.7b", "llama-2-7b", "llama-3-8b"};
constexpr std::int64_t kNodes[] = {1, 2, 3, 4, 5, 7, 8, 11, 13};
constexpr std::int64_t kSequences[] = {128, 512, 1024, 2048};
constexpr std::int64_t kBatches[] = {6, 8, 14, 16, 24, 32, 35, 48, 64, 96};

Problem draw(std::size_t i) {
  std::mt19937 random(1000003U * static_cast<unsigned>(i) + 29U);
  const auto pick = [&](const auto& list) { return list[random() % std::size(list)]; };
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster(kClusters[i % std::size(kClusters)], {}, {}, data);
  p.cluster.nodes =
      p.cluster.devices_per_node > 16 ? 1 + static_cast<std::int64_t>(random() % 2) : pick(kNodes);
  p.devices = {load_device(p.cluster.device, {}, data)};
  p.stack = load_stack(kStacks[i % std::size(kStacks)], {}, data);
  if (random() % 4 == 0) {
    p.devices[0].factors = {
        {"norm", 1.7}, {"optimizer", 0.6}, {"norm-square", 2.5}, {"activation", 1.4}, {"zero", 3.0}};
  }
  Scenario& s = p.scenario;
  s.model = preset_model(pick(kModels));
  s.training.sequence = std::min(pick(kSequences), s.model.max_positions);
  s.training.global_batch = pick(kBatches);
  if (random() % 5 == 0) s.training.clip = 0;
  if (random() % 3 == 0) s.search.tp = {1, 2};
  if (random() % 3 == 0) s.search.shard_group = {0, 2, 4};
  if (random() % 3 == 0) s.search.rank_order = {RankOrder::kDpTpPp};
  s.search.micro_batch = {1, 2};
  return p;
}

// Of parts that are shipped.
Problem problem(const char* cluster, std::int64_t nodes, const char* stack, const char* model) {
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster(cluster, {}, {}, data);
  p.cluster.nodes = nodes;
  p.devices = {load_device(p.cluster.device, {}, data)};
  p.stack = load_stack(stack, {}, data);
  p.scenario.model = preset_model(model);
  return p;
}

double percentile(std::vector<double> all, double share) {
  std::sort(all.begin(), all.end());
  return all.empty() ? 0 : all[static_cast<std::size_t>(share * static_cast<double>(all.size() - 1))];
}

TEST(Scenarios, EstimatesAreNearTheEngineAndTheBestIsTheBestShown) {
  const auto asked = [](const char* variable, std::size_t otherwise) {
    const char* value = std::getenv(variable);
    return value != nullptr ? std::strtoul(value, nullptr, 10) : otherwise;
  };
  const std::size_t scenarios = asked("ORRERY_SCENARIOS", 12), first = asked("ORRERY_FIRST_SCENARIO", 0);
  std::vector<double> all, quiet;
  for (std::size_t i = first; i < first + scenarios; ++i) {
    SCOPED_TRACE(fmt::format("scenario {}", i));
    Problem p = draw(i);
    const Answer a = plan(p, {.top = 3, .threads = 2});
    if (a.plans.empty()) continue;
    const auto see = [&](const Ranked& r) {
      const double step = r.predicted.step_time_s;
      const double error = std::abs(seconds(r.estimate.step) / step - 1);
      EXPECT_LT(error, 0.25) << short_name(r.plan);
      all.push_back(error);
      const sim::EngineOptions options{.record = false};
      const auto program = program::compile(p.scenario.model, r.plan, p.scenario.training, p.stack);
      const sim::Topology topology(p.cluster);
      const sim::PlanLinks links = sim::plan_links(topology, r.plan);
      const sim::CostModel cost(p.devices, p.stack, p.cluster, links, p.scenario.training, r.plan.ranks());
      sim::Layout layout = sim::place(topology, program, cost, {.most_places = 8});
      for (sim::Meeting& m : layout.meetings) m.activity = -1;  // no flow shares its links
      const double alone = seconds(sim::simulate(program, layout, options).step);
      for (sim::Pace& pace : layout.paces) pace.host_op = pace.host_segment = Time{0};
      const double unissued = seconds(sim::simulate(program, layout, options).step);
      if (step < 1.001 * alone && alone < 1.005 * unissued) {
        EXPECT_LT(error, 0.05) << short_name(r.plan) << " " << seconds(r.estimate.step) << " " << step;
        quiet.push_back(error);
      }
    };
    for (const Ranked& r : a.plans) see(r);
    for (const Ranked& r : a.alongside) {
      see(r);
      const bool fits = r.fits();
      EXPECT_TRUE(!fits || a.plans.front().pessimistic_s <= r.pessimistic_s)
          << short_name(r.plan) << " is better than " << short_name(a.plans.front().plan);
    }
    // On fewer nodes of the same cluster.
    if (p.cluster.nodes == 1) continue;
    Problem fewer = p;
    fewer.cluster.nodes = 1 + static_cast<std::int64_t>(i) % (p.cluster.nodes - 1);
    const Answer small = plan(fewer, {.top = 3, .threads = 2});
    if (small.plans.empty()) continue;
    EXPECT_LE(a.plans.front().pessimistic_s, 1.001 * small.plans.front().pessimistic_s)
        << p.cluster.nodes << " nodes with " << short_name(a.plans.front().plan) << " are slower than "
        << fewer.cluster.nodes << " with " << short_name(small.plans.front().plan);
  }
  RecordProperty("plans", static_cast<int>(all.size()));
  fmt::print("{} plans: p95 {:.2f} %, p99.9 {:.2f} %; {} of them quiet: p95 {:.2f} %, p99 {:.2f} %\n",
             all.size(), 100 * percentile(all, 0.95), 100 * percentile(all, 0.999), quiet.size(),
             100 * percentile(quiet, 0.95), 100 * percentile(quiet, 0.99));
  ASSERT_GT(all.size(), 2 * scenarios);
  ASSERT_GT(quiet.size(), scenarios / 2);
  EXPECT_LT(percentile(all, 0.95), 0.05);
  EXPECT_LT(percentile(all, 0.999), 0.10);
  EXPECT_LT(percentile(quiet, scenarios < 100 ? 0.9 : 0.99), 0.01);
}

// Nodes with cables of their own: all of them are what NVLink is there.
TEST(Scenarios, TwiceTheCablesOfANodeHelpItsTensorRanks) {
  Problem p = problem("nd40rs-v2", 1, "orrery", "gpt2-350m");
  p.scenario.training = {.global_batch = 8, .sequence = 1024};
  p.scenario.search.tp = {8};
  p.scenario.search.pp = {1};
  const Answer a = plan(p, {.top = 1, .threads = 1});
  ASSERT_FALSE(a.plans.empty());
  const auto nvlink = std::find_if(a.sensitivity.begin(), a.sensitivity.end(),
                                   [](const Sensitivity& s) { return s.change == "2x NVLink bandwidth"; });
  ASSERT_NE(nvlink, a.sensitivity.end());
  EXPECT_GT(nvlink->speedup, 1.02);
}

// The issue of groups that do not fill a node: seven replicas in a node of eight never cross the network.
TEST(Scenarios, ReplicasOfOneNodeDoNotCrossTheNetwork) {
  Problem p = problem("p4d", 8, "megatron-core", "llama-2-7b");
  p.scenario.training = {.global_batch = 14, .sequence = 1024};
  p.scenario.search.tp = {1, 2};
  p.scenario.search.pp = {1};
  p.scenario.search.micro_batch = {1};
  const Answer eight = plan(p, {});
  p.cluster.nodes = 1;
  const Answer one = plan(p, {});
  ASSERT_FALSE(eight.plans.empty() || one.plans.empty());
  EXPECT_EQ(eight.plans.front().plan, one.plans.front().plan);
  EXPECT_EQ(eight.plans.front().plan.dp, 7);
  EXPECT_EQ(eight.plans.front().predicted.step_time_s, one.plans.front().predicted.step_time_s);
  EXPECT_LT(eight.largest_gap, 0.01);
}

// What a deadline and a budget say when nothing meets them, and when something does.
TEST(Scenarios, UnmetLimitsAreSaidWithWhatWouldMeetThem) {
  Problem p = problem("p4d", 3, "megatron-core", "llama-2-7b");
  Scenario& s = p.scenario;
  s.training = {.global_batch = 96, .sequence = 2048, .tokens = 5e9};
  s.search.tp = {1, 2};
  s.search.micro_batch = {1};
  s.goal = Goal::kCostByDeadline;
  s.deadline = RunTime{200 * 86400.0};  // longer than a Time can be
  const Answer met = plan(p, {.top = 2});
  ASSERT_FALSE(met.plans.empty());
  EXPECT_TRUE(met.unmet.empty()) << met.unmet;
  ASSERT_EQ(met.sizes.size(), 3U);  // one, two and three nodes, not doublings alone
  for (const Size& z : met.sizes) EXPECT_GE(z.cost_usd, 0.99 * met.plans.front().predicted.cost_usd);
  for (const Ranked& r : met.alongside) {
    const auto nodes = static_cast<double>(nodes_of(r.plan, p.cluster));
    EXPECT_NEAR(r.predicted.cost_per_step_usd, nodes * 32.7726 / 3600 * r.predicted.step_time_s, 1e-9);
  }

  const double fastest = met.sizes.back().days * 86400;
  s.deadline = RunTime{fastest * 0.7};
  const Answer late = plan(p, {.top = 2});
  ASSERT_FALSE(late.plans.empty());
  EXPECT_EQ(late.nodes, 3);
  EXPECT_NE(late.unmet.find("no plan on up to 3 nodes meets the deadline"), std::string::npos) << late.unmet;
  EXPECT_NE(late.unmet.find(" nodes would meet it by the estimate"), std::string::npos) << late.unmet;

  s.goal = Goal::kTimeInBudget;
  s.budget = from_dollars(met.plans.front().predicted.cost_usd / 2);
  const Answer poor = plan(p, {.top = 2});
  EXPECT_NE(poor.unmet.find("no plan keeps to the budget"), std::string::npos) << poor.unmet;
}

}  // namespace
}  // namespace orrery::planner
