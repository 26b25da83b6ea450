// SPDX-License-Identifier: Apache-2.0
//
// A program as streams and events: what a device is told, played back against the waits of the program.
#include "exec/cuda/issue.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "core/error.h"
#include "tests/exec/small_model.h"
#include "tests/program/communication.h"

namespace orrery {
namespace {

using exec::cuda::Issue;
using exec::cuda::IssueOrder;
using program::kMostStreams;

program::Program program_of(const Plan& p) {
  return program::compile(tiny("tiny-llama"), p, {.global_batch = kBatch, .sequence = 8, .math = Math::kBf16},
                          stack());
}

const program::Op& op_of(const program::RankClass& c, const Issue& i) {
  const program::Step& step = c.steps[static_cast<std::size_t>(i.step)];
  return c.segments[static_cast<std::size_t>(step.segment)].ops[static_cast<std::size_t>(i.op)];
}

const Plan kPlans[] = {plan(1, 1, 1, 0),
                       sp(plan(2, 2, 2, 1)),
                       plan(1, 1, 4, 3),
                       with(plan(1, 4, 1, 0), Schedule::kZeroBubbleH1),
                       with(plan(1, 2, 2, 2), Schedule::kInterleaved, 2),
                       with(sp(plan(2, 1, 2, 3)), Recompute::kFull)};

// With every stream knowing what its ops and the events it waited for imply, each op has what the program
// says that it needs.
TEST(IssueOrder, EventsImplyEveryWaitOfTheProgram) {
  for (const Plan& p : kPlans) {
    const program::Program program = program_of(p);
    for (const program::RankClass& c : program.classes) {
      const IssueOrder order = exec::cuda::issue_order(c, program::kCommunication.streams);
      using Counts = std::array<std::int64_t, kMostStreams>;
      std::vector<Counts> at_event(static_cast<std::size_t>(order.events));
      std::array<Counts, kMostStreams> knows{};
      Counts base{}, done{};
      std::int32_t step = 0;
      std::int64_t checked = 0;
      for (const Issue& i : order.ops) {
        for (; step < i.step; ++step) {
          const auto segment = c.steps[static_cast<std::size_t>(step)].segment;
          for (std::size_t q = 0; q < kMostStreams; ++q)
            base[q] += c.segments[static_cast<std::size_t>(segment)].stream_ops[q];
        }
        const program::Op& op = op_of(c, i);
        Counts& mine = knows[op.stream];
        for (std::int32_t w = i.first_wait; w < i.first_wait + i.waits; ++w) {
          const Counts& then = at_event[static_cast<std::size_t>(order.waits[static_cast<std::size_t>(w)])];
          EXPECT_NE(then, Counts{}) << op.name << " waits for an event before it is recorded";
          for (std::size_t q = 0; q < kMostStreams; ++q) mine[q] = std::max(mine[q], then[q]);
        }
        const auto need = [&](std::size_t q, std::int64_t count) {
          ++checked;
          EXPECT_GE(q == op.stream ? done[q] : mine[q], count) << short_name(p) << ": " << op.name;
        };
        for (std::size_t q = 0; q < kMostStreams; ++q) {
          if (op.after[q] > 0) need(q, base[q] + op.after[q]);
        }
        const program::Step& s = c.steps[static_cast<std::size_t>(i.step)];
        for (std::int32_t w = s.first_wait; w < s.first_wait + s.waits; ++w) {
          const program::ExternalWait& wait = c.waits[static_cast<std::size_t>(w)];
          if (wait.op == i.op) need(wait.stream, wait.count);
        }
        mine[op.stream] = ++done[op.stream];
        if (i.event >= 0) at_event[static_cast<std::size_t>(i.event)] = mine;
      }
      EXPECT_GE(checked, p.ranks() == 1 ? 0 : p.micro_batches) << short_name(p);
    }
  }
}

TEST(IssueOrder, OneStreamNeedsNoEvents) {
  const program::Program program = program_of(plan(1, 1, 1, 0));
  const IssueOrder order = exec::cuda::issue_order(program.classes[0], program::kCommunication.streams);
  EXPECT_EQ(order.events, 0);
  EXPECT_EQ(static_cast<std::int64_t>(order.ops.size()), program.ops_per_step());
}

// An event for each op that is waited for at most, and no wait twice.
TEST(IssueOrder, WaitsForNothingTwice) {
  const program::Program program = program_of(sp(plan(2, 2, 2, 1)));
  for (const program::RankClass& c : program.classes) {
    const IssueOrder order = exec::cuda::issue_order(c, program::kCommunication.streams);
    std::set<std::pair<int, std::int32_t>> seen;  // stream, event
    for (const Issue& i : order.ops) {
      for (std::int32_t w = i.first_wait; w < i.first_wait + i.waits; ++w)
        EXPECT_TRUE(seen.emplace(op_of(c, i).stream, order.waits[static_cast<std::size_t>(w)]).second);
    }
    EXPECT_GT(order.events, 10);
  }
}

TEST(IssueOrder, AnOpThatWaitsForALaterOneIsRefused) {
  program::Program program = program_of(plan(2, 1, 1, 0));
  program::RankClass& c = program.classes[0];
  program::Op& first = c.segments[static_cast<std::size_t>(c.steps[0].segment)].ops[0];
  ASSERT_EQ(first.stream, program::kCompute);
  first.after[program::kTpStream] = 1;
  try {
    exec::cuda::issue_order(c, program::kCommunication.streams);
    FAIL() << "no stream can run this";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("waits for op 1 of stream tp"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace orrery
