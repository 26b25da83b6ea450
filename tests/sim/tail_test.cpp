// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/tail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace orrery::sim {
namespace {

TEST(Tail, BothLanesAreSlowerWhileBothRun) {
  const std::vector<TailJob> compute{{.duration = 10}}, communication{{.duration = 6}};
  const TailEnds ends = run_tail(100, compute, communication, 1.25, 1.5);
  EXPECT_DOUBLE_EQ(ends.communication, 100 + 6 * 1.5);
  // Of the 10, 9 / 1.25 = 7.2 are done by then.
  EXPECT_DOUBLE_EQ(ends.compute, 109 + (10 - 7.2));
}

TEST(Tail, JobsWaitForTheOtherLane) {
  const std::vector<TailJob> compute{{.duration = 3, .after = 0}, {.duration = 1, .after = 1}},
      communication{{.duration = 4}, {.duration = 2}};
  // From 4 to 6 both run: compute does 1 of 3, then 2 more by 8, then its second job.
  const TailEnds ends = run_tail(0, compute, communication, 2, 1);
  EXPECT_DOUBLE_EQ(ends.communication, 6);
  EXPECT_DOUBLE_EQ(ends.compute, 9);
}

TEST(Tail, AJobWaitsForItsTime) {
  const std::vector<TailJob> compute{{.duration = 2, .not_before = 5}},
      communication{{.duration = 3, .after = 0}};
  const TailEnds ends = run_tail(1, compute, communication, 3, 3);
  EXPECT_DOUBLE_EQ(ends.compute, 7);
  EXPECT_DOUBLE_EQ(ends.communication, 10);
}

TEST(Tail, NothingToDoEndsAtTheStart) {
  const TailEnds ends = run_tail(42, {}, {}, 2, 2);
  EXPECT_EQ(ends.compute, 42);
  EXPECT_EQ(ends.communication, 42);
}

// Without slow-down a job ends its duration after the later of its lane's last job, the job that it waits for
// and its time. Update job 2 i waits for reduction i; gather i, behind all reductions, for update i.
TEST(Tail, WithoutSlowDownEachJobBeginsWhenItMay) {
  const unsigned seed = 20261124;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto time = [&] { return static_cast<double>(random() % 50); };
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t units = 1 + random() % 6;
    std::vector<TailJob> compute, communication;
    for (std::size_t i = 0; i < units; ++i) communication.push_back({.duration = time()});
    for (std::size_t i = 0; i < units; ++i) {
      compute.push_back({.duration = time(), .after = static_cast<std::int64_t>(i), .not_before = time()});
      communication.push_back({.duration = time(), .after = std::ssize(compute) - 1});
      compute.push_back({.duration = time()});
    }
    std::vector<double> communicated;
    double at = 7;
    for (std::size_t i = 0; i < units; ++i) communicated.push_back(at += communication[i].duration);
    double other = 7;
    for (std::size_t i = 0; i < units; ++i) {
      const TailJob& update = compute[2 * i];
      other = std::max({other, communicated[i], update.not_before}) + update.duration;
      at = std::max(at, other) + communication[units + i].duration;
      other += compute[2 * i + 1].duration;
    }
    const TailEnds ends = run_tail(7, compute, communication, 1, 1);
    EXPECT_NEAR(ends.compute, other, 1e-9);
    EXPECT_NEAR(ends.communication, at, 1e-9);
  }
}

}  // namespace
}  // namespace orrery::sim
