// SPDX-License-Identifier: Apache-2.0
#include "program/schedule.h"

#include <gtest/gtest.h>

#include <map>

namespace orrery::program {
namespace {

constexpr Schedule kAll[] = {Schedule::kNaive,       Schedule::kGPipe,        Schedule::k1F1B,
                             Schedule::kInterleaved, Schedule::kZeroBubbleH1, Schedule::kZeroBubbleV};

std::int64_t chunks_of(Schedule s) {
  return s == Schedule::kInterleaved || s == Schedule::kZeroBubbleV ? 2 : 1;
}

TEST(Schedule, AStepTooLongToHoldIsNoSchedule) {
  EXPECT_NE(schedule_problem(Schedule::k1F1B, 96, 1, 3'000'000), "");
  EXPECT_EQ(schedule_problem(Schedule::k1F1B, 96, 1, 3'000), "");
}

TEST(Schedule, EachMicroBatchPassesEachChunkOnceForwardAndOnceBackward) {
  for (const Schedule s : kAll) {
    for (const std::int64_t p : {2, 3, 4, 8}) {
      for (const std::int64_t m : {p, 2 * p, 4 * p}) {
        const std::int64_t v = chunks_of(s);
        for (const auto& stage : pipeline_schedule(s, p, v, m)) {
          std::map<std::tuple<Work, int, int>, int> seen;
          for (const Slot& slot : stage) ++seen[{slot.work, slot.chunk, slot.micro_batch}];
          EXPECT_EQ(static_cast<std::int64_t>(seen.size()), (splits_backward(s) ? 3 : 2) * v * m)
              << name_of(s) << " p " << p << " m " << m;
          for (const auto& [key, n] : seen) EXPECT_EQ(n, 1);
        }
      }
    }
  }
}

// GPipe keeps m, 1F1B min(m, p - i), ZB-H1 no more than 1F1B's first stage.
TEST(Schedule, MicroBatchesInFlight) {
  for (const std::int64_t p : {2, 4, 8}) {
    for (const std::int64_t m : {std::int64_t{2}, p, 3 * p}) {
      const auto gpipe = pipeline_schedule(Schedule::kGPipe, p, 1, m);
      const auto f1b1 = pipeline_schedule(Schedule::k1F1B, p, 1, m);
      const auto h1 = pipeline_schedule(Schedule::kZeroBubbleH1, p, 1, m);
      for (std::int64_t i = 0; i < p; ++i) {
        const auto at = static_cast<std::size_t>(i);
        EXPECT_EQ(in_flight(gpipe[at], 1)[0], m);
        EXPECT_EQ(in_flight(f1b1[at], 1)[0], std::min(m, p - i));
        EXPECT_LE(in_flight(h1[at], 1)[0], p);
      }
    }
  }
}

// Interleaved: the first stage holds (v-1)p + 2(p-1) + 1 chunk activations, L (1 + (p-1)/(pv)) layers.
TEST(Schedule, InterleavedInFlightIsThePublishedCount) {
  const std::int64_t p = 4, v = 3, m = 16;
  std::int64_t live = 0, most = 0;
  const auto stages = pipeline_schedule(Schedule::kInterleaved, p, v, m);
  for (const Slot& s : stages[0]) {
    live += s.work == Work::kForward ? 1 : -1;
    most = std::max(most, live);
  }
  EXPECT_EQ(most, (v - 1) * p + 2 * (p - 1) + 1);
}

TEST(Schedule, ZeroBubbleVHoldsNoMoreThanPMicroBatchesOnAnyStage) {
  for (const std::int64_t p : {2, 4, 8}) {
    for (const auto& stage : pipeline_schedule(Schedule::kZeroBubbleV, p, 2, 4 * p)) {
      std::int64_t live = 0;
      for (const Slot& s : stage) {
        live += s.work == Work::kForward ? 1 : s.work == Work::kBackwardWeight ? -1 : 0;
        EXPECT_LE(live, 2 * p);  // in half-stage chunks
      }
    }
  }
}

}  // namespace
}  // namespace orrery::program
