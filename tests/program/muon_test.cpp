// SPDX-License-Identifier: Apache-2.0
//
// Muon: bytes of its state, its arithmetic, and what ranks gather for it.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/error.h"
#include "program/check.h"
#include "program/program.h"
#include "program/state/units.h"
#include "tests/program/small_model.h"

namespace orrery::program {
namespace {

// small_llama: queries 64 x 64, keys and values 32 x 64 each, output 64 x 64, gate and up 128 x 64, down
// 64 x 128 a layer, of which there are two; two norms a layer; embedding and head of 256 x 64, and a norm.
constexpr std::int64_t kMatrices = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 128 * 64);
constexpr std::int64_t kOthers = 2 * 2 * 64 + 2 * 256 * 64 + 64;

Training muon_of_mixed(const Muon& muon = {}) {
  return {.global_batch = 8, .sequence = 8, .precision = Precision::kMixed, .muon = muon};
}

Program muon_program(const Plan& p, const Training& t = muon_of_mixed(), const Stack& s = {}) {
  const Model m = small_llama();
  check_plan(m, p, t, {"plan", ""});
  Program out = compile(m, p, t, s);
  EXPECT_EQ(check(out), std::vector<std::string>());
  return out;
}

// Of matrices a master copy and one moment, 8 bytes; of all else a master copy and two, 12.
TEST(Muon, HoldsOneMoment) {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const Program p = muon_program({.dp = 2, .zero = zero, .micro_batches = 4});
    std::int64_t state = 0;
    for (const Buffer& b : p.classes.front().buffers)
      state += b.name.ends_with("/optimizer") ? b.bytes.value : 0;
    EXPECT_EQ(state, (8 * kMatrices + 12 * kOthers) / (zero == 0 ? 1 : 2)) << zero;
    for (const Parameter& of : p.classes.front().parameters)
      EXPECT_EQ(of.muon, p.classes.front().units[static_cast<std::size_t>(of.unit)].muon) << of.name;
  }
  Training adam = muon_of_mixed();
  adam.muon.reset();
  std::int64_t state = 0;
  const Program without = muon_program({.dp = 2, .micro_batches = 4}, adam);
  for (const Buffer& b : without.classes.front().buffers)
    state += b.name.ends_with("/optimizer") ? b.bytes.value : 0;
  EXPECT_EQ(state, 12 * (kMatrices + kOthers));
}

std::map<std::string, std::int64_t> orthogonalised(const Program& p) {
  std::map<std::string, std::int64_t> out;
  for (const Segment& s : p.classes.front().segments) {
    for (const Op& op : s.ops) {
      if (const auto* o = op.as<ops::Orthogonalise>())
        out[std::to_string(o->rows) + "x" + std::to_string(o->columns)] += o->matrices;
    }
  }
  return out;
}

// Every matrix by itself: queries and output, keys and values, gate and up, down, in each of two layers. An
// iteration is X X', A A and B X: 2 n n k + 2 n n n + 2 n n k operations.
TEST(Muon, ComputesWithEachMatrix) {
  const Program p = muon_program({.micro_batches = 8});
  EXPECT_EQ(orthogonalised(p),
            (std::map<std::string, std::int64_t>{{"64x64", 4}, {"32x64", 4}, {"128x64", 4}, {"64x128", 2}}));
  double flops = 0;
  for (const Segment& s : p.classes.front().segments) {
    for (const Op& op : s.ops) flops += op.is<ops::Orthogonalise>() ? op.flops : 0;
  }
  const double square = 6.0 * 64 * 64 * 64, narrow = 2.0 * 32 * 32 * (2 * 64 + 32),
               wide = 2.0 * 64 * 64 * (2 * 128 + 64);
  EXPECT_EQ(flops, 5 * (4 * square + 4 * narrow + 6 * wide));
}

// With all matrices in one unit of 73,728 elements, four shards of 18,432 have parts of some of them: the
// first one of the last layer's down (8,192 elements), ..., each of at most as many as the count says.
TEST(Muon, AShardHasPartsOfFewMatrices) {
  Stack one;
  one.bucket = Bytes{1 << 30};
  const Program p = muon_program({.dp = 4, .zero = 1, .micro_batches = 2}, muon_of_mixed(), one);
  const RankClass& rank = p.classes.front();
  std::map<std::string, std::int64_t> most;
  const auto unit = std::find_if(rank.units.begin(), rank.units.end(), [](const Unit& u) { return u.muon; });
  ASSERT_EQ(unit->elements, kMatrices);
  for (std::int64_t shard = 0; shard < 4; ++shard) {
    std::map<std::string, std::int64_t> has;
    for (const Parameter& of : rank.parameters) {
      if (!of.muon) continue;
      std::int64_t first = of.offset;
      for (const std::int64_t rows : of.row_blocks) {
        const std::int64_t end = first + rows * of.cols;
        if (first < (shard + 1) * unit->shard && end > shard * unit->shard)
          ++has[std::to_string(rows) + "x" + std::to_string(of.cols)];
        first = end;
      }
    }
    for (const auto& [shape, count] : has) most[shape] = std::max(most[shape], count);
  }
  EXPECT_EQ(orthogonalised(p), most);
  EXPECT_LT(most.at("128x64"), 4);
}

// Ranks gather U in bf16: shards of it over replicas, and all tensor ranks' parts where they compute with
// whole matrices: with those, 2 x 2 bytes of an element that a rank has.
TEST(Muon, GathersWhatItComputesWith) {
  const auto gathered = [&](const Plan& p, const Muon& muon) {
    std::map<std::string, std::int64_t> out;
    const Program made = muon_program(p, muon_of_mixed(muon));
    for (const Segment& s : made.classes.front().segments) {
      for (const Op& op : s.ops) {
        if (op.name.find("/update/") != std::string::npos)
          out[made.communication.groups[static_cast<std::size_t>(op.group)].name] += op.payload.value;
      }
    }
    return out;
  };
  const std::int64_t matrices = 2 * kMatrices;
  using Bytes = std::map<std::string, std::int64_t>;
  EXPECT_EQ(gathered({.micro_batches = 8}, {}), Bytes{});
  EXPECT_EQ(gathered({.dp = 2, .zero = 0, .micro_batches = 4}, {}), Bytes{});
  EXPECT_EQ(gathered({.dp = 2, .zero = 1, .micro_batches = 4}, {}), (Bytes{{"shard", matrices}}));
  EXPECT_EQ(gathered({.tp = 2, .micro_batches = 8}, {}), (Bytes{{"tp", matrices}}));
  EXPECT_EQ(gathered({.tp = 2, .micro_batches = 8}, {.tp_mode = MuonTpMode::kBlockwise}), Bytes{});
  EXPECT_EQ(gathered({.tp = 2, .dp = 2, .zero = 2, .micro_batches = 4}, {}),
            (Bytes{{"shard", matrices / 2}, {"tp", matrices}}));
}

// Two matrices of an expert, of whose eight a rank has two: gate, up and down of 48 x 64.
TEST(Muon, OfExpertsEachHasItsOwn) {
  Model m = small_llama();
  ModelBlock block = standard_block(m);
  block.layers.back() = {ExpertsLayer{.experts = 8, .top_k = 2, .ffn_hidden = 48}};
  m.blocks = {{m.layers, {block}}};
  const Plan p{.dp = 4, .ep = 4, .expert_room = 4, .micro_batches = 2};
  const Training t = muon_of_mixed();
  check_plan(m, p, t, {"plan", ""});
  const auto of = orthogonalised(compile(m, p, t, Stack{}));
  EXPECT_EQ(of.at("48x64"), 2 * 2 * 2);
  EXPECT_EQ(of.at("64x48"), 2 * 2);
  EXPECT_EQ(of.at("8x64"), 2) << "the router";
}

TEST(Muon, KeepsItsStateOnTheDevice) {
  Plan p{.micro_batches = 8};
  p.offload = Offload{.optimizer = 0.5};
  try {
    muon_program(p);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("/offload/optimizer"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace orrery::program
