// SPDX-License-Identifier: Apache-2.0
//
// Every plan computes what the serial run computes: losses, every gradient, parameters after the steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "core/error.h"
#include "tests/exec/small_model.h"
#include "tests/program/random_order.h"

namespace orrery {
namespace {

Training fp32(Precision precision = Precision::kFp32) {
  return {.global_batch = kBatch, .sequence = 8, .precision = precision, .math = Math::kFp32};
}

// Largest |a - b| over the largest |b| of each tensor. Padding rows of a split vocabulary are left out.
double difference(const exec::LogicalTensors& a, const exec::LogicalTensors& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, reference] : b) {
    const auto found = a.find(name);
    if (found == a.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    double largest = 1e-12, off = 0;
    for (std::size_t i = 0; i < reference.size(); ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(reference[i])));
      off = std::max(off, static_cast<double>(std::abs(reference[i] - found->second[i])));
    }
    worst = std::max(worst, off / largest);
    EXPECT_LT(off / largest, 2e-4) << name;
  }
  return worst;
}

struct Case {
  const char* name;
  Plan plan;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << short_name(c.plan); }
};

class Equivalence : public testing::TestWithParam<std::tuple<const char*, Case>> {};

TEST_P(Equivalence, LossesGradientsAndParametersEqualTheSerialRun) {
  const auto& [preset, c] = GetParam();
  const Model m = tiny(preset);
  Plan serial;
  serial.micro_batches = kBatch;
  const auto expected = train(m, serial, fp32(), stack());
  const auto actual = train(m, c.plan, fp32(), stack());
  for (std::size_t s = 0; s < expected.steps.size(); ++s) {
    EXPECT_NEAR(actual.steps[s].loss, expected.steps[s].loss, 1e-5 * expected.steps[s].loss);
    EXPECT_NEAR(actual.steps[s].gradient_norm, expected.steps[s].gradient_norm,
                2e-5 * expected.steps[s].gradient_norm);
  }
  difference(actual.gradients, expected.gradients);
}

const Case kCases[] = {
    {"milestone_a", plan(2, 2, 2, 1)},
    {"micro_batch_4", plan(1, 1, 1, 0, 4)},
    {"tp2", plan(2, 1, 1, 0)},
    {"tp4_sp", sp(plan(4, 1, 1, 0, 2))},
    {"pp4", plan(1, 4, 1, 0)},
    {"pp4_uneven", uneven(plan(1, 3, 1, 0), {1, 2, 1})},
    {"gpipe", with(plan(1, 2, 1, 0), Schedule::kGPipe)},
    {"naive", with(plan(1, 2, 1, 0), Schedule::kNaive)},
    {"interleaved", with(plan(1, 2, 1, 0), Schedule::kInterleaved, 2)},
    {"zb_h1", with(plan(1, 4, 1, 0), Schedule::kZeroBubbleH1)},
    {"zb_h1_tp_sp", sp(with(plan(2, 2, 1, 1), Schedule::kZeroBubbleH1))},
    {"zb_v", with(plan(1, 2, 1, 0), Schedule::kZeroBubbleV, 2)},
    {"zb_v_dp", with(plan(1, 2, 2, 1), Schedule::kZeroBubbleV, 2)},
    {"dualpipe_v", with(plan(1, 2, 1, 0), Schedule::kDualPipeV, 2)},
    {"dualpipe_v_tp_sp", sp(with(plan(2, 2, 1, 0), Schedule::kDualPipeV, 2))},
    {"dualpipe_v_recompute", with(with(plan(1, 2, 2, 1), Schedule::kDualPipeV, 2), Recompute::kFull)},
    {"dp4", plan(1, 1, 4, 0)},
    {"zero1", plan(1, 1, 4, 1)},
    {"zero2", plan(1, 1, 4, 2)},
    {"zero3", plan(1, 1, 4, 3)},
    {"zero1_hybrid", shard_group(plan(1, 1, 4, 1), 2)},
    {"zero3_hybrid", shard_group(plan(1, 1, 4, 3), 2)},
    {"zero2_pp_tp_sp", sp(plan(2, 2, 2, 2))},
    {"zero3_pp", plan(1, 2, 2, 3)},
    {"zero3_tp_sp_recompute", with(sp(plan(2, 1, 2, 3)), Recompute::kFull)},
    {"full_recompute", with(plan(1, 1, 1, 0), Recompute::kFull)},
    {"recompute_every_2", with(plan(1, 1, 2, 3), Recompute::kFull, 2)},
    {"selective", with(plan(2, 1, 1, 0), Recompute::kSelective)},
    {"loss_in_parts", parts_of_loss(plan(1, 1, 1, 0, 2), 4)},
    {"loss_in_parts_tp_pp", parts_of_loss(plan(2, 2, 2, 1), 8)},
    {"loss_in_parts_zero2", parts_of_loss(plan(1, 2, 2, 2), 2)},
    {"loss_in_parts_zero3", parts_of_loss(with(plan(2, 1, 2, 3), Recompute::kFull), 4)},
    {"loss_in_parts_gpipe", parts_of_loss(with(plan(1, 2, 1, 0), Schedule::kGPipe), 2)},
    {"loss_in_parts_zb_h1", parts_of_loss(with(plan(1, 2, 2, 1), Schedule::kZeroBubbleH1), 4)},
    {"zb_recompute", with(with(plan(1, 2, 1, 0), Schedule::kZeroBubbleH1), Recompute::kFull)},
};

INSTANTIATE_TEST_SUITE_P(Plans, Equivalence,
                         testing::Combine(testing::Values("tiny-gpt", "tiny-llama"),
                                          testing::ValuesIn(kCases)),
                         [](const auto& param_info) {
                           std::string name = std::string(std::get<0>(param_info.param)) + "_" +
                                              std::get<1>(param_info.param).name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Rounds add in another order than the direct way, and in the same one each time.
class Algorithms : public testing::TestWithParam<exec::Algorithm> {};

TEST_P(Algorithms, TrainAsTheSerialRunDoes) {
  const Model m = tiny("tiny-llama");
  const auto expected = train(m, plan(1, 1, 1, 0), fp32(), stack());
  exec::RunOptions o = small_run();
  o.collectives = GetParam();
  for (const Plan& p : {sp(plan(2, 2, 2, 1)), plan(1, 1, 4, 0), sp(plan(4, 1, 2, 2)), plan(2, 1, 2, 3),
                        shard_group(plan(1, 1, 4, 3), 2)}) {
    const auto actual = train(m, p, fp32(), stack(), o);
    difference(actual.gradients, expected.gradients);
    EXPECT_NEAR(actual.steps[1].loss, expected.steps[1].loss, 1e-5 * expected.steps[1].loss);
    const auto again = train(m, p, fp32(), stack(), o);
    EXPECT_TRUE(again.parameters == actual.parameters) << short_name(p) << ": timing decides";
  }
}

INSTANTIATE_TEST_SUITE_P(InRounds, Algorithms,
                         testing::Values(exec::Algorithm::kNaive, exec::Algorithm::kRing,
                                         exec::Algorithm::kTree, exec::Algorithm::kHalvingDoubling,
                                         exec::Algorithm::kHierarchical),
                         [](const auto& param_info) {
                           std::string name(name_of(param_info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The op variants a preset does not reach.
struct Variant {
  const char* name;
  std::function<void(Model&, Stack&, Training&)> change;
  friend void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }
};

class ModelVariant : public testing::TestWithParam<Variant> {};

TEST_P(ModelVariant, EqualsTheSerialRunUnderTensorPipelineAndDataParallelism) {
  Model m = tiny("tiny-llama");
  Stack s = stack();
  Training t = fp32();
  GetParam().change(m, s, t);
  Plan serial;
  serial.micro_batches = kBatch;
  const auto expected = train(m, serial, t, s);
  const auto actual = train(m, sp(plan(2, 2, 2, 1)), t, s);
  difference(actual.gradients, expected.gradients);
  if (t.precision == Precision::kSgd) difference(actual.parameters, expected.parameters);
  EXPECT_NEAR(actual.steps[1].loss, expected.steps[1].loss, 1e-5 * expected.steps[1].loss);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ModelVariant,
    testing::Values(
        Variant{"qk_norm", [](Model& m, Stack&, Training&) { m.qk_norm = QkNorm::kPerHead; }},
        Variant{"qk_norm_unweighted", [](Model& m, Stack&, Training&) { m.qk_norm = QkNorm::kUnweighted; }},
        Variant{"residual_scaled", [](Model& m, Stack&, Training&) { m.residual_scale = 0.3; }},
        Variant{"logits_scaled", [](Model& m, Stack&, Training&) { m.logit_scale = 0.5; }},
        Variant{"qkv_bias", [](Model& m, Stack&, Training&) { m.qkv_bias = true; }},
        Variant{"tied", [](Model& m, Stack&, Training&) { m.tied_embeddings = true; }},
        Variant{"logits_capped", [](Model& m, Stack&, Training&) { m.logit_soft_cap = 1.5; }},
        Variant{"materialised_scores", [](Model&, Stack& s, Training&) { s.flash_attention = false; }},
        Variant{"vocabulary_padded", [](Model& m, Stack&, Training&) { m.vocab = 61; }},
        Variant{"no_overlap",
                [](Model&, Stack& s, Training&) { s.overlap_grad_reduce = s.overlap_tp = false; }},
        Variant{"sgd", [](Model&, Stack&, Training& training) { training.precision = Precision::kSgd; }}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

// Parts of the rows go through the head and the loss in the backward pass. Passes that go forward alone do so
// too, and whatever shares the head's weight gets the gradients of all parts.
TEST(LossInParts, TrainsAndValidatesAsTheWholeDoes) {
  const auto data = exec::built_in_data(3, 64);
  exec::RunOptions o = small_run();
  o.validation = data.get();
  o.validate_every = 1;
  o.validation_batches = 2;
  for (const bool tied : {false, true}) {
    Model m = tiny("tiny-llama");
    m.tied_embeddings = tied;
    m.logit_soft_cap = 1.5;
    for (const LossKeeps keeps : {LossKeeps::kLogits, LossKeeps::kLogitsApart}) {
      Stack s = stack();
      s.loss_keeps = keeps;
      Plan kept = plan(1, 1, 2, 3);  // all that was gathered
      kept.reshard_after_forward = false;
      for (const Plan& whole : {plan(1, 1, 1, 0, 2), plan(1, 1, 2, 3), kept, plan(1, 2, 2, 2),
                                plan(2, 2, 1, 0), context(plan(1, 1, 2, 1), 2, 1)}) {
        const auto expected = train(m, whole, fp32(), s, o);
        const auto actual = train(m, parts_of_loss(whole, 4), fp32(), s, o);
        SCOPED_TRACE(short_name(whole) + (tied ? " tied" : ""));
        difference(actual.gradients, expected.gradients);
        for (std::size_t i = 0; i < expected.steps.size(); ++i) {
          EXPECT_NEAR(actual.steps[i].loss, expected.steps[i].loss, 1e-5 * expected.steps[i].loss);
          EXPECT_GT(actual.steps[i].validation_loss, 1);
          EXPECT_NEAR(actual.steps[i].validation_loss, expected.steps[i].validation_loss,
                      1e-5 * expected.steps[i].validation_loss);
        }
      }
    }
  }
}

// The check must be able to fail: half of each replica's batch swapped for other data.
TEST(EquivalenceControl, AnotherSeedIsNotEqual) {
  const Model m = tiny("tiny-gpt");
  Plan p;
  p.micro_batches = kBatch;
  const auto program = program::compile(m, p, fp32(), stack());
  const auto a = exec::run(program, {.steps = 1, .seed = 7, .capture = true});
  const auto b = exec::run(program, {.steps = 1, .seed = 8, .capture = true});
  double worst = 0;
  for (const auto& [name, tensor] : a.gradients) {
    for (std::size_t i = 0; i < tensor.size(); ++i)
      worst = std::max(worst, static_cast<double>(std::abs(tensor[i] - b.gradients.at(name)[i])));
  }
  EXPECT_GT(worst, 1e-4);
}

// Negative controls: a program with one communication less must not equal the serial run.
TEST(EquivalenceControl, ADroppedCollectiveIsNoticed) {
  const Model m = tiny("tiny-gpt");
  Plan serial;
  serial.micro_batches = kBatch;
  const auto expected = train(m, serial, fp32(), stack(), small_run(1));
  for (const char* dropped : {"layer2/mlp/fc2/all-reduce", "layer0/attn/qkv/dgrad/all-reduce",
                              "unit0/reduce-scatter", "loss/input/all-gather"}) {
    auto program = program::compile(m, plan(2, 1, 2, 1), fp32(), stack());
    int emptied = 0;  // it still takes place, over no elements
    for (auto& segment : program.classes[0].segments) {
      for (program::Op& op : segment.ops) {
        if (op.name != dropped) continue;
        std::get<program::ops::Collective>(op.kind).elements = 0;
        ++emptied;
      }
    }
    ASSERT_GT(emptied, 0) << dropped;
    exec::RunResult actual;
    try {
      actual = exec::run(program, {.steps = 1, .seed = 7, .capture = true});
    } catch (const Error& e) {  // of what nobody wrote
      EXPECT_NE(std::string(e.what()).find("is not a finite number"), std::string::npos) << e.what();
      continue;
    }
    double worst = 0;
    for (const auto& [name, tensor] : expected.gradients) {
      double largest = 1e-12, off = 0;
      for (std::size_t i = 0; i < tensor.size(); ++i) {
        largest = std::max(largest, static_cast<double>(std::abs(tensor[i])));
        off = std::max(off, static_cast<double>(std::abs(tensor[i] - actual.gradients.at(name)[i])));
      }
      worst = std::max(worst, off / largest);
    }
    EXPECT_GT(worst, 1e-2) << dropped;
  }
}

// Pipelining only moves data: every bit is the same.
TEST(Equivalence, PipelineSchedulesAreBitExact) {
  const Model m = tiny("tiny-llama");
  Plan serial;
  serial.micro_batches = kBatch;
  const auto expected = train(m, serial, fp32(), stack());
  for (const Plan& p :
       {plan(1, 4, 1, 0), with(plan(1, 2, 1, 0), Schedule::kGPipe),
        with(plan(1, 2, 1, 0), Schedule::kInterleaved, 2), with(plan(1, 4, 1, 0), Recompute::kFull)}) {
    const auto actual = train(m, p, fp32(), stack());
    EXPECT_EQ(actual.steps[1].gradient_norm, expected.steps[1].gradient_norm) << short_name(p);
    EXPECT_TRUE(actual.gradients == expected.gradients) << short_name(p);
    EXPECT_TRUE(actual.parameters == expected.parameters) << short_name(p);
  }
}

// Stages that do their work in orders that nobody designed add the same gradients in the same order as one
// stage does. Of another seed they do not.
TEST(Equivalence, ListedSchedulesAreBitExact) {
  constexpr unsigned kOrders = 20261202;
  RecordProperty("seed", kOrders);
  std::mt19937 random(kOrders);
  const Model m = tiny("tiny-llama");
  const Plan serial = plan(1, 1, 1, 0, 2);
  const auto expected = train(m, serial, fp32(), stack());
  int whole = 0, split = 0, two_chunks = 0, both = 0;
  for (int i = 0; i < 120 && (whole < 6 || split < 6 || two_chunks < 3 || both < 3); ++i) {
    Plan p = plan(1, i % 3 == 2 ? 4 : 2, 1, 0, 2);
    if (i % 4 == 1) p.schedule = Schedule::kZeroBubbleH1;
    if (i % 4 == 2 && p.pp == 2) p = with(p, i % 8 == 2 ? Schedule::kInterleaved : Schedule::kZeroBubbleV, 2);
    if (i % 4 == 3 && p.pp == 2) p = with(p, Schedule::kDualPipeV, 2);
    const Plan listed = program::in_random_order(p, random);
    if (!program::order_problem(listed).empty()) continue;
    ++(program::backwards_of(listed) == program::Backwards::kBoth ? both
       : listed.vpp == 2                                          ? two_chunks
       : program::splits_backward(listed)                         ? split
                                                                  : whole);
    const auto actual = train(m, listed, fp32(), stack());
    const std::string which = fmt::format("seed {} order {}", kOrders, i);
    EXPECT_EQ(actual.steps[1].gradient_norm, expected.steps[1].gradient_norm) << which;
    EXPECT_TRUE(actual.gradients == expected.gradients) << which;
    EXPECT_TRUE(actual.parameters == expected.parameters) << which;
  }
  EXPECT_GE(whole, 6);
  EXPECT_GE(split, 6);
  EXPECT_GE(two_chunks, 3);
  EXPECT_GE(both, 3);
  exec::RunOptions other = small_run();
  other.seed = 8;
  EXPECT_FALSE(train(m, serial, fp32(), stack(), other).gradients == expected.gradients);
  try {
    train(tiny_of("decoder"), program::in_random_order(plan(1, 2, 1, 0), random), fp32(), stack());
    ADD_FAILURE() << "a list for a model with two towers";
  } catch (const InputError& e) {
    EXPECT_EQ(e.where(), "/schedule") << e.what();
  }
}

// What a stage repeats has the bits that it had the first time, however many of its layers do that, with
// dropout too. Another seed has other bits.
TEST(Equivalence, RecomputationOfAnyLayersIsBitExact) {
  const Model m = tiny("tiny-gpt");
  Training dropped = fp32();
  dropped.dropout = 0.1;
  for (const auto& [p, by_chunk] : std::vector<std::pair<Plan, std::vector<std::int64_t>>>{
           {plan(1, 4, 1, 0), {1, 0, 1, 0}},
           {plan(1, 2, 1, 0), {1, 2}},
           {with(plan(1, 2, 1, 0), Schedule::kInterleaved, 2), {1, 0, 1, 0}},
           {with(plan(1, 2, 1, 0), Schedule::kZeroBubbleV, 2), {1, 1, 0, 0}},
           {with(plan(1, 2, 2, 1), Schedule::kZeroBubbleH1), {2, 0}},
           {sp(plan(2, 2, 1, 0)), {2, 1}},
           {uneven(plan(1, 2, 1, 0), {3, 1}), {2, 0}}}) {
    const Plan some = with_recomputed(p, by_chunk, m.layers);
    ASSERT_EQ(some.recompute_by_chunk, by_chunk);
    const auto expected = train(m, p, dropped, stack());
    const auto actual = train(m, some, dropped, stack());
    EXPECT_EQ(actual.steps[1].gradient_norm, expected.steps[1].gradient_norm) << short_name(some);
    EXPECT_TRUE(actual.gradients == expected.gradients) << short_name(some);
    EXPECT_TRUE(actual.parameters == expected.parameters) << short_name(some);
    exec::RunOptions other = small_run();
    other.seed = 8;
    EXPECT_FALSE(train(m, some, dropped, stack(), other).gradients == expected.gradients) << short_name(some);
  }
}

// A product that computes GELU as it writes rounds nothing else in fp32, whatever the schedule.
TEST(Equivalence, FusedGeluIsBitExact) {
  Stack fused = stack();
  fused.fused_gelu = true;
  for (const Plan& p : {plan(1, 1, 1, 0), with(plan(2, 2, 1, 0), Schedule::kZeroBubbleH1),
                        with(plan(1, 1, 2, 3), Recompute::kFull)}) {
    const auto expected = train(tiny("tiny-gpt"), p, fp32(), stack());
    const auto actual = train(tiny("tiny-gpt"), p, fp32(), fused);
    EXPECT_EQ(actual.steps[1].gradient_norm, expected.steps[1].gradient_norm) << short_name(p);
    EXPECT_TRUE(actual.gradients == expected.gradients) << short_name(p);
    EXPECT_TRUE(actual.parameters == expected.parameters) << short_name(p);
  }
}

// A norm in one op with the sum before it has the same arithmetic, whatever is repeated; where norms alone
// are repeated they stay apart.
TEST(Equivalence, FusedResidualNormsAreBitExact) {
  Stack fused = stack();
  fused.fused_residual_norms = true;
  Plan norms_again = with(plan(1, 1, 1, 0), Recompute::kSelective);
  norms_again.recompute_parts = {RecomputePart::kNorms};
  for (const char* const kind : {"tiny-gpt", "tiny-llama", "gemma", "decoder", "experts"}) {
    for (const Plan& p : {plan(1, 1, 1, 0), sp(with(plan(2, 2, 1, 0), Schedule::kZeroBubbleH1)),
                          with(plan(1, 1, 2, 3), Recompute::kFull), norms_again}) {
      if (p.pp > 1 && std::string(kind) == "decoder") continue;
      const auto expected = train(tiny_of(kind), p, fp32(), stack());
      const auto actual = train(tiny_of(kind), p, fp32(), fused);
      EXPECT_EQ(actual.steps[1].gradient_norm, expected.steps[1].gradient_norm) << kind << short_name(p);
      EXPECT_TRUE(actual.gradients == expected.gradients) << kind << short_name(p);
      EXPECT_TRUE(actual.parameters == expected.parameters) << kind << short_name(p);
    }
  }
}

// Bias gradients that products sum are the same sums. With one tensor rank the products that end branches
// also take the biases that were added behind them, which rounds otherwise.
TEST(Equivalence, FusedBiasGradientsAreThoseOfTheSameBiases) {
  Stack fused = stack();
  fused.fused_bias_gradients = true;
  for (const char* const kind : {"tiny-gpt", "neox"}) {
    for (const Plan& p : {plan(1, 1, 1, 0), with(plan(1, 2, 1, 0), Schedule::kZeroBubbleH1),
                          with(plan(1, 1, 2, 3), Recompute::kFull), sp(plan(2, 1, 1, 2)),
                          with(plan(2, 2, 1, 0), Schedule::kZeroBubbleH1)}) {
      const auto expected = train(tiny_of(kind), p, fp32(), stack());
      const auto actual = train(tiny_of(kind), p, fp32(), fused);
      EXPECT_TRUE(p.tp == 1 || actual.gradients == expected.gradients) << kind << short_name(p);
      for (const auto& [name, values] : expected.gradients) {
        const std::vector<float>& other = actual.gradients.at(name);
        const double size = norm_of(values);
        double off = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
          off += std::pow(static_cast<double>(other[i]) - static_cast<double>(values[i]), 2);
        EXPECT_LE(std::sqrt(off), 2e-5 * size + 1e-9) << name << " of " << kind << short_name(p);
      }
    }
  }
}

// ZeRO-1 moves data too: it gives plain data parallelism's bits, the norm's too.
TEST(Equivalence, ZeroStageOneIsBitExactAgainstDataParallelism) {
  const Model m = tiny("tiny-gpt");
  const auto expected = train(m, plan(1, 1, 4, 0), fp32(), stack());
  const auto actual = train(m, plan(1, 1, 4, 1), fp32(), stack());
  EXPECT_EQ(actual.steps[1].gradient_norm, expected.steps[1].gradient_norm);
  EXPECT_TRUE(actual.gradients == expected.gradients);
  EXPECT_TRUE(actual.parameters == expected.parameters);
}

// The norm is that of the gradients; a plan that splits everything sees the whole model's.
TEST(Equivalence, TheGradientNormIsTheWholeModels) {
  Model m = tiny("tiny-gpt");
  m.tied_embeddings = true;
  const auto r = train(m, sp(plan(2, 2, 2, 1)), fp32(), stack());
  double sum = 0;
  for (const auto& [name, tensor] : r.gradients) {
    for (const float g : tensor) sum += static_cast<double>(g) * static_cast<double>(g);
  }
  EXPECT_NEAR(r.steps[0].gradient_norm, std::sqrt(sum), 1e-6 * std::sqrt(sum));
}

// LAMB's update of a tensor is its norm times the learning rate long, whatever ranks hold parts of it, and
// has AdamW's direction; tensors that begin as zeros have AdamW's.
TEST(Lamb, MovesEachTensorByItsNormTimesTheLearningRate) {
  Model m = tiny("tiny-gpt");
  m.vocab = 61;
  const auto run = [&](const Plan& p, bool lamb, float rate) {
    Training t = fp32();
    t.optimizer.decay = Decay::kAll;  // without it all elements of a norm move alike, as AdamW moves them
    t.lamb = lamb;
    exec::RunOptions o = small_run(1);
    o.learning_rate = rate;
    o.weight_decay = 0.1F;
    return train(m, p, t, stack(), o).parameters;
  };
  constexpr float kRate = 0.01F;
  for (const Plan& p : {plan(1, 1, 1, 0), sp(plan(2, 2, 2, 1)), plan(1, 1, 4, 3), plan(4, 1, 2, 2)}) {
    const auto start = run(p, true, 0), lamb = run(p, true, kRate), adam = run(p, false, kRate);
    int zeros = 0;
    for (const auto& [name, before] : start) {
      std::vector<float> moved = lamb.at(name), by_adam = adam.at(name);
      for (std::size_t i = 0; i < before.size(); ++i) {
        moved[i] -= before[i];
        by_adam[i] -= before[i];
      }
      const double weights = norm_of(before), distance = norm_of(moved), adams = norm_of(by_adam);
      if (weights == 0) {
        EXPECT_TRUE(moved == by_adam) << name << " of " << short_name(p);
        ++zeros;
        continue;
      }
      EXPECT_NEAR(distance, kRate * weights, 1e-4 * kRate * weights) << name << " of " << short_name(p);
      EXPECT_GT(std::abs(adams / distance - 1), 1e-3) << "the ratio of " << name << " shows nothing";
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_NEAR(moved[i] / distance, by_adam[i] / adams, 1e-4) << name << " of " << short_name(p);
    }
    EXPECT_GT(zeros, 4);
  }
}

// LARS's first update of a tensor: rate x trust x |w| long, against the gradient, whatever ranks hold parts
// of it; with weight decay of b it is rate x trust x |w| / (|g| + b |w|) times (g + b w). Tensors that begin
// as zeros take the gradient as it is.
TEST(Lars, MovesEachTensorByTheTrustCoefficient) {
  Model m = tiny("tiny-gpt");
  m.vocab = 61;
  const auto run = [&](const Plan& p, float rate, float decay) {
    Training t = fp32(Precision::kSgd);
    t.clip = 1e9;
    t.lars = true;
    t.optimizer.decay = Decay::kAll;
    t.optimizer.trust = 0.02;
    exec::RunOptions o = small_run(1);
    o.learning_rate = rate;
    o.weight_decay = decay;
    return train(m, p, t, stack(), o);
  };
  constexpr float kRate = 0.5F, kTrust = 0.02F;
  for (const Plan& p : {plan(1, 1, 1, 0), sp(plan(2, 2, 2, 1)), plan(1, 1, 4, 3), plan(4, 1, 2, 2)}) {
    const auto start = run(p, 0, 0).parameters;
    for (const float decay : {0.0F, 0.5F}) {
      const auto after = run(p, kRate, decay);
      int zeros = 0;
      for (const auto& [name, before] : start) {
        const std::vector<float>& g = after.gradients.at(name);
        const double w = norm_of(before), gradient = norm_of(g);
        zeros += w == 0;
        const double ratio = w > 0 && gradient > 0 ? w / gradient : 1;
        const double local = kRate * kTrust * ratio / (1 + decay * ratio);
        const double tolerance = 1e-4 * local * (gradient + decay * w) + 1e-9;
        for (std::size_t i = 0; i < before.size(); ++i) {
          EXPECT_NEAR(before[i] - after.parameters.at(name)[i], local * (g[i] + decay * before[i]), tolerance)
              << name << " of " << short_name(p);
        }
      }
      EXPECT_GT(zeros, 4);
    }
  }
}

// Parts of a tensor that shards have, in 16 bits with and without a master copy.
TEST(Lamb, ShardsGiveTheBitsOfTheWhole) {
  for (const Precision precision : {Precision::kMixed, Precision::kMegatron, Precision::kNoMaster}) {
    Training t = fp32(precision);
    t.math = Math::kBf16;
    t.lamb = true;
    const Model m = tiny("tiny-llama");
    const auto expected = train(m, plan(1, 1, 4, 0), t, stack());
    const auto actual = train(m, plan(1, 1, 4, 1), t, stack());
    EXPECT_EQ(actual.steps[1].loss, expected.steps[1].loss) << name_of(precision);
    EXPECT_TRUE(actual.parameters == expected.parameters) << name_of(precision);
    t.lamb = false;
    EXPECT_FALSE(train(m, plan(1, 1, 4, 0), t, stack()).parameters == expected.parameters);
  }
}

// Plain SGD's first update is the clipped gradient: lr g clip / |g|, and lr g where nothing is clipped.
TEST(Equivalence, GradientsAreClippedToTheLargestNorm) {
  const Model m = tiny("tiny-llama");
  const auto run = [&](double clip) {
    Training t = fp32(Precision::kSgd);
    t.clip = clip;
    return train(m, sp(plan(2, 2, 2, 1)), t, stack(), small_run(1));
  };
  const auto free = run(1e6), clipped = run(0.125), unmeasured = run(0);
  ASSERT_GT(free.steps[0].gradient_norm, 0.25);
  EXPECT_TRUE(free.parameters == unmeasured.parameters);
  EXPECT_EQ(unmeasured.steps[0].gradient_norm, 0);
  const double factor = 0.125 / free.steps[0].gradient_norm;
  const std::string name = "layer1/mlp/norm/weight";  // starts as ones
  for (std::size_t i = 0; i < free.parameters.at(name).size(); ++i) {
    const double without = free.parameters.at(name)[i] - 1.0,
                 with_clip = clipped.parameters.at(name)[i] - 1.0;
    EXPECT_NEAR(with_clip, factor * without, 2e-7);
  }
}

}  // namespace
}  // namespace orrery
