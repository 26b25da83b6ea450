// SPDX-License-Identifier: Apache-2.0
//
// Plans are ranked by a time that they exceed with a stated probability, where one that does not fit takes
// forever.
#include "planner/risk.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/plan.h"

namespace orrery::planner {
namespace {

const PredictionSpread kSpread{.memory = {.mean = 0, .deviation = 0.1}, .plans = {.deviation = 0.05}};

// Of a normal distribution 80 % lie below 0.841621 deviations. A plan that fits in 90 % of cases has to be
// below its time in 0.8 / 0.9 of them: 1.220640 deviations.
TEST(Risk, IsTheShareOfTimesAboveAndOfPlansThatDoNotFit) {
  EXPECT_NEAR(outlook(10, 1, kSpread, 0.2), 10 * std::exp(0.05 * 0.841621), 1e-5);
  EXPECT_NEAR(outlook(10, 0.9, kSpread, 0.2), 10 * std::exp(0.05 * 1.220640), 1e-5);
  EXPECT_NEAR(outlook(10, 1, kSpread, 0.5), 10, 1e-9);
  EXPECT_TRUE(std::isinf(outlook(10, 0.8, kSpread, 0.2)));
  EXPECT_FALSE(std::isinf(outlook(10, 0.801, kSpread, 0.2)));
  EXPECT_EQ(outlook(10, 0.1, kSpread, 1), 10);
}

// More risk never makes a plan worse, nor does more room.
TEST(Risk, IsMonotonic) {
  double before = std::numeric_limits<double>::infinity();
  for (double risk = 0.02; risk < 1; risk += 0.02) {
    const double t = outlook(10, 0.9, kSpread, risk);
    EXPECT_LE(t, before) << risk;
    before = t;
  }
  before = std::numeric_limits<double>::infinity();
  for (double fits = 0.1; fits <= 1; fits += 0.05) {
    const double t = outlook(10, fits, kSpread, 0.2);
    EXPECT_LE(t, before) << fits;
    before = t;
  }
}

Problem gpt3_on_a100() {
  Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/gpt3-175b-dgx-a100.json", DataFolders());
  p.spread = kSpread;
  return p;
}

// Whatever the risk, the first plan is the one with the least pessimistic time, it fits with the probability
// that was asked for, and plans that were set aside for their memory say so.
TEST(Risk, DecidesWhichPlanIsFirst) {
  Problem p = gpt3_on_a100();
  double fits_before = 0, step_before = 0;
  for (const double risk : {1.0, 0.3, 0.02}) {
    p.scenario.search.risk = risk;
    const Answer a = plan(p, {.top = 5, .threads = 2});
    ASSERT_FALSE(a.plans.empty()) << risk;
    const Ranked& best = a.plans.front();
    for (const Ranked& r : a.plans) EXPECT_LE(best.pessimistic_s, r.pessimistic_s) << risk;
    if (risk < 1) {
      EXPECT_GT(best.predicted.fits_probability, 1 - risk);
    }
    EXPECT_GE(best.predicted.fits_probability, fits_before) << risk;
    EXPECT_GE(best.predicted.step_time_s, step_before) << risk;
    fits_before = best.predicted.fits_probability;
    step_before = best.predicted.step_time_s;
    for (const Rejected& r : a.rejected) {
      if (r.reason.find("probability") == std::string::npos) continue;
      EXPECT_LT(r.step_time_s, best.predicted.step_time_s) << risk;
      EXPECT_LT(risk, 1);
    }
  }
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
