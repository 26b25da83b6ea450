// SPDX-License-Identifier: Apache-2.0
//
// A proxy's ops have the shapes of the plan's.
#include "planner/proxy.h"

#include <gtest/gtest.h>

#include <set>

#include "exec/run.h"
#include "program/program.h"
#include "tests/program/communication.h"

namespace orrery::planner {
namespace {

// The shapes of all ops on layers, embedding and head: what a rank computes and exchanges for a micro-batch.
std::set<program::OpKey> shapes(const Scenario& s, const Plan& p) {
  std::set<program::OpKey> out;
  for (const program::RankClass& c : program::compile(s.model, p, s.training, Stack{}).classes) {
    for (const program::Segment& segment : c.segments) {
      for (const program::Op& op : segment.ops) {
        if (segment.kind != program::SegmentKind::kOptimizer && op.group != program::kShardGroup &&
            op.group != program::kDpGroup && op.group != program::kReplicaGroup)
          out.insert(program::key_of(op.kind));
      }
    }
  }
  return out;
}

TEST(Proxy, HasTheShapesOfItsPlan) {
  Scenario s;
  s.model = preset_model("gpt3-175b");
  s.training = {.global_batch = 1536, .sequence = 2048, .precision = Precision::kMixed};
  Plan p{.tp = 8, .pp = 8, .dp = 16, .micro_batch = 1, .micro_batches = 96};
  for (const auto& [vpp, schedule] : {std::pair{1L, Schedule::k1F1B}, {3L, Schedule::kInterleaved}}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      p.vpp = vpp;
      p.schedule = schedule;
      p.recompute = recompute;
      p.sequence_parallel = recompute != Recompute::kNone;
      p.zero = recompute == Recompute::kFull ? 1 : 0;
      const Scenario small = proxy(s, p);
      const Plan& q = *small.plan;
      EXPECT_EQ(q.ranks(), 8 * 2 * 2);
      EXPECT_EQ(small.model.layers, 2 * vpp);
      EXPECT_EQ(small.training.global_batch, q.global_batch());
      EXPECT_NO_THROW(program::check_plan(small.model, q, small.training, {}));
      EXPECT_EQ(shapes(small, q), shapes(s, p)) << short_name(p);
    }
  }
}

// A plan of 512 ranks for a small model trains through its proxy here; nothing of a small plan is lost.
TEST(Proxy, Runs) {
  Scenario s;
  s.model = preset_model("tiny-llama");
  s.model.layers = 64;
  s.training = {.global_batch = 128, .sequence = 16, .precision = Precision::kMixed, .math = Math::kBf16};
  Plan p{.tp = 2, .pp = 8, .dp = 32, .zero = 1, .micro_batch = 1, .micro_batches = 4};
  const Scenario small = proxy(s, p);
  const auto result =
      exec::run(program::compile(small.model, *small.plan, small.training, Stack{}), {.steps = 2});
  EXPECT_EQ(result.steps.size(), 2U);
  EXPECT_EQ(result.arena_bytes.size(), 8U);
  // Two micro-batches for each of its two stages.
  p.micro_batches = 16;
  EXPECT_EQ(proxy(s, p).plan->micro_batches, 4);
  p.micro_batches = 3;
  EXPECT_EQ(proxy(s, p).plan->micro_batches, 3);
  Plan one{.micro_batch = 2, .micro_batches = 2};
  EXPECT_EQ(proxy(s, one).plan->micro_batches, 2);
  EXPECT_EQ(proxy(s, one).plan->ranks(), 1);
}

}  // namespace
}  // namespace orrery::planner
