// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/run_life.h"

namespace orrery {
namespace {

// Steps of 2 s, checkpoints of half a second after every second step. The first start takes 2 s to warm up.
// The run dies 1 s into step 6, having saved step 4; 3 s later, and 0.7 s longer in its first step, it goes
// on with step 5.
LifeLog log() {
  LifeLog out;
  out.attempts.resize(2);
  auto& first = out.attempts[0].steps;
  first.push_back({.step = 1, .end_s = 104, .step_s = 4});
  first.push_back({.step = 2, .end_s = 106.5, .step_s = 2, .saved = true, .saving_s = 0.5});
  first.push_back({.step = 3, .end_s = 108.5, .step_s = 2});
  first.push_back({.step = 4, .end_s = 111, .step_s = 2, .saved = true, .saving_s = 0.5});
  first.push_back({.step = 5, .end_s = 113, .step_s = 2});
  out.attempts[0].failure = FailureMark{114, FaultKind::kDead};
  auto& second = out.attempts[1].steps;
  second.push_back({.step = 5, .end_s = 119.7, .step_s = 2.7});
  second.push_back({.step = 6, .end_s = 122.2, .step_s = 2, .saved = true, .saving_s = 0.5});
  second.push_back({.step = 7, .end_s = 124.5, .step_s = 2, .validating_s = 0.3});
  return out;
}

TEST(RunLife, SaysWhereTheTimeWent) {
  const RunLife life = run_life(log());
  EXPECT_EQ(life.first_step, 0);
  EXPECT_EQ(life.steps, 7);
  EXPECT_EQ(life.failures, 1);
  EXPECT_NEAR(life.times.total.value, 124.5 - 102,
              1e-9);  // from 2 s, a usual step, before the first one's end
  EXPECT_NEAR(life.times.progress.value, 7 * 2, 1e-9);
  EXPECT_NEAR(life.times.lost.value, 2, 1e-9);  // step 5
  EXPECT_NEAR(life.times.checkpoint.value, 3 * 0.5, 1e-9);
  EXPECT_NEAR(life.times.detection.value, 1, 1e-9);
  EXPECT_NEAR(life.times.restart.value, 3 + 0.7, 1e-9);
  EXPECT_NEAR(life.times.validation.value, 0.3, 1e-9);
  EXPECT_NEAR(life.times.counted().value, 22.2, 1e-9);
  EXPECT_NEAR(life.measured.step->value, 2, 1e-9);
  EXPECT_NEAR(life.measured.checkpoint->value, 0.5, 1e-9);
  EXPECT_NEAR(life.measured.restart->value, 3.7, 1e-9);
  EXPECT_NEAR(life.measured.detection_dead->value, 1, 1e-9);
  EXPECT_FALSE(life.measured.detection_frozen);
  EXPECT_FALSE(life.measured.settle);
}

// A start that fails before its first step is restart, whatever stopped it, and measures no restart.
TEST(RunLife, AStartThatFailsAtOnceIsRestart) {
  LifeLog l = log();
  Attempt at_once;
  at_once.failure = FailureMark{115.5, FaultKind::kFrozen};
  l.attempts.insert(l.attempts.begin() + 1, at_once);
  const RunLife life = run_life(l);
  EXPECT_EQ(life.failures, 2);
  EXPECT_NEAR(life.times.restart.value, 1.5 + (119.7 - 115.5 - 2), 1e-9);
  EXPECT_NEAR(life.measured.restart->value, 119.7 - 115.5 - 2, 1e-9);
  EXPECT_FALSE(life.measured.detection_frozen);
  EXPECT_NEAR(life.times.total.value, 124.5 - 102, 1e-9);
}

// Starts before the first step are not part of the life.
TEST(RunLife, BeginsWithTheFirstStep) {
  LifeLog l = log();
  Attempt before;
  before.failure = FailureMark{50, std::nullopt};
  l.attempts.insert(l.attempts.begin(), before);
  const RunLife life = run_life(l), without = run_life(log());
  EXPECT_EQ(life.failures, without.failures);
  EXPECT_EQ(write_fields(life), write_fields(without));
  EXPECT_EQ(run_life(LifeLog{}).steps, 0);
}

// What another process says of the run's life is what it knew.
TEST(RunLife, LogsAreReadAsTheyWereWritten) {
  const Json text = write_fields(log());
  EXPECT_EQ(write_fields(read_fields<LifeLog>(text, Cursor{"log"})), text);
}

}  // namespace
}  // namespace orrery
