// SPDX-License-Identifier: Apache-2.0
//
// The safest, the smallest and the simplest plan beside the fastest.
#include "planner/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "planner/families.h"

namespace orrery::planner {
namespace {

TEST(Choices, CountMechanisms) {
  EXPECT_EQ(mechanisms({}), 0);
  EXPECT_EQ(mechanisms({.dp = 8}), 0);
  EXPECT_EQ(mechanisms({.tp = 2, .dp = 4, .zero = 1}), 2);
  EXPECT_EQ(mechanisms({.tp = 2, .pp = 4, .dp = 4, .zero = 1}), 3);
  EXPECT_EQ(mechanisms({.pp = 4, .vpp = 2, .dp = 4, .schedule = Schedule::kInterleaved}), 2);
  EXPECT_EQ(mechanisms({.pp = 4, .dp = 4, .schedule = Schedule::kZeroBubbleH1}), 2);
  EXPECT_EQ(mechanisms({.dp = 4, .recompute = Recompute::kFull}), 1);
  EXPECT_EQ(mechanisms({.dp = 4, .recompute = Recompute::kFull, .recompute_first = 2}), 2);
  EXPECT_EQ(mechanisms({.dp = 4, .zero = 1, .shard_group = 2}), 2);
  EXPECT_EQ(mechanisms({.dp = 4, .zero = 1, .shard_group = 4}), 1) << "all replicas are no group";
}

double unwanted(const Problem& p, Reason reason, const Candidate& c) {
  switch (reason) {
    case Reason::kSafest:
      return 1 - fits_probability(p, c);
    case Reason::kSmallest:
      return static_cast<double>(c.device.value);
    case Reason::kSimplest:
      return mechanisms(c.plan);
  }
  return 0;
}

// Whatever the search kept: none that takes as little longer has less of what the choice was made by, and a
// reason that is not given has no plan that is better by what counts.
TEST(Choices, AreTheBestByTheirReason) {
  std::set<Reason> seen;
  for (const char* scenario : {"llama3-70b-p4d", "llama2-7b-8k-a100", "gpt-oss-20b-one-node", "tiny-cpu"}) {
    const Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/" + scenario + ".json", {});
    const Answer a = plan(p, {.top = 3, .threads = 2});
    ASSERT_FALSE(a.plans.empty()) << scenario;
    std::vector<Candidate> all = a.search.best;
    for (const auto& [kind, c] : a.search.by_kind) all.push_back(c);
    all.insert(all.end(), a.search.pareto.begin(), a.search.pareto.end());
    std::erase_if(all, [](const Candidate& c) { return c.ranked == kNever || !c.fits(); });
    const auto of = [&](const Plan& plan) {
      return std::find_if(all.begin(), all.end(), [&](const Candidate& c) { return c.plan == plan; });
    };
    if (of(a.plans[0].plan) == all.end()) continue;  // a rule of thumb's
    const Time base = a.plans[0].estimate.step;
    for (const Reason reason : {Reason::kSafest, Reason::kSmallest, Reason::kSimplest}) {
      const double longer = reason == Reason::kSmallest ? 1.1 : 1.05;
      const double own = unwanted(p, reason, *of(a.plans[0].plan));
      const auto chosen = std::find_if(a.choices.begin(), a.choices.end(), [&](const Choice& c) {
        return std::find(c.reasons.begin(), c.reasons.end(), reason) != c.reasons.end();
      });
      const bool given = chosen != a.choices.end();
      const double has = given ? unwanted(p, reason, *of(chosen->plan.plan)) : own;
      if (given) {
        seen.insert(reason);
        EXPECT_NE(chosen->plan.plan, a.plans[0].plan) << scenario;
        EXPECT_LE(ratio(of(chosen->plan.plan)->estimate.step, base), longer) << scenario << name_of(reason);
        EXPECT_LT(has, own) << scenario << name_of(reason);
      }
      for (const Candidate& c : all) {
        if (ratio(c.estimate.step, base) > longer) continue;
        const double other = unwanted(p, reason, c);
        if (given) {
          EXPECT_GE(other, has) << scenario << name_of(reason) << short_name(c.plan);
        }
        const bool counts = reason == Reason::kSafest     ? other + 0.01 <= own
                            : reason == Reason::kSmallest ? other <= 0.9 * own
                                                          : other < own;
        EXPECT_TRUE(given || !counts) << scenario << name_of(reason) << short_name(c.plan);
      }
    }
  }
  EXPECT_EQ(seen.size(), 3U) << "some reason is never given";
}

// A choice that takes longer than the deadline allows is not given; one that meets the deadline still is.
TEST(Choices, MeetTheDeadline) {
  Problem p = load_problem(std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-p4d.json", {});
  p.scenario.goal = Goal::kCostByDeadline;
  p.scenario.deadline = RunTime{1000 * 86400.0};
  p.scenario.search.nodes = {p.cluster.nodes};
  const auto days_of_choices = [&](double fastest) {
    const Answer a = plan(p, {.top = 3, .threads = 2});
    std::vector<double> out{fastest > 0 ? fastest : a.plans.at(0).predicted.days};
    EXPECT_TRUE(a.unmet.empty()) << a.unmet;
    EXPECT_DOUBLE_EQ(a.plans.at(0).predicted.days, out[0]);
    for (const Choice& c : a.choices) out.push_back(c.plan.predicted.days);
    return out;
  };
  const std::vector<double> free = days_of_choices(0);
  ASSERT_GE(free.size(), 2U) << "no choice that a deadline could leave out";
  const double slowest = *std::max_element(free.begin(), free.end());
  ASSERT_GT(slowest, free[0]);
  p.scenario.deadline = RunTime{(free[0] + slowest) / 2 * 86400};
  const std::vector<double> limited = days_of_choices(free[0]);
  EXPECT_LT(limited.size(), free.size());
  for (const double days : limited) EXPECT_LE(days * 86400, p.scenario.deadline.value);
}

// Plans of the same degrees are one line: as many lines as families, the best of each, with others as its
// variants in order.
TEST(Families, NearDuplicatesAreFolded) {
  const DataFolders data;
  Problem p = load_problem(ORRERY_ROOT "/scenarios/llama3-70b-p4de.json", data);
  const Answer a = plan(p, {.top = 6, .threads = 2});
  ASSERT_EQ(a.plans.size(), 6U);
  std::set<Degrees> seen;
  std::size_t variants = 0;
  for (const Ranked& r : a.plans) {
    EXPECT_TRUE(seen.insert(degrees_of(r.plan)).second) << short_name(r.plan);
    for (const Variant& v : r.variants) {
      EXPECT_EQ(degrees_of(v.plan), degrees_of(r.plan));
      EXPECT_NE(v.plan, r.plan);
      EXPECT_FALSE(differences(v.plan, r.plan).empty()) << short_name(v.plan);
    }
    variants += r.variants.size();
  }
  EXPECT_GE(variants, 1U);
  // No candidate of another family that the search kept is faster than the last one shown.
  for (const auto& [degrees, c] : a.search.by_degrees) {
    const bool simulated = std::any_of(a.simulated.begin(), a.simulated.end(),
                                       [&](const Plan& other) { return degrees_of(other) == degrees; });
    if (simulated || c.ranked == kNever) continue;
    EXPECT_GE(seconds(c.ranked), 0.99 * a.plans.back().predicted.step_time_s) << short_name(c.plan);
  }
}

TEST(Families, DifferencesNameWhatVaries) {
  Plan base{.tp = 2, .pp = 2, .dp = 4, .zero = 1, .micro_batch = 1, .micro_batches = 64};
  base.sequence_parallel = true;
  Plan other = base;
  other.micro_batch = 2;
  other.micro_batches = 32;
  EXPECT_EQ(differences(other, base), "mb2x32");
  other = base;
  other.sequence_parallel = false;
  EXPECT_EQ(differences(other, base), "no sp");
  other = base;
  other.schedule = Schedule::kInterleaved;
  other.vpp = 4;
  EXPECT_EQ(differences(other, base), "VPP4 interleaved");
  EXPECT_EQ(differences(base, base), "");
}

// 24 devices have room for six replicas of TP4, and a batch of 64 is split evenly over four: 66 over six.
TEST(Families, ABatchThatLeavesDevicesIdleIsNamed) {
  const DataFolders data;
  Problem p = load_problem(ORRERY_ROOT "/scenarios/llama3-70b-p4de.json", data);
  p.cluster.nodes = p.scenario.cluster.nodes = 3;
  p.scenario.model = preset_model("llama-2-7b");
  p.scenario.plan.reset();
  p.scenario.training.global_batch = 64;
  p.scenario.training.sequence = 4096;
  p.scenario.search.micro_batch = {1};
  p.scenario.search.tp = {4};
  p.scenario.search.pp = {1};
  const Answer a = plan(p, {.top = 1, .threads = 2});
  ASSERT_FALSE(a.plans.empty());
  ASSERT_EQ(a.plans[0].plan.ranks(), 16);
  const auto said = std::find_if(a.why.begin(), a.why.end(), [](const std::string& w) {
    return w.find("devices idle") != std::string::npos;
  });
  ASSERT_NE(said, a.why.end());
  EXPECT_NE(said->find("a batch of 64 leaves 8 of 24 devices idle: 66 would use 24"), std::string::npos)
      << *said;
  EXPECT_NE(said->find("more tokens a second"), std::string::npos) << *said;
}

}  // namespace
}  // namespace orrery::planner
