// SPDX-License-Identifier: Apache-2.0
//
// Listed schedules: there and back, what is refused, and that what is not refused runs.
#include "program/order.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "program/check.h"
#include "program/program.h"
#include "tests/program/random_order.h"

namespace orrery::program {
namespace {

Plan listed(Plan p) {
  p.schedule_order = order_of(p);
  p.schedule = Schedule::kListed;
  return p;
}

Plan of_stages(std::vector<std::string> stages, std::int64_t m, std::int64_t v = 1) {
  Plan p{.pp = std::ssize(stages), .vpp = v, .micro_batches = m, .schedule = Schedule::kListed};
  p.schedule_order = ScheduleOrder{.stages = std::move(stages)};
  return p;
}

std::vector<Plan> designed() {
  std::vector<Plan> out;
  for (const std::int64_t p : {1, 2, 3, 4, 8}) {
    for (const std::int64_t rounds : {1, 2, 5}) {
      for (const Schedule s : {Schedule::kNaive, Schedule::kGPipe, Schedule::k1F1B, Schedule::kZeroBubbleH1})
        out.push_back({.pp = p, .micro_batches = p * rounds - (rounds > 1), .schedule = s});
      out.push_back({.pp = p, .vpp = 2, .micro_batches = p * rounds, .schedule = Schedule::kZeroBubbleV});
      if (rounds > 1)
        out.push_back({.pp = p, .vpp = 2, .micro_batches = p * rounds, .schedule = Schedule::kDualPipeV});
      for (const std::int64_t v : {2, 3}) {
        if (p > 1)
          out.push_back({.pp = p, .vpp = v, .micro_batches = p * rounds, .schedule = Schedule::kInterleaved});
      }
    }
  }
  return out;
}

TEST(Order, IsWrittenAsOneWouldByHand) {
  EXPECT_EQ(order_of({.pp = 2, .micro_batches = 3}).stages,
            (std::vector<std::string>{"F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"}));
  EXPECT_EQ(order_of({.pp = 2, .micro_batches = 2, .schedule = Schedule::kZeroBubbleH1}).stages,
            (std::vector<std::string>{"F0 F1 Bi0 W0 Bi1 W1", "F0 Bi0 F1 Bi1 W0 W1"}));
  const ScheduleOrder v =
      order_of({.pp = 1, .vpp = 2, .micro_batches = 1, .schedule = Schedule::kZeroBubbleV});
  EXPECT_EQ(v.chunks, ChunkPlacement::kThereAndBack);
  EXPECT_EQ(v.stages, std::vector<std::string>{"F0 F0.1 Bi0.1 Bi0 W0.1 W0"});
}

// A schedule of ours, written and read, is the same work, and the same program but for its name.
TEST(Order, OfADesignedScheduleIsThatSchedule) {
  for (const Plan& p : designed()) {
    const Plan again = listed(p);
    ASSERT_EQ(order_problem(again), "") << short_name(p);
    EXPECT_EQ(pipeline_schedule(again), pipeline_schedule(p)) << short_name(p);
    EXPECT_EQ(backwards_of(again), backwards_of(p)) << short_name(p);
    EXPECT_EQ(order_of(again), *again.schedule_order) << short_name(p);
    for (std::int64_t c = 0; c < p.pp * p.vpp; ++c) EXPECT_EQ(stage_of_chunk(again, c), stage_of_chunk(p, c));
    if (p.pp > 4) continue;
    Model m = preset_model("tiny-gpt");
    m.layers = 12;
    const Training t{.global_batch = p.global_batch(), .sequence = 16};
    check_plan(m, again, t, {});
    EXPECT_EQ(compile(m, again, t, Stack{}).hash(), compile(m, p, t, Stack{}).hash()) << short_name(p);
  }
}

TEST(Order, AnotherOrderIsAnotherProgram) {
  Model m = preset_model("tiny-gpt");
  m.layers = 4;
  const auto hash = [&](std::vector<std::string> stages) {
    const Plan p = of_stages(std::move(stages), 3);
    return compile(m, p, {.global_batch = 3, .sequence = 16}, Stack{}).hash();
  };
  EXPECT_NE(hash({"F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"}),
            hash({"F0 F1 F2 B0 B1 B2", "F0 B0 F1 B1 F2 B2"}));
}

// File, pointer, the piece, why, and what may stand there.
TEST(Order, WhatCannotRunIsRefusedWhereItCannot) {
  const std::string at = "plan.json: /plan/schedule_order/stages";
  const std::string once = "; allowed: each piece once, behind what it needs";
  EXPECT_EQ(order_problem(of_stages({"F0 B0 F1 B1"}, 2)), "");
  EXPECT_EQ(order_problem(of_stages({"F0  B0   F1 B1 "}, 2)), "");
  const auto one = [&](const char* text, std::int64_t v = 1) {
    return order_problem(of_stages({text}, 2, v));
  };
  const std::string written =
      "; allowed: F, B, Bi or W with a micro-batch, and a chunk behind a point, as F3 or F3.1";
  for (const char* word :
       {"X0", "F", "f0", "F-1", "F0.", "F0.x", "F0.1.2", "F99999999999", "B\"0", "Fi0", "0"}) {
    const std::string found = one((std::string("F0 ") + word).c_str());
    EXPECT_TRUE(found.starts_with(at + "/0: piece 2, ") &&
                found.ends_with("it is no piece of work" + written))
        << found;
  }
  EXPECT_EQ(one("F0 B0 F2"), at + "/0: piece 3, \"F2\": the plan has 2 micro-batches" + once);
  EXPECT_EQ(one("F0 F0.1"), at + "/0: piece 2, \"F0.1\": a stage has 1 chunks" + once);
  EXPECT_EQ(one("F0 B0 F0"), at + "/0: piece 3, \"F0\": it comes twice" + once);
  EXPECT_EQ(one("F1"),
            at + "/0: piece 1, \"F1\": F0 comes before it: micro-batches of a chunk come in order" + once);
  EXPECT_EQ(one("B0 F0"), at + "/0: piece 1, \"B0\": F0 comes before it" + once);
  EXPECT_EQ(one("F0 W0 Bi0"), at + "/0: piece 2, \"W0\": Bi0 comes before it" + once);
  // Of one micro-batch the backward may be whole, and of another split.
  EXPECT_EQ(one("F0 Bi0 W0 F1 B1"), "");
  EXPECT_EQ(one("F0 B0 F1 Bi1 W1"), "");
  EXPECT_EQ(one("F0 Bi0 F1 B1 W0"), at +
                                        "/0: piece 4, \"B1\": W0 comes before it: micro-batches of a chunk "
                                        "come in order" +
                                        once);
  EXPECT_EQ(one("F0 Bi0 B0"), at + "/0: piece 3, \"B0\": a backward of that micro-batch has come" + once);
  EXPECT_EQ(one("F0 B0 Bi0"), at + "/0: piece 3, \"Bi0\": a backward of that micro-batch has come" + once);
  EXPECT_EQ(one("F0 B0 W0"),
            at + "/0: piece 3, \"W0\": weight gradients of that micro-batch have come" + once);
  EXPECT_EQ(one("F0 F1 Bi0 Bi1 W1"),
            at + "/0: piece 5, \"W1\": W0 comes before it: micro-batches of a chunk come in order" + once);
  const std::string all = "; allowed: of each chunk and micro-batch an F, and a B or a Bi and a W";
  EXPECT_EQ(one("F0 B0 F1"), at + "/0: B1 is missing" + all);
  EXPECT_EQ(one("F0 Bi0 F1 Bi1 W0"), at + "/0: W1 is missing" + all);
  EXPECT_EQ(one("F0 F0.1 F1 F1.1 B0.1 B0 B1.1", 2), at + "/0: B1 is missing" + all);
  EXPECT_EQ(one(""), at + "/0: F0 is missing" + all);
  EXPECT_EQ(order_problem([] {
              Plan p = of_stages({"F0 B0"}, 1);
              p.pp = 2;
              return p;
            }()),
            at + ": 1 lists are not those of 2 stages; allowed: 2 lists");
  // Stage 0 waits for a backward of stage 1, which waits for a forward of stage 0.
  const std::string circle = "; allowed: an order in which no stages wait for each other";
  EXPECT_EQ(order_problem(of_stages({"F0 B0 F1 B1", "F0 F1 B0 B1"}, 2)),
            at + "/0: B0, its piece 2, can never start: it waits for B0 of stage 1, which stops before F1" +
                circle);
  EXPECT_EQ(order_problem(of_stages({"F0 F1 B0 B1", "F0 F1 B0 B1"}, 2)), "");
  // Two chunks a stage: stage 0 sends F1 before F0.1, and stage 1 wants them the other way round.
  const char* const rows = "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1";
  const char* const turns = "F0 F0.1 F1 F1.1 B0.1 B1.1 B0 B1";
  EXPECT_EQ(order_problem(of_stages({rows, rows}, 2, 2)), "");
  EXPECT_EQ(order_problem(of_stages({turns, turns}, 2, 2)), "");
  EXPECT_EQ(
      order_problem(of_stages({rows, turns}, 2, 2)),
      at + "/0: F1.1, its piece 4, can never start: it waits for F1 of stage 1, which stops before F0.1" +
          circle);
}

// In a V, and on one stage, the first chunk and the last are on one stage. Where both have the embedding's
// weight, its gradient is whole before the first chunk's last work is done.
TEST(Order, TheGradientOfASharedWeightIsWholeBeforeItIsSummed) {
  Model m = preset_model("tiny-gpt");
  ASSERT_TRUE(m.tied_embeddings);
  m.layers = 4;
  const auto problem = [&](const char* text, ChunkPlacement placement = ChunkPlacement::kThereAndBack) {
    Plan p = of_stages({text}, 2, 2);
    p.schedule_order->chunks = placement;
    p.dp = 2;
    try {
      check_plan(m, p, {.global_batch = 4, .sequence = 16}, Cursor{"plan.json", "/plan"});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const ChunkPlacement placement : {ChunkPlacement::kThereAndBack, ChunkPlacement::kInTurns}) {
    EXPECT_EQ(problem("F0 F0.1 B0.1 B0 F1 F1.1 B1.1 B1", placement), "");
    EXPECT_EQ(problem("F0 F0.1 B0.1 B0 F1 F1.1 Bi1.1 Bi1 W1.1 W1", placement), "");
    for (const char* late :
         {"F0 F0.1 B0.1 B0 F1 F1.1 Bi1.1 B1 W1.1", "F0 F0.1 B0.1 B0 F1 F1.1 Bi1.1 Bi1 W1 W1.1"}) {
      EXPECT_NE(problem(late, placement)
                    .find("/plan/schedule_order/stages/0: W1.1 comes last: replicas sum the gradient"),
                std::string::npos)
          << problem(late, placement);
    }
  }
  m.tied_embeddings = false;
  EXPECT_EQ(problem("F0 F0.1 B0.1 B0 F1 F1.1 Bi1.1 B1 W1.1"), "");
  for (const Plan& p : designed()) EXPECT_EQ(shared_weight_problem(listed(p)), "") << short_name(p);
}

// A stage that waits for a backward names the one that the other stage lists.
TEST(Order, WhatIsWaitedForIsNamedAsItIsListed) {
  EXPECT_NE(order_problem(of_stages({"F0 B0 F1 B1", "F0 F1 Bi0 W0 Bi1 W1"}, 2))
                .find("B0, its piece 2, can never start: it waits for Bi0 of stage 1"),
            std::string::npos);
}

// A hostile file: more work than is walked is refused before it is read.
TEST(Order, HasABound) {
  Plan p = of_stages({"F0 B0"}, 1 << 20);
  EXPECT_EQ(order_problem(p),
            "plan.json: /plan/schedule_order: 1 stages have up to 2097152 pieces of work each; allowed: "
            "1048576 in all");
  std::string long_one;
  for (int i = 0; i < 200000; ++i) long_one += "F0 ";
  EXPECT_NE(order_problem(of_stages({long_one}, 2)).find("piece 2, \"F0\": it comes twice"),
            std::string::npos);
}

// Lists that nobody designed. Those that are taken run to their end by the checker of programs, which knows
// nothing of them; those that it would not end are refused.
TEST(Order, WhatIsTakenRuns) {
  constexpr unsigned kOrderSeed = 20261130;
  RecordProperty("seed", kOrderSeed);
  std::mt19937 random(kOrderSeed);
  int taken = 0, refused = 0, would_not_end = 0;
  for (int i = 0; i < 400; ++i) {
    const bool v_shape = i % 4 < 2;
    Plan p{.pp = 2 + static_cast<std::int64_t>(random() % 3),
           .vpp = v_shape ? 2 : 1 + static_cast<std::int64_t>(random() % 2),
           .micro_batches = 1 + static_cast<std::int64_t>(random() % 6),
           .schedule = i % 4 == 0   ? Schedule::kZeroBubbleV
                       : i % 4 == 1 ? Schedule::kDualPipeV
                       : i % 4 == 2 ? Schedule::k1F1B
                                    : Schedule::kZeroBubbleH1};
    p = in_random_order(p, random);
    // Half of them with two neighbours exchanged, so that some stages wait for each other.
    if (i % 2 == 0) {
      std::string& text = p.schedule_order->stages[random() % p.schedule_order->stages.size()];
      const std::size_t at = text.find(' ', random() % text.size());
      if (at != std::string::npos) {
        const std::size_t before = text.rfind(' ', at - 1) + 1,
                          after = std::min(text.find(' ', at + 1), text.size());
        text = text.substr(0, before) + text.substr(at + 1, after - at - 1) + ' ' +
               text.substr(before, at - before) + text.substr(after);
      }
    }
    const std::string problem = order_problem(p);
    const bool stops = problem.find("never start") != std::string::npos;
    if (!problem.empty() && !stops) continue;
    Model m = preset_model("tiny-gpt");
    m.layers = 8;
    const auto found = check(compile(m, p, {.global_batch = p.global_batch(), .sequence = 16}, Stack{}));
    ++(stops ? refused : taken);
    would_not_end += !found.empty();
    EXPECT_TRUE(!found.empty() || problem.find("can never start") == std::string::npos)
        << problem << "; seed " << kOrderSeed << " list " << i;
    EXPECT_TRUE(found.empty() || stops)
        << found.front() << "; " << fmt::format("{}", fmt::join(p.schedule_order->stages, " | ")) << ", seed "
        << kOrderSeed << " list " << i;
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 5);
  EXPECT_GT(would_not_end, 5);
}

}  // namespace
}  // namespace orrery::program
