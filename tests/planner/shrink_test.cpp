// SPDX-License-Identifier: Apache-2.0
//
// Steps of jobs that lost replicas.
#include "planner/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace orrery::planner {
namespace {

Problem problem(const char* name) {
  const DataFolders data(ORRERY_ROOT);
  return load_problem(std::string(ORRERY_ROOT "/scenarios/") + name + ".json", data);
}

TEST(Shrink, FewerReplicasNeedMoreSteps) {
  // TP8 PP2 DP4: 4 / 3, 4 / 2 and 4 / 1 times as many steps. A step takes a little less, because fewer
  // replicas sum their gradients: alone, none.
  const Problem p = problem("llama3-70b-p4de");
  const sim::Topology topology(p.cluster);
  const std::vector<double> steps = shrunk_steps(p, topology, *p.scenario.plan, 3);
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_EQ(steps[0], 1);
  EXPECT_NEAR(steps[1], 4.0 / 3, 0.02);
  EXPECT_NEAR(steps[2], 2, 0.03);
  EXPECT_LT(steps[3], 4);
  EXPECT_GT(steps[3], 3.85);
}

TEST(Shrink, ManyReplicasAreInterpolated) {
  // TP8 PP16 DP128: without 64 replicas there are twice as many steps.
  const Problem p = problem("llama3-405b-16k-h100");
  const sim::Topology topology(p.cluster);
  const std::vector<double> steps = shrunk_steps(p, topology, *p.scenario.plan, 64);
  ASSERT_EQ(steps.size(), 65U);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  for (std::size_t lost = 0; lost <= 64; ++lost)
    EXPECT_NEAR(steps[lost] * (128 - static_cast<double>(lost)) / 128, 1, 0.02) << lost;
}

TEST(Shrink, ExpertsThatFewerReplicasCannotShareGoByTheReplicas) {
  Problem p = problem("mixtral-8x22b-128-h100");
  Plan plan;
  plan.tp = 2, plan.pp = 8, plan.dp = 8, plan.ep = 8, plan.etp = 2,
  plan.micro_batches = p.scenario.training.global_batch / 8;
  plan.sequence_parallel = true;
  const sim::Topology topology(p.cluster);
  const std::vector<double> steps = shrunk_steps(p, topology, plan, 2);
  EXPECT_DOUBLE_EQ(steps[1], 8.0 / 7);
  EXPECT_DOUBLE_EQ(steps[2], 8.0 / 6);
}

}  // namespace
}  // namespace orrery::planner
