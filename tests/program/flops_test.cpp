// SPDX-License-Identifier: Apache-2.0
//
// The op lists add up to the published formulas: FLOPs, and bytes communicated.
#include <gtest/gtest.h>

#include <tuple>

#include "program/program.h"
#include "tests/program/communication.h"

namespace orrery::program {
namespace {

template <class Value>
double sum_over_step(const Program& p, Value value) {
  double total = 0;
  for (const RankClass& c : p.classes) {
    for (const Step& step : c.steps) {
      for (const Op& op : c.segments[static_cast<std::size_t>(step.segment)].ops) total += value(op);
    }
  }
  return total;
}

Program compiled(const Model& m, const Plan& p, bool flash, std::int64_t seq = 2048) {
  Stack s;
  s.flash_attention = flash;
  return compile(m, p, {.global_batch = p.global_batch(), .sequence = seq}, s);
}

double flops(const Program& p) {
  return sum_over_step(p, [](const Op& op) { return op.flops; });
}

TEST(Flops, OpsAddUpToTheModelsFlops) {
  for (const char* name : {"megatron-1.7b", "llama-2-7b", "llama-3-8b"}) {
    const Model m = preset_model(name);
    Plan p;
    p.micro_batches = 2;
    const double formula = 2 * model_flops_per_sequence(m, 2048, AttentionFlops::kFull).value;
    EXPECT_NEAR(flops(compiled(m, p, false)) / formula, 1, 1e-12) << name;
  }
}

// Apart: u written by its product, read for v, v written; in the backward pass dv written, read with u, du
// written. Fused: u and v written; u read, du written. 7 T f elements become 4, of each layer and
// micro-batch.
TEST(Traffic, FusedGeluSavesThreeOfSevenMatrices) {
  const Model m = preset_model("megatron-1.7b");
  Plan p;
  p.tp = 2;
  p.micro_batch = 2;
  p.micro_batches = 3;
  Stack apart, fused;
  fused.fused_gelu = true;
  const auto traffic = [&](const Model& of, const Stack& s) {
    const auto program = compile(of, p, {.global_batch = p.global_batch(), .sequence = 1024}, s);
    return sum_over_step(program, [](const Op& op) { return static_cast<double>(op.traffic.value); });
  };
  const auto matrix =
      static_cast<double>(2 * 1024 * plain_layers(m)->mlp.ffn_hidden / 2 * 2);  // T f / t, two bytes each
  EXPECT_DOUBLE_EQ(traffic(m, apart) - traffic(m, fused), 3 * matrix * static_cast<double>(m.layers) * 3);
  // SwiGLU has another activation: nothing is fused.
  const Model llama = preset_model("llama-2-7b");
  EXPECT_EQ(traffic(llama, apart), traffic(llama, fused));
}

// A bias gradient apart reads T w elements of two bytes: of the first products of both branches w is 3 h / t
// and f / t, and with one tensor rank of the last ones h. Their products write the w sums. The sums that end
// branches are not read again for the norm between them: T h elements.
TEST(Traffic, FusedBiasGradientsAndNormsReadNothingTwice) {
  const Model m = preset_model("megatron-1.7b");
  for (const std::int64_t tp : {1, 2}) {
    const Plan p{.tp = tp, .micro_batch = 2, .micro_batches = 3};
    const auto traffic = [&](const Stack& s, Math math = Math::kBf16) {
      const Training t{.global_batch = p.global_batch(), .sequence = 1024, .math = math};
      return sum_over_step(compile(m, p, t, s),
                           [](const Op& op) { return static_cast<double>(op.traffic.value); });
    };
    Stack apart, sums, norms;
    sums.fused_bias_gradients = true;
    norms.fused_residual_norms = true;
    const std::int64_t h = m.hidden, f = plain_layers(m)->mlp.ffn_hidden;
    const auto columns = static_cast<double>(3 * h / tp + f / tp + (tp == 1 ? 2 * h : 0));
    const double tokens = 2 * 1024, times = 3 * static_cast<double>(m.layers);
    EXPECT_DOUBLE_EQ(traffic(apart) - traffic(sums), (tokens - 1) * columns * 2 * times);
    EXPECT_DOUBLE_EQ(traffic(apart) - traffic(norms), tokens * static_cast<double>(h) * 2 * times);
    EXPECT_EQ(traffic(apart, Math::kFp8), traffic(sums, Math::kFp8));  // without epilogues
  }
}

// Products of layers take their operands rounded, those of the head as they are stored. Of bf16 operands each
// element is read, twice where the largest is looked for first, written in r bytes before, and these are
// read: with a factor for each tensor 4 + 1 + 1 bytes where it was 2. A stack that reads a third as often and
// writes two thirds has 4 / 3 + 2 / 3 + 1.
TEST(Traffic, OperandsAreRoundedFirst) {
  const Model m = preset_model("llama-3-8b");
  Plan p;
  p.tp = 2;
  p.micro_batches = 2;
  const auto program = [&](Math math, double reads = 1, double writes = 1) {
    Stack s;
    s.rounding_reads = reads;
    s.rounding_writes = writes;
    return compile(m, p, {.global_batch = p.global_batch(), .sequence = 1024, .math = math}, s);
  };
  const auto operands = [](const Op& op) {
    const auto* product = op.as<ops::Gemm>();
    return product != nullptr && op.layer >= 0 ? static_cast<double>((product->m + product->n) * product->k)
                                               : 0;
  };
  const auto traffic = [](const Op& op) { return static_cast<double>(op.traffic.value); };
  const Program half = program(Math::kBf16), eight = program(Math::kFp8);
  const double all = sum_over_step(half, operands), base = sum_over_step(half, traffic);
  EXPECT_DOUBLE_EQ(sum_over_step(eight, traffic) - base, 4 * all);
  // Bytes of an element with its factors, and reads of an operand.
  for (const auto& [math, bytes, reads] : {std::tuple{Math::kFp8, 1.0, 2.0},
                                           {Math::kFp8Delayed, 1.0, 1.0},
                                           {Math::kFp8Rowwise, 1.0, 1.0},
                                           {Math::kFp8Blockwise, 1.03125, 1.0},
                                           {Math::kMxfp8, 1.03125, 1.0},
                                           {Math::kNvfp4, 0.5625, 2.0}}) {
    const double anew = 2 * reads + 2 * bytes, reused = 2 * reads / 3 + 2 * bytes / 3 + bytes;
    EXPECT_NEAR(sum_over_step(program(math), traffic) - base, (anew - 2) * all, 1e-7 * all) << name_of(math);
    EXPECT_NEAR(sum_over_step(program(math, 1.0 / 3, 2.0 / 3), traffic) - base, (reused - 2) * all,
                1e-7 * all)
        << name_of(math);
  }
  EXPECT_EQ(flops(eight), flops(half));
  for (const Segment& s : eight.classes[0].segments) {
    for (const Op& op : s.ops) {
      const auto* product = op.as<ops::Gemm>();
      if (product == nullptr) continue;
      const bool backward = op.name.ends_with("grad");
      using enum ops::Gemm::Format;
      EXPECT_EQ(product->format, op.layer < 0 ? kAsStored
                                 : backward   ? kRoundedGradient
                                              : kRoundedValues)
          << op.name;
    }
  }
}

// Ranks of every stage and tensor shard together do the same work.
TEST(Flops, ParallelismOnlyDividesThem) {
  const Model m = preset_model("megatron-1.7b");
  Plan serial;
  serial.micro_batches = 8;
  Plan p = serial;
  p.tp = 8;
  p.pp = 4;
  EXPECT_NEAR(flops(compiled(m, p, false)) * 8 / flops(compiled(m, serial, false)), 1, 1e-12);
}

// Full recomputation: 96 B s L h^2 (1 + s/(6h) + V/(16 h L)); selective: s/(6h) becomes s/(4.5h).
TEST(Flops, RecomputationCostsWhatIsPublished) {
  const Model m = preset_model("megatron-22b");
  const double s = 2048, h = static_cast<double>(m.hidden), l = static_cast<double>(m.layers),
               v = static_cast<double>(m.vocab);
  Plan p;
  p.recompute = Recompute::kFull;
  EXPECT_NEAR(flops(compiled(m, p, false)) / (96 * s * l * h * h * (1 + s / (6 * h) + v / (16 * h * l))), 1,
              1e-12);
  p.recompute = Recompute::kSelective;
  EXPECT_NEAR(flops(compiled(m, p, false)) / (72 * s * l * h * h * (1 + s / (4.5 * h) + v / (12 * h * l))), 1,
              1e-12);
}

// Of 48 layers on four stages the first four of each chunk are a third: a third of what all repeat. Kept of
// the others is what is kept without, and of the four their inputs alone.
TEST(Flops, OfTheFirstLayersAreRepeatedAlone) {
  const Model m = preset_model("megatron-22b");
  ASSERT_EQ(m.layers, 48);
  Plan none{.pp = 4, .micro_batches = 4}, all = none, some = none;
  all.recompute = some.recompute = Recompute::kFull;
  some.recompute_first = 4;
  const Program without = compiled(m, none, true), full = compiled(m, all, true),
                part = compiled(m, some, true);
  EXPECT_NEAR((flops(part) - flops(without)) / (flops(full) - flops(without)), 4.0 / 12, 1e-12);
  const auto kept = [](const Program& p) { return p.classes[1].segments[0].net.value; };
  const double freed = static_cast<double>(kept(without) - kept(full));
  EXPECT_NEAR(static_cast<double>(kept(without) - kept(part)) / freed, 4.0 / 12, 0.01);
  some.recompute_first = 12;
  EXPECT_THROW(check_plan(m, some, {.global_batch = 4, .sequence = 2048}, Cursor{"plan.json", "/plan"}),
               InputError);  // as many as there are: a second name of all
  for (const Segment& s : part.classes[1].segments) {
    for (const Op& op : s.ops) EXPECT_FALSE(op.recomputed && op.layer % 12 >= 4) << op.name;
  }
}

// 48 layers on four stages, of which the stages repeat 12, 9, 4 and 0: 25 of 48. 1F1B has min(m, p - i) = 4,
// 3, 2 and 1 micro-batches in flight, and each leaves (12 - r) A + r a on its stage, where A is what a layer
// keeps and a its input. 25 / 48 is also what is repeated of what all layers repeat.
TEST(Flops, StagesRepeatDifferentNumbersOfLayers) {
  const Model m = preset_model("megatron-22b");
  Plan none{.pp = 4, .micro_batches = 8}, all = none;
  all.recompute = Recompute::kFull;
  const std::vector<std::int64_t> repeated{12, 9, 4, 0};
  const Plan some = with_recomputed(none, repeated, m.layers);
  check_plan(m, some, {.global_batch = 8, .sequence = 2048}, Cursor{"plan.json", "/plan"});
  ASSERT_EQ(some.recompute_by_chunk, repeated);
  const Program without = compiled(m, none, true), full = compiled(m, all, true),
                part = compiled(m, some, true);
  EXPECT_NEAR((flops(part) - flops(without)) / (flops(full) - flops(without)), 25.0 / 48, 1e-12);
  ASSERT_EQ(part.classes.size(), 4U);
  const auto kept = [](const Program& p, std::size_t stage) {
    return p.classes[stage].segments[0].net.value;
  };
  // Of a middle stage: 12 A and 12 a, with the boundary that it received. The norms' and dropout's small
  // buffers are of layers too.
  const std::int64_t freed = (kept(without, 1) - kept(full, 1)) / 12;  // A - a
  EXPECT_EQ((kept(without, 1) - kept(full, 1)) % 12, 0);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(kept(without, stage) - kept(part, stage), repeated[stage] * freed) << stage;
    for (const Segment& s : part.classes[stage].segments) {
      for (const Op& op : s.ops)
        EXPECT_FALSE(op.recomputed && op.layer % 12 >= repeated[stage]) << stage << " " << op.name;
    }
  }
  // The most that a stage holds: where all in flight are kept, so many times what one layer frees. Of the
  // first, which repeats all of its layers, the work of the last one of them comes on top.
  for (const std::size_t stage : {std::size_t{1}, std::size_t{2}}) {
    const std::int64_t in_flight = 4 - static_cast<std::int64_t>(stage);
    EXPECT_EQ((without.classes[stage].logical_peak - part.classes[stage].logical_peak).value,
              in_flight * repeated[stage] * freed)
        << stage;
  }
  EXPECT_EQ(without.classes[3].logical_peak, part.classes[3].logical_peak);
  EXPECT_EQ(full.classes[0].logical_peak, part.classes[0].logical_peak);
}

// Every message names the field, says what is wrong, and what may stand there.
TEST(CheckPlan, NumbersOfRecomputedLayersAreOnesThatNothingElseSays) {
  const Model m = preset_model("megatron-22b");
  const auto problem = [&](std::vector<std::int64_t> by_chunk, auto change) {
    Plan p{.pp = 4, .micro_batches = 8, .recompute = Recompute::kFull};
    p.recompute_by_chunk = std::move(by_chunk);
    change(p);
    try {
      check_plan(m, p, {.global_batch = 8, .sequence = 2048}, Cursor{"plan.json", "/plan"});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto as_it_is = [](Plan&) {};
  const std::string at = "plan.json: /plan/recompute_by_chunk";
  EXPECT_EQ(problem({12, 9, 4, 0}, as_it_is), "");
  EXPECT_EQ(problem({12, 9, 4}, as_it_is), at + ": 3 numbers are not those of 4 chunks; allowed: 4 numbers");
  EXPECT_EQ(problem({12, 9, 13, 0}, as_it_is),
            at + "/2: 13 layers are more than the chunk has; allowed: 0 to 12");
  EXPECT_EQ(problem({0, 0, 0, 0}, as_it_is),
            at + ": no chunk recomputes a layer; allowed: no such field, with recompute \"none\"");
  EXPECT_EQ(problem({12, 12, 12, 12}, as_it_is),
            at + ": all chunks recompute all layers; allowed: no such field");
  EXPECT_EQ(problem({5, 5, 5, 5}, as_it_is),
            at + ": all chunks recompute as many layers; allowed: no such field, with recompute_first 5");
  EXPECT_EQ(
      problem({12, 9, 4, 0}, [](Plan& p) { p.recompute_first = 5; }),
      at + ": recompute_first 5 says how many layers of each chunk are recomputed; allowed: one of the two "
           "fields");
  EXPECT_EQ(
      problem({12, 9, 4, 0}, [](Plan& p) { p.recompute_layers = 2; }),
      at + ": layers are recomputed several at once; allowed: no such field, or with recompute_layers 1");
  EXPECT_EQ(
      problem({12, 9, 4, 0}, [](Plan& p) { p.recompute = Recompute::kSelective; }),
      at + ": recompute \"selective\" repeats no whole layers; allowed: no such field, or with recompute "
           "\"full\"");
  // Of unequal chunks a number that is more than one of them has stands for all of it.
  const auto unequal = [](Plan& p) { p.chunk_layers = {14, 14, 14, 6}; };
  EXPECT_EQ(problem({8, 8, 8, 6}, unequal),
            at + ": all chunks recompute as many layers; allowed: no such field, with recompute_first 8");
  EXPECT_EQ(problem({8, 8, 8, 5}, unequal), "");
}

double payload(const Program& p, CollectiveKind kind, GroupIndex group) {
  return sum_over_step(p, [&](const Op& op) {
    const auto* of = op.as<ops::Collective>();
    return of != nullptr && of->collective == kind && op.group == group
               ? static_cast<double>(op.payload.value)
               : 0.0;
  });
}

// Two all-reduces forward and two backward of s b h elements per layer and micro-batch; embedding,
// head and their backward one each.
TEST(Volume, TensorParallelAllReduces) {
  const Model m = preset_model("llama-2-7b");
  Plan p;
  p.tp = 8;
  p.micro_batches = 3;
  const double one = 2.0 * 2048 * 4096;
  const Program program = compiled(m, p, true);
  EXPECT_DOUBLE_EQ(payload(program, CollectiveKind::kAllReduce, kTpGroup) - kNormBinBytes,
                   3 * one * (4 * 32 + 2));
  // The loss gathers three numbers of a token from each rank.
  EXPECT_DOUBLE_EQ(payload(program, CollectiveKind::kAllGather, kTpGroup), 3 * 8 * 2048 * 3 * 4);
}

TEST(Volume, SequenceParallelMovesTheSameBytesPlusTheRegather) {
  const Model m = preset_model("llama-2-7b");
  Plan p;
  p.tp = 8;
  p.sequence_parallel = true;
  const Program program = compiled(m, p, true);
  const double one = 2.0 * 2048 * 4096;
  // Forward: embedding, and two per layer. Backward: two per layer and the head.
  EXPECT_DOUBLE_EQ(payload(program, CollectiveKind::kReduceScatter, kTpGroup),
                   one * (1 + 2 * 32 + 2 * 32 + 1));
  // Forward: two per layer and the head. Backward: gradients of both branches, both inputs again, head again,
  // embedding. And the loss's three numbers of a token of each rank.
  EXPECT_DOUBLE_EQ(payload(program, CollectiveKind::kAllGather, kTpGroup),
                   one * (2 * 32 + 1 + 2 * 32 + 2 * 32 + 1 + 1) + 8 * 2048 * 3 * 4);
}

// Data parallelism moves the model once per step; ZeRO-3 gathers it forward and backward and reduces
// gradients in every micro-batch.
TEST(Volume, DataParallelAndZero) {
  const Model m = preset_model("tiny-llama");
  const double psi = static_cast<double>(count_parameters(m));
  Plan p;
  p.dp = 4;
  p.micro_batches = 3;
  EXPECT_DOUBLE_EQ(payload(compiled(m, p, true, 64), CollectiveKind::kAllReduce, kDpGroup), 2 * psi);
  p.zero = 1;
  EXPECT_DOUBLE_EQ(payload(compiled(m, p, true, 64), CollectiveKind::kReduceScatter, kShardGroup), 2 * psi);
  EXPECT_DOUBLE_EQ(payload(compiled(m, p, true, 64), CollectiveKind::kAllGather, kShardGroup), 2 * psi);
  p.zero = 3;
  // The embedding's backward needs no weight.
  EXPECT_DOUBLE_EQ(payload(compiled(m, p, true, 64), CollectiveKind::kAllGather, kShardGroup),
                   3 * 2 * (2 * psi - 256 * 64));
  EXPECT_DOUBLE_EQ(payload(compiled(m, p, true, 64), CollectiveKind::kReduceScatter, kShardGroup),
                   3 * 2 * psi);
}

TEST(Volume, PipelineBoundaries) {
  const Model m = preset_model("megatron-1.7b");
  Plan p;
  p.pp = 4;
  p.vpp = 3;
  p.schedule = Schedule::kInterleaved;
  p.micro_batches = 8;
  const double one = 2.0 * 2048 * static_cast<double>(m.hidden);
  const Program program = compiled(m, p, true);
  double sent = 0;
  for (const RankClass& c : program.classes) {
    for (const Step& step : c.steps) {
      for (const Op& op : c.segments[static_cast<std::size_t>(step.segment)].ops) {
        if (op.is<ops::Send>() && op.name.starts_with("pipeline"))
          sent += static_cast<double>(op.payload.value);
      }
    }
  }
  EXPECT_DOUBLE_EQ(sent, 2 * 8 * one * (4 * 3 - 1));  // both directions, every chunk boundary
}

}  // namespace
}  // namespace orrery::program
