// SPDX-License-Identifier: Apache-2.0
//
// What a run counts of its experts' tokens, and what the simulator makes of it.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/scenario.h"
#include "planner/evaluate.h"
#include "sim/expert_loads.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

const Training kTraining{
    .global_batch = kBatch, .sequence = 16, .precision = Precision::kFp32, .math = Math::kFp32};

std::vector<std::vector<std::int64_t>> counts(Plan p) {
  exec::RunOptions options = small_run(2);
  options.expert_load = true;
  if (p.ep > 1) p.expert_room = 2;
  return train(tiny_of("experts"), p, kTraining, stack(), options).expert_tokens;
}

// In its first step a run under any plan routes the same tokens, each to two of four experts in each of four
// layers; weights after it differ by rounding alone, which moves few choices.
TEST(ExpertLoad, RunsCountEveryTokenOnce) {
  const auto serial = counts(plan(1, 1, 1, 0));
  ASSERT_EQ(serial.size(), 4U);
  const std::int64_t chosen = 2 * kBatch * 16 * 2;  // steps, tokens, top_k
  for (const auto& layer : serial) {
    ASSERT_EQ(layer.size(), 4U);
    EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), std::int64_t{0}), chosen);
  }
  Plan apart = plan(1, 1, 4, 1);
  apart.ep = 2;
  for (const Plan& p : {plan(1, 2, 2, 0), plan(2, 1, 2, 0), sp(plan(2, 1, 2, 0)),
                        context(plan(1, 1, 2, 0), 2, 1), apart, with(plan(1, 1, 2, 0), Recompute::kFull)}) {
    const auto own = counts(p);
    ASSERT_EQ(own.size(), serial.size()) << short_name(p);
    for (std::size_t layer = 0; layer < own.size(); ++layer) {
      EXPECT_EQ(std::accumulate(own[layer].begin(), own[layer].end(), std::int64_t{0}), chosen)
          << short_name(p) << ", layer " << layer;
      for (std::size_t e = 0; e < 4; ++e)
        EXPECT_NEAR(static_cast<double>(own[layer][e]), static_cast<double>(serial[layer][e]), 4)
            << short_name(p) << ", layer " << layer << ", expert " << e;
    }
  }
}

TEST(ExpertLoad, NothingIsCountedUnlessAskedFor) {
  EXPECT_TRUE(train(tiny_of("experts"), plan(1, 1, 1, 0), kTraining, stack()).expert_tokens.empty());
}

// The timeline of a run of one step has the tokens that the run counts, by groups of ranks that have all
// experts between them: of each layer once in a micro-batch, while its experts worked.
TEST(ExpertLoad, ATimelineHasTheTokensOfItsStep) {
  Plan apart = plan(1, 1, 4, 1);
  apart.ep = 2;
  Plan columns = sp(plan(2, 1, 2, 0));
  columns.ep = 2;
  columns.etp = 2;
  struct Grouped {
    Plan plan;
    std::vector<std::vector<std::int64_t>> groups;
  };
  for (Grouped c :
       {Grouped{plan(1, 1, 1, 0), {{0}}}, Grouped{plan(1, 2, 2, 0), {{0}, {1}, {2}, {3}}},
        Grouped{plan(2, 1, 2, 0), {{0}, {2}}}, Grouped{apart, {{0, 1}, {2, 3}}}, Grouped{columns, {{0, 2}}},
        Grouped{with(plan(1, 1, 2, 0), Recompute::kFull), {{0}, {1}}}}) {
    exec::RunOptions options = small_run(1);
    options.expert_load = true;
    options.timeline = true;
    if (c.plan.ep > 1) c.plan.expert_room = 2;
    const exec::RunResult r = train(tiny_of("experts"), c.plan, kTraining, stack(), options);
    const ExpertCounts& e = r.timeline.experts;
    EXPECT_EQ(e.groups, c.groups) << short_name(c.plan);
    std::map<std::int32_t, std::vector<std::int64_t>> sums;
    std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> seen;
    for (const ExpertTokens& of : e.of) {
      EXPECT_TRUE(seen.insert({of.group, of.layer, of.micro_batch}).second) << short_name(c.plan);
      EXPECT_LT(of.start, of.end);
      auto& sum = sums[of.layer];
      sum.resize(of.tokens.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of.tokens[i];
    }
    const std::int64_t stages = c.plan.pp, groups = std::ssize(c.groups) / stages;
    EXPECT_EQ(std::ssize(e.of), 4 * groups * c.plan.micro_batches) << short_name(c.plan);  // layers
    std::vector<std::vector<std::int64_t>> by_layer;
    for (auto& [layer, sum] : sums) by_layer.push_back(std::move(sum));
    EXPECT_EQ(by_layer, r.expert_tokens) << short_name(c.plan);
  }
}

// Two micro-batches of a layer follow each other, whatever else a rank does between them.
TEST(ExpertLoad, TokensStandInATimelineWhereTheirLayerWorked) {
  exec::RunOptions options = small_run(1);
  options.timeline = true;
  const Timeline t = train(tiny_of("experts"), plan(1, 2, 1, 0), kTraining, stack(), options).timeline;
  ASSERT_FALSE(t.experts.of.empty());
  std::size_t found = 0;
  for (const Slice& s : t.slices) {
    const std::string& name = t.names[static_cast<std::size_t>(s.name)];
    if (t.segments[static_cast<std::size_t>(s.segment)] != "forward" || !name.ends_with("/route")) continue;
    const auto of = std::find_if(t.experts.of.begin(), t.experts.of.end(), [&](const ExpertTokens& e) {
      return name.starts_with("layer" + std::to_string(e.layer) + "/") && e.micro_batch == s.micro_batch;
    });
    ASSERT_NE(of, t.experts.of.end()) << name;
    EXPECT_EQ(of->start, s.start) << name;
    EXPECT_EQ(t.experts.groups[static_cast<std::size_t>(of->group)].front(), s.rank) << name;
    ++found;
  }
  EXPECT_EQ(found, t.experts.of.size());
}

// Experts 0 and 1 lie on one rank, 2 and 3 on the other: the simulator's load is the larger half of the
// counts, but for what the choices of a micro-batch differ.
TEST(ExpertLoad, TheSimulatorReplaysThem) {
  const auto counted = counts(plan(1, 1, 1, 0));
  Training t = kTraining;
  t.expert_load = {RecordedLoad{counted}};
  sim::ExpertLoads loads(tiny_of("experts"), t);
  const std::vector<double> means = loads.means({.parts = 2, .ranks = 2, .tokens = 1 << 24});
  for (std::size_t layer = 0; layer < counted.size(); ++layer) {
    const auto& c = counted[layer];
    const double all = static_cast<double>(c[0] + c[1] + c[2] + c[3]);
    const double fuller = static_cast<double>(std::max(c[0] + c[1], c[2] + c[3])) / all;
    EXPECT_NEAR(means[2 * layer + 1], 2 * fuller, 2e-3);
    EXPECT_EQ(means[2 * layer], 1);  // a block without experts
  }
}

}  // namespace
}  // namespace orrery
