// SPDX-License-Identifier: Apache-2.0
//
// What a run counts of its experts' tokens, and what the simulator makes of it.
#include <numeric>

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
