// SPDX-License-Identifier: Apache-2.0
//
// A run goes on from the memory of the ranks that are left: to the bit, as long as of every rank and those
// after it that hold its part one is alive.
#include "exec/memory_checkpoint.h"

#include <gtest/gtest.h>

#include <bitset>

#include "core/error.h"
#include "core/json.h"
#include "exec/crc32c.h"
#include "tests/exec/on_ranks.h"
#include "tests/exec/small_model.h"

namespace orrery::exec {
namespace {

CheckpointIndex index_of(std::int64_t step) {
  CheckpointIndex out;
  out.step = step;
  out.states = 1;
  out.recipe.data = "none";
  return out;
}

MemoryPart part_of(std::int64_t rank, std::size_t bytes) {
  MemoryPart out;
  out.bytes.assign(bytes, static_cast<char>('a' + rank));
  out.file = {fmt::format("rank-{}.bin", rank), static_cast<std::int64_t>(bytes), crc32c(out.bytes), {}};
  return out;
}

// All sets of deaths of five ranks.
TEST(MemoryCheckpoints, OutliveDeathsThatLeaveAHolderOfEachPart) {
  constexpr std::int64_t kRanks = 5;
  const program::Program program;
  for (std::int64_t holders = 1; holders <= kRanks; ++holders) {
    std::vector<MemoryCheckpoints> all(kRanks, MemoryCheckpoints(holders));
    const auto errors = on_ranks(kRanks, kLong, [&](std::int64_t rank, Communicator& c) {
      Exchange exchange(c, rank, kRanks);
      // Parts of different sizes, of which two do not fit into one message.
      all[static_cast<std::size_t>(rank)].keep(exchange, program, index_of(7),
                                               part_of(rank, static_cast<std::size_t>(rank * rank) * 8000));
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
    for (unsigned dead = 0; dead < 1U << kRanks; ++dead) {
      const std::bitset<kRanks> gone(dead);
      std::vector<std::string> inventories;
      for (std::size_t r = 0; r < kRanks; ++r)
        inventories.push_back(gone[r] ? MemoryCheckpoints(holders).inventory() : all[r].inventory());
      bool whole = true;
      for (std::size_t r = 0; r < kRanks; ++r) {
        bool held = false;
        for (std::size_t hop = 0; hop < static_cast<std::size_t>(holders); ++hop)
          held = held || !gone[(r + hop) % kRanks];
        whole = whole && held;
      }
      EXPECT_EQ(MemoryCheckpoints::newest(inventories).has_value(), whole)
          << holders << " holders, dead: " << gone;
    }
  }
}

// Whatever the number of ranks that the mailbox is parted among, and whatever the lengths of texts.
TEST(Exchange, PassesTextsOfAnyLengthInPartsOfAnySize) {
  constexpr std::int64_t kRanks = 3;
  const auto text = [](std::int64_t rank) {
    return std::string(static_cast<std::size_t>(100'001 + 7 * rank), static_cast<char>('a' + rank));
  };
  const auto errors = on_ranks(kRanks, kLong, [&](std::int64_t rank, Communicator& c) {
    Exchange exchange(c, rank, kRanks, Exchange::kPart + 3618);  // not a multiple of a word
    EXPECT_EQ(exchange.shift("shift", text(rank)), text((rank + kRanks - 1) % kRanks));
    for (std::int64_t root = 0; root < kRanks; ++root)
      EXPECT_EQ(exchange.broadcast("broadcast", root, rank == root ? text(rank) : ""), text(root));
    const std::vector<std::string> all = exchange.all_texts("all", text(rank));
    for (std::int64_t r = 0; r < kRanks; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text(r));
  });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// A rank died while the one of step 6 was passed on: some have it, and all still have the one before.
TEST(MemoryCheckpoints, AreTheNewestThatIsWhole) {
  const auto held = [](std::vector<std::pair<int, std::vector<int>>> kept, int program = 1) {
    Json out = Json::array();
    for (const auto& [step, parts] : kept)
      out.push_back({{"step", step}, {"program", program}, {"ranks", 3}, {"parts", parts}});
    return out.dump();
  };
  EXPECT_EQ(MemoryCheckpoints::newest({held({{4, {0, 2}}}), held({{4, {1, 0}}, {6, {1, 0}}}), "[]"}), 4);
  EXPECT_EQ(MemoryCheckpoints::newest({held({{6, {0, 2}}}), held({{4, {1, 0}}, {6, {1, 0}}}), "[]"}), 6);
  EXPECT_EQ(MemoryCheckpoints::newest({held({{4, {0, 2}}}), held({{6, {1, 0}}}), "[]"}), std::nullopt);
  EXPECT_EQ(MemoryCheckpoints::newest({"[]", "[]", "[]"}), std::nullopt);
  EXPECT_EQ(MemoryCheckpoints::newest({held({{6, {0, 2}}}, 1), held({{6, {1, 0}}}, 2), "[]"}), std::nullopt)
      << "parts of two plans make no checkpoint";
}

class Runs : public testing::Test {
 protected:
  static program::Program compile(const Plan& p, Precision precision = Precision::kFp32) {
    const Training t{.global_batch = 8, .sequence = 8, .precision = precision, .math = Math::kFp32};
    Model m = tiny("tiny-llama");
    program::check_plan(m, p, t, {"plan", ""});
    return program::compile(m, p, t, Stack{});
  }
  static RunOptions options() {
    RunOptions o;
    o.steps = 7;
    o.learning_rate = 0.01F;
    o.capture = true;
    return o;
  }
};

TEST_F(Runs, GoOnFromMemoryToTheBit) {
  for (const Plan& p :
       {Plan{.dp = 4, .zero = 1, .micro_batches = 2}, Plan{.tp = 2, .pp = 2, .micro_batches = 8},
        Plan{.dp = 4, .micro_batches = 2}, Plan{.pp = 2, .dp = 2, .zero = 3, .micro_batches = 4}}) {
    SCOPED_TRACE(short_name(p));
    const auto program = compile(p);
    const RunResult expected = run(program, options());
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      std::vector<MemoryCheckpoints> memory(4, MemoryCheckpoints(2));
      RunOptions o = options();
      o.memory = &memory;
      o.memory_every = 2;
      o.faults = {{FaultKind::kDead, rank, 6}};
      EXPECT_THROW(run(program, o), Error);
      EXPECT_TRUE(memory[static_cast<std::size_t>(rank)].empty()) << "memory dies with its rank";
      o.faults.clear();
      const RunResult actual = run(program, o);
      EXPECT_TRUE(actual.from_memory);
      EXPECT_EQ(actual.first_step, 4);
      ASSERT_EQ(actual.steps.size(), 3U);
      EXPECT_EQ(actual.steps[2].loss, expected.steps[6].loss);
      EXPECT_TRUE(actual.parameters == expected.parameters);
      EXPECT_TRUE(actual.steps[1].kept && actual.steps[2].kept) << "after steps 6 and 7, which is the last";
      EXPECT_FALSE(actual.steps[0].kept);
      EXPECT_GT(actual.steps[1].keeping_s, 0);
    }
  }
}

// Where each rank alone holds its part, one death ends what memory is good for.
TEST_F(Runs, BeginAnewWhereNobodyHoldsAPart) {
  const auto program = compile({.dp = 4, .zero = 1, .micro_batches = 2});
  std::vector<MemoryCheckpoints> memory(4, MemoryCheckpoints(1));
  RunOptions o = options();
  o.memory = &memory;
  o.memory_every = 1;
  o.faults = {{FaultKind::kDead, 2, 6}};
  EXPECT_THROW(run(program, o), Error);
  o.faults.clear();
  const RunResult actual = run(program, o);
  EXPECT_FALSE(actual.from_memory);
  EXPECT_EQ(actual.first_step, 0);
  EXPECT_EQ(actual.steps.size(), 7U);
}

// A part that was damaged counts as lost: another rank's copy serves, or there is no checkpoint.
TEST_F(Runs, PassOverAPartThatWasDamaged) {
  const auto program = compile({.micro_batches = 8});
  const auto restored = [&](bool damaged) {
    std::optional<RestoredState> out;
    const auto errors = on_ranks(1, kLong, [&](std::int64_t rank, Communicator& c) {
      Exchange exchange(c, rank, 1);
      MemoryCheckpoints memory(2);
      CheckpointIndex index = index_of(3);
      index.states = state_arrays(program);
      MemoryPart part = part_of(0, 0);
      for (const auto& [name, t] : tensors_of(program)) {
        for (std::int64_t state = 0; state < index.states; ++state) {
          part.file.pieces.push_back({.tensor = name,
                                      .state = state,
                                      .rows = t.rows,
                                      .cols = t.cols,
                                      .end = t.rows * t.cols,
                                      .offset = std::ssize(part.bytes) / 4});
          part.bytes.append(static_cast<std::size_t>(t.rows * t.cols * 4), '\0');
        }
      }
      part.file.bytes = std::ssize(part.bytes);
      part.file.crc32c = crc32c(part.bytes);
      if (damaged) part.bytes[100] ^= 1;
      memory.keep(exchange, program, index, part);
      out = memory.restore(exchange, program);
    });
    EXPECT_EQ(errors[0], "");
    return out;
  };
  EXPECT_TRUE(restored(false).has_value());
  EXPECT_FALSE(restored(true).has_value());
}

}  // namespace
}  // namespace orrery::exec
