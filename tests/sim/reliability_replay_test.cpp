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

// Steps of 2 s, a checkpoint of half a second after the second one, a death 1 s into the fourth, noticed at
// once: 3 s later the run goes on with the third.
TEST(LifeTimeline, ShowsWhatAnExecutedRunDid) {
  LifeLog log;
  log.attempts.resize(2);
  log.attempts[0].steps = {{.step = 1, .end_s = 12, .step_s = 2},
                           {.step = 2, .end_s = 14.5, .step_s = 2, .saved = true, .saving_s = 0.5},
                           {.step = 3, .end_s = 16.5, .step_s = 2}};
  log.attempts[0].failure = FailureMark{17.5, FaultKind::kDead};
  log.attempts[1].steps = {{.step = 3, .end_s = 22.5, .step_s = 2},
                           {.step = 4, .end_s = 24.8, .step_s = 2, .validating_s = 0.3}};
  const Timeline t = life_timeline(log);
  EXPECT_EQ(t.source, "measured: life of a run");
  EXPECT_EQ(t.streams, (std::vector<std::string>{"job", "stops"}));  // as of simulated runs
  struct Expected {
    const char* name;
    std::int32_t stream;
    double begin_s, end_s;
  };
  const std::vector<Expected> expected = {{"work", 0, 0, 4},
                                          {"checkpoint", 0, 4, 4.5},
                                          {"lost work", 0, 4.5, 6.5},
                                          {"down, not noticed", 0, 6.5, 7.5},
                                          {"restart", 0, 7.5, 10.5},
                                          {"work", 0, 10.5, 14.5},
                                          {"validation", 0, 14.5, 14.8},
                                          {"a rank died", 1, 6.5, 10.5}};
  ASSERT_EQ(t.slices.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(t.names[static_cast<std::size_t>(t.slices[i].name)], expected[i].name) << i;
    EXPECT_EQ(t.slices[i].stream, expected[i].stream) << i;
    EXPECT_NEAR(seconds(t.slices[i].start), expected[i].begin_s, 1e-6) << i;
    EXPECT_NEAR(seconds(t.slices[i].end), expected[i].end_s, 1e-6) << i;
  }
  EXPECT_TRUE(life_timeline(LifeLog{}).slices.empty());
}

// What the timeline shows adds up to the times of the life, whatever happened.
TEST(LifeTimeline, AddsUpToTheTimes) {
  std::mt19937 random(20261128);
  for (int i = 0; i < 500; ++i) {
    LifeLog log;
    double now = 5;
    std::int64_t next = 1;
    for (int attempt = 0; attempt < 4; ++attempt) {
      Attempt& a = log.attempts.emplace_back();
      for (auto n = random() % 6; n > 0; --n) {
        StepMark m{.step = next++, .step_s = 1 + static_cast<double>(random() % 100) / 100};
        m.saved = random() % 3 == 0;
        m.saving_s = m.saved ? 0.25 : 0;
        m.validating_s = random() % 4 == 0 ? 0.5 : 0;
        m.end_s = now += m.step_s + m.saving_s + m.validating_s + (a.steps.empty() ? 1 : 0);
        a.steps.push_back(m);
      }
      if (attempt < 3) a.failure = FailureMark{now += 1.5, std::nullopt};
      next -= std::min<std::int64_t>(next - 1, static_cast<std::int64_t>(random() % 3));
    }
    const RunLife life = run_life(log);
    double shown = 0;
    for (const LifePeriod& p : life_periods(log)) shown += p.end_s - p.begin_s;
    EXPECT_NEAR(shown, life.times.total.value, 1e-9) << i;
    const LifeTimes& t = life.times;
    EXPECT_NEAR(t.progress.value + t.lost.value + t.checkpoint.value + t.validation.value +
                    t.detection.value + t.restart.value,
                t.total.value, 1e-9);
    const Timeline timeline = life_timeline(log);
    Time job{0};
    for (const Slice& s : timeline.slices) {
      if (s.stream == 0) job += s.end - s.start;
    }
    EXPECT_NEAR(seconds(job), t.total.value, 1e-6);
  }
}

}  // namespace
}  // namespace orrery::sim
