// SPDX-License-Identifier: Apache-2.0
//
// No two ops of a rank race, by an oracle that shares nothing with the linker and the checker; and the oracle
// and the checker notice each wait that is taken away and that no other wait implies.
#include "tests/program/memory_order.h"

#include <gtest/gtest.h>

#include <random>

#include "program/check.h"
#include "program/schedule.h"
#include "tests/program/communication.h"
#include "tests/program/random_order.h"

namespace orrery::program {
namespace {

constexpr unsigned kSeed = 20261123;

struct Case {
  Model model;
  Plan plan;
  Training training;
  Stack stack;
  Program compiled() const {
    check_plan(model, plan, training, {});
    return compile(model, plan, training, stack);
  }
};

Plan in_backward(Plan p) {
  p.update_in_backward = true;
  return p;
}

// A small case that has a program, or nothing.
std::optional<Case> random_case(std::mt19937& random) {
  const auto up_to = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
  Case c;
  Plan& p = c.plan;
  p.tp = 1 << up_to(2);
  p.pp = 1 + up_to(3);
  p.dp = 1 << up_to(3);
  p.schedule = static_cast<Schedule>(up_to(7));
  p.vpp = p.schedule == Schedule::kInterleaved || chunk_placement(p) == ChunkPlacement::kThereAndBack ? 2 : 1;
  p.micro_batch = 1 + up_to(2);
  p.micro_batches = p.schedule == Schedule::kInterleaved ? p.pp * (1 + up_to(2))
                    : p.schedule == Schedule::kDualPipeV ? 2 * p.pp + up_to(2)
                                                         : 1 + up_to(5);
  p.zero = up_to(4);
  if (p.zero > 0 && p.dp == 4 && up_to(2) == 0) p.shard_group = 2;
  p.recompute = static_cast<Recompute>(up_to(3));
  p.recompute_layers = 1 + up_to(2);
  p.sequence_parallel = up_to(2) == 0;
  if (up_to(8) == 0) p = {.tp = p.tp, .micro_batch = p.micro_batch, .recompute = p.recompute};
  if (!schedule_problem(p.schedule, p.pp, p.vpp, p.micro_batches).empty() ||
      (p.zero >= 2 && splits_backward(p.schedule)))
    return std::nullopt;
  c.model = preset_model(up_to(2) == 0 ? "tiny-gpt" : "tiny-llama");
  c.model.layers = std::max<std::int64_t>(3, p.pp * p.vpp);
  c.model.tied_embeddings = up_to(2) == 0;
  c.training = {.global_batch = p.global_batch(),
                .sequence = 16,
                .precision = up_to(2) == 0 ? Precision::kFp32 : Precision::kMixed,
                .math = Math::kBf16,
                .dropout = up_to(2) == 0 ? 0.1 : 0,
                .lamb = up_to(3) == 0,
                .clip = up_to(3) == 0 ? 0.0 : 1.0};
  if (c.training.precision == Precision::kFp32) c.training.math = Math::kFp32;
  c.stack.overlap_grad_reduce = up_to(4) != 0;
  c.stack.flash_attention = up_to(2) == 0;
  c.stack.bucket = Bytes{1 << (10 + up_to(12))};
  if (up_to(4) == 0) {
    p.loss_chunks = 2;
    if (loss_problem(c.model, c.training, p)) p.loss_chunks = 1;
  }
  if (p.recompute == Recompute::kFull && p.recompute_layers == 1) {
    const auto layers = layers_by_chunk(p, c.model.layers);
    p.recompute_first = up_to(static_cast<unsigned>(*std::max_element(layers.begin(), layers.end())));
    if (up_to(2) == 0) {
      std::vector<std::int64_t> by_chunk;
      for (const std::int64_t n : layers) by_chunk.push_back(up_to(static_cast<unsigned>(n + 1)));
      p = with_recomputed(p, by_chunk, c.model.layers);
    }
  }
  if (up_to(2) == 0) {
    Offload o{
        .optimizer = up_to(2) == 0 ? 1.0 : 0.5, .activation_layers = up_to(2), .overlap = up_to(2) == 0};
    if (p.zero == 3 && up_to(2) == 0) {
      o.parameters = true;
      o.optimizer = 1;
    }
    o.nvme = static_cast<OnDrives>(up_to(o.parameters ? 3 : 2));
    p.offload = o;
    if (offload_problem(p, c.training)) p.offload.reset();
  }
  if (p.pp > 1 && up_to(3) == 0) {
    if (const Plan listed = in_random_order(p, random); order_problem(listed).empty()) p = listed;
  }
  p.update_in_backward = !update_problem(c.training, in_backward(p)) && up_to(2) == 0;
  return c;
}

// One wait of a rank: of an op inside its segment, or on work of an earlier step.
struct WaitAt {
  std::size_t segment, op, stream;  // where `external` is not set
  std::optional<std::size_t> external;
};

std::vector<WaitAt> waits_of(const RankClass& rank) {
  std::vector<WaitAt> out;
  for (std::size_t s = 0; s < rank.segments.size(); ++s) {
    for (std::size_t i = 0; i < rank.segments[s].ops.size(); ++i) {
      for (std::size_t q = 0; q < kMostStreams; ++q) {
        if (rank.segments[s].ops[i].after[q] > 0) out.push_back({s, i, q, {}});
      }
    }
  }
  for (std::size_t w = 0; w < rank.waits.size(); ++w) out.push_back({0, 0, 0, w});
  return out;
}

RankClass without(const RankClass& rank, const WaitAt& wait) {
  RankClass out = rank;
  if (wait.external)
    out.waits[*wait.external].count = 0;
  else
    out.segments[wait.segment].ops[wait.op].after[wait.stream] = 0;
  return out;
}

TEST(MemoryOrder, NoTwoOpsOfARandomProgramRace) {
  std::mt19937 random(kSeed);
  int programs = 0;
  for (int i = 0; programs < 80; ++i) {
    const std::optional<Case> c = random_case(random);
    if (!c) continue;
    ++programs;
    for (const RankClass& rank : c->compiled().classes) {
      const auto race = MemoryOrder(rank).race();
      EXPECT_FALSE(race) << *race << "; stage " << rank.stage << " of " << short_name(c->plan) << ", seed "
                         << kSeed << " case " << i;
    }
  }
}

// A wait that changes nothing in what happens before what is implied by others. Each other wait was put there
// for two ops that touch the same memory, so without it these race.
TEST(MemoryOrder, EachWaitThatIsTakenAwayIsNoticed) {
  std::mt19937 random(kSeed + 1);
  int taken = 0, implied = 0;
  for (int i = 0, programs = 0; programs < 40; ++i) {
    const std::optional<Case> c = random_case(random);
    if (!c || c->plan.ranks() == 1) continue;
    ++programs;
    Program program = c->compiled();
    RankClass& rank = program.classes[random() % program.classes.size()];
    const RankClass whole = rank;
    const std::vector<MemoryOrder::Clock> clocks = MemoryOrder(whole).clocks();
    std::vector<WaitAt> waits = waits_of(whole);
    std::shuffle(waits.begin(), waits.end(), random);
    if (waits.size() > 25) waits.resize(25);
    for (const WaitAt& wait : waits) {
      rank = without(whole, wait);
      const MemoryOrder order(rank);
      if (order.clocks() == clocks) {
        ++implied;
        continue;
      }
      ++taken;
      const std::string which = wait.external ? "wait " + std::to_string(*wait.external)
                                              : whole.segments[wait.segment].ops[wait.op].name + " after " +
                                                    kCommunication.streams[wait.stream].name;
      EXPECT_TRUE(order.race()) << which << " of " << short_name(c->plan) << ", seed " << kSeed + 1
                                << " case " << i;
      EXPECT_FALSE(check(program).empty()) << "the checker accepts the program without " << which << " of "
                                           << short_name(c->plan) << ", seed " << kSeed + 1 << " case " << i;
    }
  }
  EXPECT_GT(taken, 400);
  EXPECT_GT(implied, 0);
}

}  // namespace
}  // namespace orrery::program
