// SPDX-License-Identifier: Apache-2.0
#include "program/schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <tuple>

#include "program/order.h"

namespace orrery::program {
namespace {

constexpr Schedule kAll[] = {Schedule::kNaive,       Schedule::kGPipe,        Schedule::k1F1B,
                             Schedule::kInterleaved, Schedule::kZeroBubbleH1, Schedule::kZeroBubbleV,
                             Schedule::kDualPipeV};

std::int64_t chunks_of(Schedule s) {
  return s == Schedule::kInterleaved || s == Schedule::kZeroBubbleV || s == Schedule::kDualPipeV ? 2 : 1;
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
        if (!schedule_problem(s, p, v, m).empty()) continue;
        for (const auto& stage : pipeline_schedule(s, p, v, m)) {
          std::map<std::tuple<Work, int, int>, int> seen;
          for (const Slot& slot : stage) ++seen[{slot.work, slot.chunk, slot.micro_batch}];
          for (int c = 0; c < v; ++c) {
            for (int k = 0; k < m; ++k) {
              const auto times = [&](Work w) { return seen[{w, c, k}]; };
              const std::array actual{times(Work::kForward), times(Work::kBackward),
                                      times(Work::kBackwardInput), times(Work::kBackwardWeight)};
              const std::array whole{1, 1, 0, 0}, split{1, 0, 1, 1};
              EXPECT_TRUE((actual == whole && backwards_of(s) != Backwards::kSplit) ||
                          (actual == split && backwards_of(s) != Backwards::kWhole))
                  << name_of(s) << " p " << p << " m " << m << " chunk " << c << " micro-batch " << k;
            }
          }
          EXPECT_EQ(std::ssize(seen), 4 * v * m);  // and nothing else
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

// As dualpipev.py of the published code orders two stages' work on four micro-batches: its eight steps by
// hand, with zero bubble from the second half of step 6 on.
TEST(Schedule, DualPipeVIsThePublishedOrder) {
  const Plan p{.pp = 2, .vpp = 2, .micro_batches = 4, .schedule = Schedule::kDualPipeV};
  const ScheduleOrder order = order_of(p);
  EXPECT_EQ(order.chunks, ChunkPlacement::kThereAndBack);
  EXPECT_EQ(order.stages[0],
            "F0 F1 "            // 1: nF0
            "F2 F0.1 "          // 2: nF0F1
            "Bi0.1 W0.1 F1.1 "  // 3: nB1W1F1
            "F3 B1.1 F2.1 B0 "  // 4: nF0B1F1B0
            "B2.1 F3.1 B1 "     // 5: nB1F1B0
            "B3.1 Bi2 "         // 6: nB1B0
            "W2 Bi3 W3");       // 7: nWB0, 8: nW
  EXPECT_EQ(order.stages[1],
            "F0 F0.1 F1 F1.1 "                  // 2
            "F2 B0.1 F2.1 B0 F3 B1.1 F3.1 B1 "  // 4
            "B2.1 B2 Bi3.1 Bi3 "                // 6: an odd stage begins with chunk 1
            "W3.1 W3");                         // 8
  EXPECT_NE(schedule_problem(Schedule::kDualPipeV, 2, 2, 3).find("needs 4 micro-batches or more"),
            std::string::npos);
}

// Its first stage has 2p + 1 halves of a stage in flight (the published PP + 1, of PP = 2p stages); others no
// more. Side by side, all run beside each other in the middle: two for each micro-batch, less those that the
// pipeline fills and empties with, and one where the last stage begins.
TEST(Schedule, DualPipeVHoldsThePublishedActivations) {
  for (const std::int64_t p : {1, 2, 3, 4, 7, 8}) {
    for (const std::int64_t m : {2 * p, 2 * p + 1, 5 * p}) {
      const auto stages = pipeline_schedule(Schedule::kDualPipeV, p, 2, m, true);
      std::int64_t most_of_all = 0;
      for (std::int64_t i = 0; i < p; ++i) {
        const std::vector<Slot>& slots = stages[static_cast<std::size_t>(i)];
        std::int64_t live = 0, most = 0, beside = 0;
        for (std::size_t k = 0; k < slots.size(); ++k) {
          const Slot& s = slots[k];
          live += s.work == Work::kForward                                       ? 1
                  : s.work == Work::kBackward || s.work == Work::kBackwardWeight ? -1
                                                                                 : 0;
          most = std::max(most, live);
          if (!s.beside) continue;
          ++beside;
          EXPECT_EQ(s.work, Work::kBackward);
          EXPECT_EQ(slots[k - 1].work, Work::kForward);
          EXPECT_NE(slots[k - 1].chunk, s.chunk);
        }
        most_of_all = std::max(most_of_all, most);
        EXPECT_LE(most, 2 * p + 1) << "p " << p << " m " << m << " stage " << i;
        EXPECT_EQ(beside, 2 * (m - 2 * p + i + 1) + (p - 1 - i) - (i + 1 == p));
      }
      EXPECT_EQ(most_of_all, 2 * p + 1) << "p " << p << " m " << m;
    }
  }
}

}  // namespace
}  // namespace orrery::program
