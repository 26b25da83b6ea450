// SPDX-License-Identifier: Apache-2.0
//
// Plans are ranked by a time that they exceed with a stated probability, where one that does not fit takes
// forever.
#include "planner/risk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "planner/plan.h"

namespace orrery::planner {
namespace {

const PredictionSpread kSpread{.memory = {.mean = 0, .deviation = 0.1}, .plans = {.deviation = 0.05}};

// Of a normal distribution 80 % lie below 0.841621 deviations. A plan that fits in 90 % of cases has to be
// below its time in 0.8 / 0.9 of them: 1.220640 deviations.
TEST(Risk, IsTheShareOfTimesAboveAndOfPlansThatDoNotFit) {
  EXPECT_NEAR(pessimistic_time(10, 1, kSpread, 0.2), 10 * std::exp(0.05 * 0.841621), 1e-5);
  EXPECT_NEAR(pessimistic_time(10, 0.9, kSpread, 0.2), 10 * std::exp(0.05 * 1.220640), 1e-5);
  EXPECT_NEAR(pessimistic_time(10, 1, kSpread, 0.5), 10, 1e-9);
  EXPECT_TRUE(std::isinf(pessimistic_time(10, 0.8, kSpread, 0.2)));
  EXPECT_FALSE(std::isinf(pessimistic_time(10, 0.801, kSpread, 0.2)));
  EXPECT_EQ(pessimistic_time(10, 0.1, kSpread, 1), 10);
}

// More risk never makes a plan worse, nor does more room.
TEST(Risk, IsMonotonic) {
  double before = std::numeric_limits<double>::infinity();
  for (double risk = 0.02; risk < 1; risk += 0.02) {
    const double t = pessimistic_time(10, 0.9, kSpread, risk);
    EXPECT_LE(t, before) << risk;
    before = t;
  }
  before = std::numeric_limits<double>::infinity();
  for (double fits = 0.1; fits <= 1; fits += 0.05) {
    const double t = pessimistic_time(10, fits, kSpread, 0.2);
    EXPECT_LE(t, before) << fits;
    before = t;
  }
}

Problem gpt3_on_a100() {
  Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/gpt3-175b-dgx-a100.json", DataFolders());
  p.spread = kSpread;
  return p;
}

// With less risk the first plan is slower and fits more probably; plans that were passed over say why.
TEST(Risk, DecidesWhichPlanIsFirst) {
  Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-p4d.json", DataFolders());
  p.spread = kSpread;
  double fits_before = 0, step_before = 0;
  int passed_over = 0;
  for (const double risk : {1.0, 0.3, 0.02}) {
    p.scenario.search.risk = risk;
    const Answer a = plan(p, {.top = 5, .threads = 2});
    ASSERT_FALSE(a.plans.empty()) << risk;
    const Ranked& best = a.plans.front();
    EXPECT_TRUE(risk == 1 || best.predicted.fits_probability > 1 - risk) << risk;
    EXPECT_GE(best.predicted.fits_probability, fits_before) << risk;
    EXPECT_GE(best.predicted.step_time_s, step_before) << risk;
    fits_before = best.predicted.fits_probability;
    step_before = best.predicted.step_time_s;
    for (const Rejected& r : a.rejected) {
      if (r.reason.find("probability") == std::string::npos) continue;
      ++passed_over;
      EXPECT_LT(r.step_time_s, best.predicted.step_time_s) << risk;
    }
  }
  EXPECT_GT(passed_over, 0);
}

// The search that bounds finds what one that costs everything finds, also where the best that is safe enough
// is far slower than plans that are not: 1 % of risk on Llama-3-70B, and only such tp and recomputation.
TEST(Risk, TheBoundedSearchMissesNoSafePlan) {
  Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-p4d.json", DataFolders());
  p.spread = kSpread;
  p.scenario.search.tp = {8};
  p.scenario.search.recompute = {Recompute::kNone, Recompute::kFull};
  const sim::Topology topology(p.cluster);
  for (const double risk : {0.2, 0.01}) {
    p.scenario.search.risk = risk;
    const SearchResult bounded = search(p, topology, {.keep = 5});
    const SearchResult all = search(p, topology, {.keep = 5, .bound = false});
    ASSERT_EQ(bounded.best.size(), 5U);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(bounded.best[i].plan, all.best[i].plan) << risk << " " << i;
      EXPECT_GT(fits_probability(p, bounded.best[i]), 1 - risk);
    }
    EXPECT_LT(all.best[0].ranked, kNever);
  }
}

// Where no plan fits probably enough the most probable is first, and the answer says so.
TEST(Risk, WithoutASafePlanTheMostProbableIsFirst) {
  Problem p = gpt3_on_a100();
  p.spread.memory = {.mean = 3, .deviation = 0.2};  // plans need 20 times what is predicted
  p.scenario.search.tp = {8};
  p.scenario.search.micro_batch = {1};
  p.scenario.search.schedule = {Schedule::k1F1B};
  const SearchResult r = search(p, sim::Topology(p.cluster), {});
  ASSERT_GT(r.best.size(), 1U);
  for (std::size_t i = 1; i < r.best.size(); ++i)
    EXPECT_GE(fits_probability(p, r.best[i - 1]), fits_probability(p, r.best[i])) << i;
  const Answer a = plan(p, {.top = 2, .threads = 2});
  ASSERT_FALSE(a.plans.empty());
  EXPECT_TRUE(a.plans.front().risky());
  const bool told = std::any_of(a.why.begin(), a.why.end(), [](const std::string& w) {
    return w.find("no plan fits with a probability above 80 %") != std::string::npos;
  });
  EXPECT_TRUE(told);
}

// With memory that is known the risk changes no order.
TEST(Risk, ChangesNothingWhereMemoryIsKnown) {
  Problem p = gpt3_on_a100();
  p.spread.memory = {};
  const auto names = [&](double risk) {
    p.scenario.search.risk = risk;
    std::vector<std::string> out;
    for (const Ranked& r : plan(p, {.top = 5, .threads = 2}).plans) out.push_back(short_name(r.plan));
    return out;
  };
  EXPECT_EQ(names(1), names(0.1));
}

}  // namespace
}  // namespace orrery::planner
