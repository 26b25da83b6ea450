// SPDX-License-Identifier: Apache-2.0
//
// The one idea, end to end: a program simulated and run, joined op by op.
#include <gtest/gtest.h>

#include "exec/run.h"
#include "planner/evaluate.h"
#include "sim/calibration/compare.h"

namespace orrery {
namespace {

TEST(Loop, EveryPredictedSliceHasAMeasuredTwin) {
  const DataFolders data;
  const Problem problem = load_problem(std::string(ORRERY_ROOT) + "/scenarios/tiny-cpu.json", data);
  const Plan plan = *problem.scenario.plan;  // TP2 PP2 DP2, 1F1B, ZeRO-1
  ASSERT_EQ(plan.ranks(), 8);
  const sim::Topology topology(problem.cluster);
  const planner::Evaluation predicted = planner::evaluate(problem, topology, plan, {.record = true});
  const exec::RunResult measured = exec::run(predicted.program, {.steps = 2});
  const sim::Comparison c = sim::compare(predicted.simulation.timeline, measured.timeline);
  EXPECT_TRUE(c.same_program);
  EXPECT_EQ(c.only_predicted, 0);
  EXPECT_EQ(c.only_measured, 0);
  // Four ranks run each stage's class.
  EXPECT_EQ(c.matched, 4 * predicted.simulation.ops);
  // Memory is static: the engine allocates what the program says.
  for (std::size_t r = 0; r < measured.arena_bytes.size(); ++r) {
    const auto stage = static_cast<std::size_t>(predicted.program.stage_of(static_cast<std::int64_t>(r)));
    EXPECT_EQ(measured.arena_bytes[r], predicted.program.classes[stage].arena_peak.value);
  }
}

TEST(Loop, TrainingLearns) {
  const DataFolders data;
  const Problem problem = load_problem(std::string(ORRERY_ROOT) + "/scenarios/tiny-cpu.json", data);
  const auto program = program::compile(problem.scenario.model, *problem.scenario.plan,
                                        problem.scenario.training, problem.stack);
  const exec::RunResult r = exec::run(program, {.steps = 12, .learning_rate = 5e-3F});
  EXPECT_LT(r.steps.back().loss, r.steps.front().loss - 0.5);
}

}  // namespace
}  // namespace orrery
