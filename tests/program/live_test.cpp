// SPDX-License-Identifier: Apache-2.0
#include "program/live.h"

#include <gtest/gtest.h>

namespace orrery::program {
namespace {

Model small_model() {
  Model m;
  m.name = "small";
  m.layers = 4;
  m.hidden = 64;
  m.heads = 4;
  m.kv_heads = 4;
  m.ffn_hidden = 256;
  m.vocab = 256;
  return m;
}

Program program_of(const Plan& plan) {
  Training t;
  t.sequence = 32;
  t.global_batch = plan.global_batch();
  return compile(small_model(), plan, t, Stack{});
}

TEST(LiveBytes, HighestPointIsThePeakThatWasFoundSegmentBySegment) {
  for (const Plan& plan : {Plan{.micro_batches = 4}, Plan{.pp = 2, .micro_batches = 8},
                           Plan{.tp = 2, .dp = 2, .sequence_parallel = true, .zero = 3, .micro_batches = 2},
                           Plan{.pp = 2,
                           .vpp = 2,
                           .micro_batches = 4,
                           .schedule = Schedule::kInterleaved,
                           .recompute = Recompute::kFull}}) {
    const Program p = program_of(plan);
    for (const RankClass& rank : p.classes) {
      SCOPED_TRACE(short_name(plan) + " stage " + std::to_string(rank.stage));
      const OpNumbers number(rank);
      std::vector<Time> starts(number.size());
      for (std::size_t i = 0; i < starts.size(); ++i) starts[i] = Time{static_cast<std::int64_t>(i) * 10};
      const auto points = live_bytes(rank, 7, starts);
      const MemoryPoint* top = &points.front();
      Time before{-1};
      for (const MemoryPoint& m : points) {
        EXPECT_GE(m.at, before);
        EXPECT_EQ(m.rank, 7);
        before = m.at;
        if (m.total() > top->total()) top = &m;
      }
      EXPECT_EQ(top->total(), rank.logical_peak.value);
      for (std::size_t c = 0; c < kBufferClasses; ++c) EXPECT_EQ(top->bytes[c], rank.at_peak[c].value);
      // The buffers that make it, and when.
      const Peak peak = find_peak(rank);
      std::int64_t sum = 0;
      for (const LiveBuffer& b : peak.buffers) sum += b.bytes.value;
      EXPECT_EQ(sum, rank.logical_peak.value);
      EXPECT_EQ(top->at, starts[number(peak.step, peak.op)]);
      for (std::size_t i = 1; i < peak.buffers.size(); ++i)
        EXPECT_GE(peak.buffers[i - 1].bytes, peak.buffers[i].bytes);
    }
  }
}

// An op that is issued later may start earlier, on another stream: points still stand in the order of time.
TEST(LiveBytes, TimeDoesNotGoBackWhereStreamsOverlap) {
  const Program p = program_of({.tp = 2, .pp = 2, .micro_batches = 4});
  const RankClass& rank = p.classes[0];
  const OpNumbers number(rank);
  std::vector<Time> starts(number.size());
  for (std::size_t i = 0; i < starts.size(); ++i)
    starts[i] = Time{static_cast<std::int64_t>(i) * 10 - (i % 7 == 6 ? 500 : 0) + 1000};
  const auto points = live_bytes(rank, 0, starts);
  ASSERT_GT(points.size(), 20U);
  for (std::size_t i = 1; i < points.size(); ++i) EXPECT_GE(points[i].at, points[i - 1].at) << i;
  std::int64_t most = 0;
  for (const MemoryPoint& m : points) most = std::max(most, m.total());
  EXPECT_EQ(most, rank.logical_peak.value);
}

}  // namespace
}  // namespace orrery::program
