// SPDX-License-Identifier: Apache-2.0
//
// Runs with failures at given places, against arithmetic.
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "sim/reliability/replay.h"

namespace orrery::sim {
namespace {

RunLife life(std::int64_t steps, std::int64_t every, std::vector<Fault> faults) {
  RunLife out;
  out.steps = steps;
  out.checkpoint_every = every;
  out.faults = std::move(faults);
  return out;
}
const LifeConstants kConstants{.step = RunTime{2},
                               .checkpoint = RunTime{0.5},
                               .restart = RunTime{7},
                               .detection_dead = RunTime{1},
                               .detection_frozen = RunTime{30}};

TEST(Replay, IsTheArithmeticOfItsFaults) {
  // 20 steps of 2 s, 5 checkpoints of 0.5 s.
  const auto run = [](std::vector<Fault> faults) {
    const RunModel m = model_of(life(20, 4, std::move(faults)), kConstants);
    const RunOutcome out = simulate_run(m, 1, 0, 100);
    EXPECT_TRUE(is_conserved(out, m));
    return out;
  };
  EXPECT_EQ(run({}).total, ticks(42.5));
  // A rank dies where step 7 begins: steps 5 and 6 are done again.
  RunOutcome out = run({{FaultKind::kDead, 1, 7}});
  EXPECT_EQ(out.lost, ticks(4.0));
  EXPECT_EQ(out.total, ticks(42.5 + 4 + 1 + 7));
  // Where step 9 begins, step 8 has just been saved.
  out = run({{FaultKind::kFrozen, 0, 9}});
  EXPECT_EQ(out.lost, Ticks{0});
  EXPECT_EQ(out.total, ticks(42.5 + 30 + 7));
  // Its checkpoint cannot be written: back to step 4. The checkpoint is tried, and fails, twice.
  out = run({{FaultKind::kDisk, 3, 8}, {FaultKind::kDead, 0, 9}});
  EXPECT_EQ(out.lost, ticks(8.0));
  EXPECT_EQ(out.total, ticks(42.5 + 8 + 0.5 + 1 + 7));
  // One after the other: in the second start step 3 lies behind, so that neither it nor the next strikes.
  out = run({{FaultKind::kDead, 0, 10}, {FaultKind::kDead, 0, 3}, {FaultKind::kDead, 0, 15}});
  EXPECT_EQ(out.of(Process::kSoftware), 1);
  EXPECT_EQ(out.total, ticks(42.5 + 2 + 1 + 7));
  // The same step twice: the second strikes when step 10 is done again.
  out = run({{FaultKind::kDead, 0, 10}, {FaultKind::kDead, 0, 10}});
  EXPECT_EQ(out.total, ticks(42.5 + 2 * (2 + 1 + 7)));
}

// Storage gets a checkpoint 3 s after the run went on: a failure before goes back to the one before it.
TEST(Replay, CheckpointsBesideStepsAreReadLater) {
  LifeConstants c = kConstants;
  c.settle = RunTime{3};
  const auto total = [&](std::int64_t step) {
    return simulate_run(model_of(life(20, 4, {{FaultKind::kDead, 0, step}}), c), 1, 0, 100).total;
  };
  const double quiet = 42.5 + 3;                             // the last one is waited for
  EXPECT_EQ(total(10), ticks(quiet + 2 + 4 * 2 + 0.5 + 8));  // 2 s after step 8: it is lost with steps 5 to 9
  EXPECT_EQ(total(11), ticks(quiet + 2 * 2 + 8));
}

TEST(Replay, WithoutCheckpointsItBeginsAnew) {
  const RunModel m = model_of(life(10, 0, {{FaultKind::kDead, 0, 6}}), kConstants);
  EXPECT_EQ(simulate_run(m, 1, 0, 100).total, ticks(20.0 + 10 + 8));
}

// Failures that come by chance and injected ones are both counted, in runs that are conserved to the tick.
TEST(Replay, IsConservedBesideRandomFailures) {
  constexpr unsigned kSeed = 20261128;
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    std::vector<Fault> faults;
    for (std::uint32_t n = random() % 5; n > 0; --n)
      faults.push_back(
          {FaultKind{static_cast<int>(random() % 3)}, 0, 1 + static_cast<std::int64_t>(random() % 30)});
    RunModel m = model_of(life(30, static_cast<std::int64_t>(random() % 7), faults), kConstants);
    m.detection = ticks(2.0);
    m.rate(Process::kSoftware).per_job_s = static_cast<double>(random() % 3) / 100;
    const RunOutcome out = simulate_run(m, kSeed, static_cast<std::uint64_t>(i), 10000);
    ASSERT_TRUE(is_conserved(out, m)) << i;
    ASSERT_GE(out.total, m.work);
  }
}

// Another run's constants that are not known are named.
TEST(Replay, SaysWhatNoRunMeasured) {
  const RunLife frozen = life(20, 4, {{FaultKind::kFrozen, 0, 9}});
  EXPECT_EQ(missing(frozen, kConstants), "");
  EXPECT_EQ(missing(frozen, {.step = RunTime{2}, .checkpoint = RunTime{1}, .restart = RunTime{1}}),
            "a frozen rank");
  EXPECT_EQ(missing(frozen, {.step = RunTime{2}}), "a checkpoint");
  EXPECT_THROW(model_of(frozen, {}), Error);
  RunLife a, b;
  a.measured = {.step = RunTime{2}, .restart = RunTime{5}};
  b.measured = {.step = RunTime{4}};
  const LifeConstants mean = mean_of(std::vector{a, b});
  EXPECT_DOUBLE_EQ(mean.step->value, 3);
  EXPECT_DOUBLE_EQ(mean.restart->value, 5);
  EXPECT_FALSE(mean.checkpoint);
}

}  // namespace
}  // namespace orrery::sim
