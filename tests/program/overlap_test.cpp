// SPDX-License-Identifier: Apache-2.0
//
// Forwards and backwards side by side: pieces, their order, and what may run so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "program/check.h"
#include "program/pieces.h"
#include "program/program.h"
#include "program/schedule.h"

namespace orrery::program {
namespace {

// Blocks of 64 columns; 8 experts, 2 of them for a token. `dense` blocks come first.
Model sparse(std::int64_t blocks, std::int64_t dense = 0) {
  Model m = preset_model("llama-2-7b");
  m.layers = blocks + dense;
  m.hidden = 64;
  m.heads = m.kv_heads = 4;
  m.ffn_hidden = 128;
  m.vocab = 96;
  ModelBlock block = standard_block(m);
  block.layers.back() = {ExpertsLayer{.experts = 8, .top_k = 2, .ffn_hidden = 32}};
  if (dense > 0) m.blocks.push_back({dense, {standard_block(m)}});
  m.blocks.push_back({blocks, {block}});
  return m;
}

Program compiled(const Model& model, const Plan& plan) {
  const Training training{.global_batch = plan.global_batch(), .sequence = 16};
  check_plan(model, plan, training, Cursor{});
  return compile(model, plan, training, Stack{});
}

// "F1.0": the first piece of the forward of micro-batch 1.
std::vector<std::string> order_of_steps(const RankClass& rank) {
  std::vector<std::string> out;
  for (const Step& step : rank.steps) {
    const Segment& s = rank.segments[static_cast<std::size_t>(step.segment)];
    if (s.kind == SegmentKind::kOptimizer) continue;
    out.push_back((s.kind == SegmentKind::kForward ? "F" : "B") + std::to_string(step.micro_batch) + "." +
                  std::to_string(s.piece));
  }
  return out;
}

// One block: attention up to the dispatch, experts up to the combine, and what is left. Two micro-batches in
// flight: the second forward runs beside the first backward, which begins.
TEST(Overlap, PiecesTakeTurns) {
  const Program p = compiled(sparse(1), {.dp = 4, .ep = 4, .overlap_exchanges = true, .micro_batches = 3});
  const std::vector<std::string> expected{"F0.0", "F0.1", "F0.2",                          //
                                          "B0.0", "F1.0", "B0.1", "F1.1", "B0.2", "F1.2",  //
                                          "B1.0", "F2.0", "B1.1", "F2.1", "B1.2", "F2.2",  //
                                          "B2.0", "B2.1", "B2.2"};
  EXPECT_EQ(order_of_steps(p.classes[0]), expected);
  EXPECT_EQ(p.classes[0].in_flight[0], 2);
  EXPECT_EQ(check(p), std::vector<std::string>{});
}

// One after the other they are the segment of the plan that does not run side by side. A piece has an
// exchange, and no compute of it reads what the exchange brings: the next piece does.
TEST(Overlap, PiecesAreTheSegmentCutWhereComputeTakesWhatExchangesBring) {
  Plan plan{.tp = 2, .dp = 4, .ep = 4, .etp = 2, .sequence_parallel = true, .micro_batches = 2};
  const Model m = sparse(3, 2);
  const Program whole = compiled(m, plan);
  plan.overlap_exchanges = true;
  const Program cut = compiled(m, plan);
  const StreamIndex exchanges = cut.communication.stream("ep");
  const auto text = [](const RankClass& rank, const Op& op) {
    std::string out = op.name;
    for (const std::vector<Ref>* refs : {&op.reads, &op.writes}) {
      for (const Ref& r : *refs)
        out += " " + rank.buffers[static_cast<std::size_t>(r.buffer)].name + "+" + std::to_string(r.offset);
    }
    return out;
  };
  std::vector<std::string> of_whole, of_cut;
  for (const Segment& s : whole.classes[0].segments) {
    for (const Op& op : s.ops) of_whole.push_back(text(whole.classes[0], op));
  }
  std::int64_t pieces = 0;
  for (std::size_t i = 0; i < cut.classes[0].segments.size(); ++i) {
    const Segment& s = cut.classes[0].segments[i];
    for (const Op& op : s.ops) of_cut.push_back(text(cut.classes[0], op));
    if (s.kind == SegmentKind::kOptimizer) continue;
    if (s.kind == SegmentKind::kForward) ++pieces;
    std::set<std::int32_t> brought;
    for (const Op& op : s.ops) {
      for (const Ref& r : op.reads)
        EXPECT_FALSE(op.stream == kCompute && brought.contains(r.buffer)) << op.name;
      if (op.stream != exchanges) continue;
      for (const Ref& r : op.writes) brought.insert(r.buffer);
    }
    const bool last = i + 1 == cut.classes[0].segments.size() || cut.classes[0].segments[i + 1].piece == 0;
    EXPECT_EQ(brought.empty(), last) << i;
  }
  EXPECT_EQ(of_cut, of_whole);
  EXPECT_EQ(cut.ops_per_step(), whole.ops_per_step());
  EXPECT_EQ(pieces, 3 * 2 + 1);  // a dispatch and a combine for each sparse block
}

// Each is as far as the other, to within a piece of the one that has fewer.
TEST(Overlap, TurnsAreInProportion) {
  std::mt19937 random(20261130);
  for (int i = 0; i < 200; ++i) {
    const std::size_t forward = 1 + random() % 20, backward = 1 + random() % 20;
    std::size_t f = 0, b = 0;
    for (const Turn& turn : side_by_side(forward, backward)) {
      EXPECT_TRUE(f + b > 0 || !turn.of_forward);
      EXPECT_EQ(turn.piece, static_cast<std::int32_t>(turn.of_forward ? f : b));
      ++(turn.of_forward ? f : b);
      const double apart = static_cast<double>(f) / static_cast<double>(forward) -
                           static_cast<double>(b) / static_cast<double>(backward);
      EXPECT_LE(std::abs(apart), 1.0 / static_cast<double>(std::min(forward, backward)) + 1e-9)
          << forward << " and " << backward << ", seed 20261130 case " << i;
    }
    EXPECT_EQ(f, forward);
    EXPECT_EQ(b, backward);
  }
}

// One more warm-up forward on every stage, so that of a pair neither needs the other: a backward's own
// forward came before the pair.
TEST(Overlap, NeitherOfAPairNeedsTheOther) {
  for (const std::int64_t p : {1, 2, 4, 8}) {
    for (const std::int64_t v : {1, 2, 3}) {
      if ((p == 1) != (v == 1)) continue;
      const Schedule schedule = v == 1 ? Schedule::k1F1B : Schedule::kInterleaved;
      for (const std::int64_t m : {p, 2 * p, 5 * p}) {
        const auto alone = pipeline_schedule(schedule, p, v, m);
        const auto pairs = pipeline_schedule(schedule, p, v, m, true);
        for (std::size_t i = 0; i < pairs.size(); ++i) {
          const std::vector<Slot>& slots = pairs[i];
          ASSERT_EQ(slots.size(), alone[i].size());
          std::int64_t live = 0, most = 0, beside = 0, most_alone = 0;
          for (const Slot& s : alone[i]) {
            live += s.work == Work::kForward ? 1 : -1;
            most_alone = std::max(most_alone, live);
          }
          for (std::size_t k = 0; k < slots.size(); ++k) {
            live += slots[k].work == Work::kForward ? 1 : -1;
            most = std::max(most, live);
            if (!slots[k].beside) continue;
            ++beside;
            ASSERT_GT(k, 0U);
            EXPECT_EQ(slots[k - 1].work, Work::kForward);
            EXPECT_EQ(slots[k].work, Work::kBackward);
            EXPECT_NE(std::pair(slots[k - 1].chunk, slots[k - 1].micro_batch),
                      std::pair(slots[k].chunk, slots[k].micro_batch));
          }
          EXPECT_EQ(most, std::min(most_alone + 1, m * v)) << "p " << p << " v " << v << " m " << m;
          // All forwards but the warm-up's are in pairs; with one warm-up more, none more is in flight.
          EXPECT_EQ(beside, m * v - (most - (most > 0 && beside > 0 ? 1 : 0)));
        }
      }
    }
  }
}

TEST(Overlap, RandomPlansAreSound) {
  std::mt19937 random(20261129);
  const auto pick = [&](std::vector<std::int64_t> of) { return of[random() % of.size()]; };
  int checked = 0, interleaved = 0, in_vs = 0;
  while (checked < 90) {
    Plan p{.tp = pick({1, 2}), .pp = pick({1, 2, 3}), .overlap_exchanges = true};
    p.dp = pick({2, 4});
    p.ep = pick({2, 4, 8});
    if (random() % 2 == 0) p.etp = 1;
    p.sequence_parallel = p.tp > 1;
    const bool in_a_v = random() % 3 == 0;
    p.schedule = in_a_v ? Schedule::kDualPipeV : p.pp == 1 ? Schedule::k1F1B : Schedule::kInterleaved;
    p.vpp = p.pp == 1 && !in_a_v ? 1 : 2;
    p.zero = pick({0, 1});
    p.micro_batches = p.pp * (in_a_v ? pick({2, 3, 4}) : pick({1, 2, 3}));
    if (random() % 2 == 0) {
      p.recompute = Recompute::kSelective;
      if (random() % 2 == 0) p.recompute_parts = {RecomputePart::kExperts};
    }
    if (experts_problem(p)) continue;
    const Program program = compiled(sparse(6, static_cast<std::int64_t>(random() % 2)), p);
    EXPECT_EQ(check(program), std::vector<std::string>{}) << short_name(p) << " seed 20261129 " << checked;
    ++checked;
    interleaved += p.pp > 1 && !in_a_v;
    in_vs += p.pp > 1 && in_a_v;
  }
  EXPECT_GT(interleaved, 10);
  EXPECT_GT(in_vs, 10);
}

TEST(Overlap, PlansThatCannotAreRefused) {
  const Plan plan{.dp = 4, .ep = 4, .overlap_exchanges = true, .micro_batches = 4};
  EXPECT_EQ(overlap_problem(plan), "");
  Plan other = plan;
  other.overlap_exchanges = false;
  other.ep = 1;
  EXPECT_EQ(overlap_problem(other), "");
  other.overlap_exchanges = true;
  EXPECT_NE(overlap_problem(other).find("no ranks share the experts"), std::string::npos);
  other = plan;
  other.pp = 2;
  EXPECT_NE(overlap_problem(other).find("1f1b on 2 stages"), std::string::npos) << overlap_problem(other);
  for (const Schedule s : {Schedule::kInterleaved, Schedule::kDualPipeV}) {
    other.schedule = s;
    EXPECT_EQ(overlap_problem(other), "");
  }
  other.schedule = Schedule::kZeroBubbleV;
  EXPECT_NE(overlap_problem(other).find("zb-v on 2 stages"), std::string::npos) << overlap_problem(other);
  other = plan;
  other.zero = 2;
  EXPECT_NE(overlap_problem(other).find("ZeRO-2"), std::string::npos);
  other = plan;
  other.recompute = Recompute::kFull;
  EXPECT_NE(overlap_problem(other).find("full recomputation"), std::string::npos);
}

}  // namespace
}  // namespace orrery::program
