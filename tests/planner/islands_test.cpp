// SPDX-License-Identifier: Apache-2.0
//
// Islands on sites far apart: what an exchange takes, and that the search weighs it against gradients in
// every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "core/inputs.h"
#include "planner/evaluate.h"
#include "planner/plan.h"
#include "sim/estimate/estimate.h"
#include "tests/folder.h"

namespace orrery::planner {
namespace {

Problem two_sites(std::int64_t every = 500) {
  Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-two-sites.json", DataFolders());
  p.scenario.training.outer->every = every;
  return p;
}

const Plan kOnIslands{.tp = 8,
                      .pp = 4,
                      .dp = 4,
                      .islands = 2,
                      .sequence_parallel = true,
                      .zero = 1,
                      .micro_batch = 1,
                      .micro_batches = 128};

// Of two islands each sends half of its differences and then half of the sums: all of them once, over a line
// of 100 Gb/s, with four latencies of 10 ms. 128 ranks share the line, and those of the stage that has most
// parameters, of all others as fast, are the last: 4 bytes x 8.56e8 / 4 x 128 / 12.5 GB/s.
TEST(IslandsOnSites, ExchangeAsFastAsTheLineCarriesTheirDifferences) {
  const Problem p = two_sites();
  const sim::Topology topology(p.cluster);
  const Evaluation e = evaluate(p, topology, kOnIslands);
  ASSERT_TRUE(e.predicted.islands);
  const IslandExchange& x = *e.predicted.islands;
  // The last of four stages: 20 layers, the norm and the head. A layer has 2 (8192^2 + 8192 x 1024) of
  // attention, 3 x 8192 x 28672 of its MLP, and norms; a rank an eighth, and a quarter as its shard.
  const double layer = 2 * (8192.0 * 8192 + 8192.0 * 1024) + 3 * 8192.0 * 28672;
  const double shard = (20 * layer + 8192.0 * 128256) / 8 / 4;
  EXPECT_NEAR(static_cast<double>(x.bytes), 4 * shard, 2e-3 * 4 * shard);
  const double line_s = 4 * shard * 128 / 12.5e9;
  EXPECT_GT(x.exchange_s, line_s + 2 * 0.010);
  EXPECT_LT(x.exchange_s, line_s + 4 * 0.010 + 0.15);
  EXPECT_EQ(x.every, 500);
  EXPECT_NEAR(e.predicted.step_time_s, x.step_s + x.exchange_s / 500, 1e-9);
  EXPECT_NEAR(e.predicted.breakdown.islands_s, x.exchange_s / 500, 1e-12);
  EXPECT_NEAR(e.predicted.tokens_per_s, 1024 * 8192 / e.predicted.step_time_s, 1);
}

// The estimate's exchange is the engine's; half the bytes take half the time.
TEST(IslandsOnSites, TheEstimateEqualsTheEngine) {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const std::int64_t pp : {1, 2, 4}) {
      if (zero == 2 && pp > 1) continue;
      double before = 0;
      for (const OuterFormat format : {OuterFormat::kFp32, OuterFormat::kBf16}) {
        Problem p = two_sites(3);
        p.scenario.model = preset_model("llama-3-8b");
        p.scenario.training.outer->exchange = format;
        p.stack = load_stack("orrery", {}, DataFolders());
        Plan plan = kOnIslands;
        plan.pp = pp;
        plan.dp = 16 / pp;
        plan.zero = zero;
        plan.micro_batches = 1024 / plan.replicas();
        const sim::Topology topology(p.cluster);
        const Evaluation e = evaluate(p, topology, plan);
        const sim::Estimate estimate = sim::Estimator(p, topology).estimate(plan);
        const double exchange_s = e.predicted.islands.value().exchange_s;
        EXPECT_NEAR(seconds(estimate.exchange), exchange_s, 0.01 * exchange_s) << short_name(plan);
        EXPECT_NEAR(seconds(estimate.step), e.predicted.step_time_s, 0.01 * e.predicted.step_time_s)
            << short_name(plan);
        EXPECT_EQ(estimate.peak, std::max_element(e.program.classes.begin(), e.program.classes.end(),
                                                  [](const auto& a, const auto& b) {
                                                    return a.logical_peak < b.logical_peak;
                                                  })
                                     ->logical_peak)
            << short_name(plan);
        if (before > 0) {
          EXPECT_NEAR(before / exchange_s, 2, 0.1) << short_name(plan);
        }
        before = exchange_s;
      }
    }
  }
}

// Where the sites are joined by a slow line, islands are the faster way and the answer says so; where there
// is one site, gradients in every step cost less than an outer optimizer's memory.
TEST(IslandsOnSites, AreSearched) {
  Problem p = two_sites();
  p.scenario.search.tp = {8};
  p.scenario.search.pp = {4};
  p.scenario.search.micro_batch = {1};
  p.scenario.search.schedule = {Schedule::k1F1B};
  const Answer a = plan(p, {});
  ASSERT_FALSE(a.plans.empty());
  EXPECT_EQ(a.plans.front().plan.islands, 2);
  // Against the same ranks as one island, in the placement that is fastest then.
  Plan one = a.plans.front().plan;
  one.dp = one.replicas();
  one.islands = 1;
  if (one.zero > 0 && one.shard_group == 0) one.shard_group = one.dp / 2;
  const sim::Topology topology(p.cluster);
  sim::Estimator estimator(p, topology);
  Time fastest = kLongestStep;
  std::string in_every_step;
  for (const RankOrder order : {RankOrder::kTpDpPp, RankOrder::kTpPpDp, RankOrder::kDpTpPp}) {
    one.rank_order = order;
    const Time step = estimator.estimate(one).step;
    if (step >= fastest) continue;
    fastest = step;
    in_every_step =
        fmt::format("exchanged in every step it would take {} ({})", format(step), name_of(order));
  }
  EXPECT_GT(seconds(fastest), 1.2 * a.plans.front().predicted.step_time_s);
  const bool said = std::any_of(a.why.begin(), a.why.end(), [&](const std::string& line) {
    return line.starts_with("islands exchange every 500 steps") && line.ends_with(in_every_step);
  });
  EXPECT_TRUE(said);
  Problem together = p;
  together.scenario.search.islands = {1};
  const Answer b = plan(together, {});
  EXPECT_GT(b.plans.front().predicted.step_time_s, 1.2 * a.plans.front().predicted.step_time_s);
  // Exchanges in every step cost more than gradients do.
  Problem often = p;
  often.scenario.training.outer->every = 1;
  EXPECT_EQ(plan(often, {}).plans.front().plan.islands, 1);
}

TEST(IslandsOnSites, ScenariosThatSayHalfOfItAreRefused) {
  const Folder folder;
  const auto why = [&](const Json& change) {
    Json j = load_json(std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-two-sites.json");
    j.merge_patch(change);
    const auto file = folder.path / "scenario.json";
    std::ofstream(file) << j.dump();
    try {
      plan(load_problem(file, DataFolders()), {});
      return std::string();
    } catch (const InputError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_NE(why({{"search", nullptr}}).find("/training/outer"), std::string::npos);
  EXPECT_NE(why({{"training", {{"outer", nullptr}}}}).find("/search/islands/1"), std::string::npos);
  EXPECT_NE(why({{"stack", "megatron-core"}}).find("/search/islands/1"), std::string::npos);
  EXPECT_NE(why({{"training", {{"outer", {{"every", 0}}}}}}).find("/training/outer/every"),
            std::string::npos);
}

}  // namespace
}  // namespace orrery::planner
