// SPDX-License-Identifier: Apache-2.0
//
// Islands that train on their own: bytes that they hold, groups that communicate, and what the exchange
// moves.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/error.h"
#include "program/check.h"
#include "program/program.h"
#include "program/state/units.h"
#include "tests/program/small_model.h"

namespace orrery::program {
namespace {

// 64 (2 * 64 + 2 * 32) + 3 * 64 * 128 + 2 * 64 a layer; embedding and head of 256 * 64, and a norm.
constexpr std::int64_t kOfModel = 2 * (12288 + 24576 + 128) + 2 * 16384 + 64;

Training islands_training(const OuterOptimizer& outer = {}) {
  return {.global_batch = 8, .sequence = 8, .precision = Precision::kMixed, .outer = outer};
}

Program islands_program(const Plan& p, const Training& t = islands_training()) {
  const Model m = small_llama();
  check_plan(m, p, t, {"plan", ""});
  Program out = compile(m, p, t, Stack{});
  EXPECT_EQ(check(out), std::vector<std::string>());
  EXPECT_EQ(check(outer_round(out)), std::vector<std::string>());
  return out;
}

std::string islands_refused(const Plan& p, const Training& t) {
  try {
    islands_program(p, t);
    return {};
  } catch (const InputError& e) {
    return e.what();
  }
}

std::int64_t bytes_named(const Program& p, const std::string& end) {
  std::int64_t sum = 0;
  for (const Buffer& b : p.classes.front().buffers) sum += b.name.ends_with(end) ? b.bytes.value : 0;
  return sum;
}

// An anchor and a momentum of 4 bytes each, and a difference of 4 or 2, of each element of the shard: whole
// without ZeRO, half with it over two replicas of an island. What else a rank holds is what it held.
TEST(Islands, HoldAnAnchorItsMomentumAndADifference) {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const std::int64_t shard = zero == 0 ? kOfModel : kOfModel / 2;
    const Plan one{.dp = 2, .zero = zero, .micro_batches = 2};
    Plan two = one;
    two.islands = 2;
    Training t = islands_training();
    t.outer.reset();
    t.global_batch = 4;
    const Program alone = islands_program(one, t), islands = islands_program(two);
    EXPECT_EQ(bytes_named(islands, "/outer"), 8 * shard);
    EXPECT_EQ(bytes_named(islands, "outer-differences"), 4 * shard);
    EXPECT_EQ(islands.classes[0].logical_peak.value - alone.classes[0].logical_peak.value, 12 * shard);
    const Program lean = islands_program(
        two, islands_training({.learning_rate = 1, .momentum = 0, .exchange = OuterFormat::kBf16}));
    EXPECT_EQ(bytes_named(lean, "/outer"), 4 * shard);
    EXPECT_EQ(bytes_named(lean, "outer-differences"), 2 * shard);
  }
}

// Gradients are summed inside an island, differences between islands, and ranks of an island come one after
// the other whatever the order of the others: so sites have islands of their own.
TEST(Islands, AreTheSlowestAxis) {
  for (const RankOrder order : {RankOrder::kTpDpPp, RankOrder::kTpPpDp, RankOrder::kDpTpPp}) {
    const Program p = islands_program(
        {.tp = 2, .pp = 2, .dp = 2, .islands = 2, .zero = 1, .micro_batches = 2, .rank_order = order});
    ASSERT_EQ(p.mesh.ranks(), 16);
    for (std::int64_t rank = 0; rank < 16; ++rank) {
      EXPECT_EQ(p.mesh.coordinate(rank, "island"), rank / 8) << name_of(order);
      for (const std::string name : {"tp", "dp", "shard", "pp"}) {
        for (const std::int64_t other : p.mesh.members(
                 p.communication.groups[static_cast<std::size_t>(p.communication.group(name))].axes, rank))
          EXPECT_EQ(other / 8, rank / 8) << name << " " << name_of(order);
      }
      const auto across = p.mesh.members(
          p.communication.groups[static_cast<std::size_t>(p.communication.group("island"))].axes, rank);
      EXPECT_EQ(across, (std::vector<std::int64_t>{rank % 8, rank % 8 + 8})) << name_of(order);
    }
  }
}

// One all-reduce of all differences, and with ZeRO-1 and 2 the gathers that any update has; nothing of it is
// in a step.
TEST(Islands, ExchangeTheShardOnce) {
  for (const std::int64_t zero : {0, 1, 3}) {
    const Program p = islands_program({.dp = 2, .islands = 2, .zero = zero, .micro_batches = 2});
    const RankClass& c = p.classes.front();
    ASSERT_EQ(c.outer.size(), 1U);
    const GroupIndex island = p.communication.group("island");
    std::int64_t summed = 0, gathered = 0, updates = 0;
    for (const Op& op : c.segments[static_cast<std::size_t>(c.outer.front().segment)].ops) {
      if (op.group == island)
        summed += op.payload.value;
      else if (op.is<ops::Collective>())
        gathered += op.payload.value;
      updates += op.is<ops::OuterUpdate>();
    }
    EXPECT_EQ(summed, 4 * kOfModel / (zero == 0 ? 1 : 2));
    EXPECT_EQ(gathered, zero == 1 ? 2 * kOfModel : 0);
    EXPECT_EQ(updates, std::ssize(c.units));
    for (const Step& step : c.steps) {
      for (const Op& op : c.segments[static_cast<std::size_t>(step.segment)].ops) EXPECT_NE(op.group, island);
    }
  }
}

TEST(Islands, ThatNoRunCouldHaveAreRefused) {
  const Plan two{.dp = 2, .islands = 2, .micro_batches = 2};
  Training t = islands_training();
  EXPECT_EQ(islands_refused(two, t), "");
  t.outer.reset();
  EXPECT_NE(islands_refused(two, t).find("/islands: nothing says how islands exchange"), std::string::npos);
  t = islands_training();
  t.math = Math::kFp16;
  EXPECT_NE(islands_refused(two, t).find("/islands"), std::string::npos);
  Plan offloaded = two;
  offloaded.offload = Offload{.optimizer = 0.5};
  EXPECT_NE(islands_refused(offloaded, islands_training()).find("/islands"), std::string::npos);
  offloaded.offload = Offload{.activation_layers = 1};
  EXPECT_EQ(islands_refused(offloaded, islands_training()), "");
  // The batch is of all islands.
  Plan more = two;
  more.micro_batches = 4;
  EXPECT_NE(islands_refused(more, islands_training()).find("1 x 4 x 4 is a batch of 16, not 8"),
            std::string::npos);
}

// Ranks that exchange otherwise run other programs.
TEST(Islands, HaveAHashOfTheirOwn) {
  const Plan two{.dp = 2, .islands = 2, .micro_batches = 2};
  std::set<std::int64_t> hashes;
  for (const OuterOptimizer& outer :
       {OuterOptimizer{}, OuterOptimizer{.every = 3}, OuterOptimizer{.learning_rate = 0.5},
        OuterOptimizer{.momentum = 0.8}, OuterOptimizer{.exchange = OuterFormat::kBf16}})
    hashes.insert(islands_program(two, islands_training(outer)).hash());
  EXPECT_EQ(hashes.size(), 5U);
}

}  // namespace
}  // namespace orrery::program
