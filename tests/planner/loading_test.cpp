// SPDX-License-Identifier: Apache-2.0
//
// Plans that wait for samples: what is chosen then, and what would end the wait.
#include "planner/loading.h"

#include <gtest/gtest.h>

#include "planner/plan.h"
#include "sim/loading/loading.h"

namespace orrery::planner {
namespace {

// The climate model on 64 A100, a batch of 512 samples.
Problem climate() {
  Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/climate-1.2b.json", DataFolders());
  p.scenario.search.pp = {1};
  p.scenario.search.tp = {1, 2};
  p.scenario.search.recompute = {Recompute::kNone, Recompute::kFull};
  return p;
}

Answer planned(const Problem& p) {
  return plan(p, {.top = 3, .threads = 2});
}

TEST(PlansThatLoad, AreTheSameWhereSamplesAreThere) {
  Problem p = climate();
  const Answer without = planned(p);
  p.scenario.loading = Loading{.storage_bandwidth = Bandwidth{100'000'000'000}};
  const Answer with = planned(p);
  ASSERT_FALSE(with.plans.empty());
  EXPECT_EQ(with.plans[0].plan, without.plans[0].plan);
  const Predicted& a = with.plans[0].predicted;
  EXPECT_EQ(a.step_time_s, without.plans[0].predicted.step_time_s);
  ASSERT_TRUE(a.loading.has_value());
  EXPECT_EQ(a.loading->step_s, a.loading->compute_s);
  EXPECT_EQ(a.breakdown.loading_s, 0);
  EXPECT_TRUE(loading_fixes(p, with.plans[0].plan, *a.loading).empty());
}

// 512 samples of 10 MB at 1 GB/s: 5.12 s, whatever the plan. The estimate says the same as the engine, the
// parts of the step add up to it, and the plan that computes fastest goes first.
TEST(PlansThatLoad, TakeAsLongAsTheStorage) {
  Problem p = climate();
  const Answer without = planned(p);
  p.scenario.loading = Loading{
      .sample_bytes = Bytes{10'000'000}, .storage_bandwidth = Bandwidth{1'000'000'000}, .workers = 64};
  const Answer a = planned(p);
  ASSERT_FALSE(a.plans.empty());
  const Ranked& best = a.plans[0];
  EXPECT_NEAR(best.predicted.step_time_s, 5.12, 1e-9);
  EXPECT_NEAR(seconds(best.estimate.step), 5.12, 1e-9);
  EXPECT_EQ(best.predicted.loading->bound, LoadBound::kStorage);
  EXPECT_NEAR(best.predicted.breakdown.loading_s, 5.12 - best.predicted.loading->compute_s, 1e-9);
  EXPECT_NEAR(best.predicted.tokens_per_s, 512 * 2048 / 5.12, 1e-3);
  EXPECT_NEAR(best.predicted.loading->compute_s, without.plans[0].predicted.step_time_s,
              0.02 * without.plans[0].predicted.step_time_s);
}

// Nodes that only wait are not paid for: on 8 nodes compute is hidden behind the storage's 5.12 s, and on
// fewer it is too.
TEST(PlansThatLoad, TakeFewerNodesWhereCostCounts) {
  Problem p = climate();
  p.scenario.search.nodes = {1, 2, 4, 8};
  p.scenario.loading = Loading{
      .sample_bytes = Bytes{10'000'000}, .storage_bandwidth = Bandwidth{1'000'000'000}, .workers = 64};
  p.scenario.goal = Goal::kCost;
  const Answer a = planned(p);
  ASSERT_FALSE(a.plans.empty());
  EXPECT_LT(a.nodes, 8);
  EXPECT_LT(a.plans[0].predicted.loading->waiting(), 0.5);
}

struct Starving : testing::Test {
  Starving() : p(climate()) {
    plan.tp = 1;
    plan.dp = 64;
    plan.micro_batch = 2;
    plan.micro_batches = 4;
  }
  std::vector<LoadingFix> fixes(const Loading& l, double compute_s) {
    p.scenario.loading = l;
    return loading_fixes(p, plan, *sim::loaded_step(p, plan, compute_s, true));
  }
  Problem p;
  Plan plan;
};

// A replica's 8 samples take one worker 80 ms; steps of 30 ms need 3 workers (26.7 ms).
TEST_F(Starving, NeedsSoManyWorkers) {
  const auto f = fixes({.sample_bytes = Bytes{1000}, .cpu_time = from_seconds(0.01), .workers = 1}, 0.03);
  ASSERT_EQ(f.size(), 1U);
  EXPECT_EQ(f[0].change, "3 workers in place of 1");
  EXPECT_EQ(f[0].usd_month, 0);
  EXPECT_DOUBLE_EQ(f[0].step_s, 0.03);
}

// 512 samples of 1 MB in steps of 0.1 s: 5.12 GB/s, or 2 % less. With 1 GB/s there is, 5.05 in steps of a
// twentieth; 4.05 GB/s more at $500 a GB/s are $2,025 a month.
TEST_F(Starving, NeedsSoMuchBandwidth) {
  const Loading l{.sample_bytes = Bytes{1'000'000},
                  .storage_bandwidth = Bandwidth{1'000'000'000},
                  .workers = 64,
                  .bandwidth_month = from_dollars(500)};
  const auto f = fixes(l, 0.1);
  ASSERT_EQ(f.size(), 1U);
  EXPECT_EQ(f[0].change, "storage of 5.05 GB/s in place of 1 GB/s");
  EXPECT_NEAR(f[0].usd_month.value(), 2025, 1e-6);
  EXPECT_NEAR(f[0].step_s, 0.512 / 5.05, 1e-9);
  // 8 nodes at $16.04 an hour, for 730 hours, of which they wait 412 ms in 512.
  const auto now = sim::loaded_step(p, plan, 0.1, true);
  EXPECT_NEAR(waiting_usd_month(p, *now), 8 * 16.04 * 730 * (1 - 0.1 / 0.512), 1);
}

// Where a shuffle within shards would let caches hold all, that costs nothing, and goes before what is
// bought.
TEST_F(Starving, PrefersWhatCostsNothing) {
  p.scenario.training.tokens = 100e9;
  const Loading l{.sample_bytes = Bytes{1'000'000},
                  .storage_bandwidth = Bandwidth{1'000'000'000},
                  .workers = 64,
                  .dataset_bytes = Bytes{100'000'000'000},
                  .cache_bytes = Bytes{20'000'000'000},
                  .bandwidth_month = from_dollars(500)};
  const auto f = fixes(l, 0.1);
  ASSERT_EQ(f.size(), 2U);
  EXPECT_EQ(f[0].change, "shards in place of a global shuffle");
  EXPECT_EQ(f[0].usd_month, 0);
  EXPECT_GT(f[1].usd_month.value(), 0);
}

// Neither alone would do: 80 ms of a worker, and 51.2 ms of the storage, for steps of 30 ms.
TEST_F(Starving, NeedsSeveralChanges) {
  const Loading l{.sample_bytes = Bytes{100'000},
                  .storage_bandwidth = Bandwidth{1'000'000'000},
                  .cpu_time = from_seconds(0.01),
                  .workers = 1};
  const auto f = fixes(l, 0.03);
  ASSERT_EQ(f.size(), 1U);
  EXPECT_NE(f[0].change.find("workers in place of 1 and storage of "), std::string::npos) << f[0].change;
  EXPECT_FALSE(f[0].usd_month.has_value());
  EXPECT_LE(f[0].step_s, 0.03 * 1.02);
}

TEST_F(Starving, MayHaveNoCure) {
  EXPECT_TRUE(
      fixes({.sample_bytes = Bytes{1000}, .cpu_time = from_seconds(100), .workers = 1}, 0.03).empty());
}

}  // namespace
}  // namespace orrery::planner
