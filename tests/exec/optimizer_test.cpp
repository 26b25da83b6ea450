// SPDX-License-Identifier: Apache-2.0
//
// What steps the parameters: the learning rate of a step, the number of updates that Adam corrects for, and
// the loss scale, which must be gone when the parameter moves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "exec/cpu_ops.h"
#include "exec/gradient_norm.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

using exec::OpArguments;
using program::Op;
namespace ops = program::ops;

// The norm op of gradients that were made of a loss times `scale`, then an update by them with SGD.
struct Update {
  exec::GradientNorm norm;
  std::vector<float> parameters;
};
Update sgd(const std::vector<float>& gradients, double scale, float clip) {
  const Model model = preset_model("tiny-gpt");
  const auto n = static_cast<std::int64_t>(gradients.size());
  std::vector<float> scaled, velocity(gradients.size()), parameters(gradients.size(), 1.0F);
  for (const float g : gradients) scaled.push_back(static_cast<float>(g * scale));

  const std::vector<std::pair<std::int64_t, std::int64_t>> all{{0, n}};
  std::vector<double> bins(program::kNormBins);
  Op square{.kind = ops::NormSquare{n, 0}};
  OpArguments a{.op = square, .model = model};
  a.in[0] = scaled.data();
  a.out[0] = reinterpret_cast<float*>(bins.data());
  a.counted = all;
  exec::run_cpu_op(a);

  Update out;
  Op finish{.kind = ops::NormFinish{}};
  OpArguments b{.op = finish, .model = model, .loss_scale = scale, .clip = clip};
  b.in[0] = reinterpret_cast<const float*>(bins.data());
  b.out[0] = reinterpret_cast<float*>(&out.norm);
  exec::run_cpu_op(b);

  Op update{.kind = ops::Optimizer{{n, 0}}};
  OpArguments c{.op = update, .model = model, .loss_scale = scale, .precision = Precision::kSgd};
  c.adam.lr = 0.5F;
  c.adam.beta1 = 0.9F;
  const std::vector<exec::UpdateRange> whole{{0, n, false, 0}};
  c.update_ranges = whole;
  c.in = {scaled.data(), nullptr, nullptr, reinterpret_cast<const float*>(&out.norm)};
  c.out = {parameters.data(), velocity.data()};
  exec::run_cpu_op(c);
  out.parameters = parameters;
  return out;
}

// Gradients 3/16, 1/4 and 0 have the norm 5/16. SGD from zero velocity takes 0.5 g off a parameter of 1.
TEST(LossScale, IsGoneWhenTheParameterMoves) {
  const std::vector<float> g{0.1875F, 0.25F, 0};
  for (const double scale : {1.0, 1024.0, 65536.0}) {
    const Update free = sgd(g, scale, 0);
    EXPECT_DOUBLE_EQ(free.norm.norm, 0.3125) << scale;
    EXPECT_EQ(free.norm.factor, static_cast<float>(1 / scale));
    EXPECT_EQ(free.parameters, (std::vector<float>{1 - 0.09375F, 1 - 0.125F, 1})) << scale;
    // Clipped to a norm of 5/64, a quarter of what it is; 1e-6 keeps the divisor from zero.
    const Update clipped = sgd(g, scale, 0.078125F);
    EXPECT_DOUBLE_EQ(clipped.norm.norm, 0.3125) << "the norm is that before clipping";
    EXPECT_NEAR(clipped.parameters[0], 1 - 0.09375 / 4, 1e-6) << scale;
    EXPECT_NEAR(clipped.parameters[1], 1 - 0.125 / 4, 1e-6) << scale;
    // A norm below the limit is left alone.
    EXPECT_EQ(sgd(g, scale, 0.5F).parameters, free.parameters);
  }
}

// The bias of keys shifts all scores of a query alike, so its gradient is rounding and Adam moves it anyhow.
bool is_rounding(const std::string& name) {
  return name.ends_with("attn/qkv/bias");
}

double largest_difference(const exec::LogicalTensors& a, const exec::LogicalTensors& b) {
  double most = 0;
  for (const auto& [name, values] : a) {
    if (is_rounding(name)) continue;
    for (std::size_t i = 0; i < values.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(values[i]) - static_cast<double>(b.at(name)[i])));
  }
  return most;
}

Training fp16(double clip) {
  return {.global_batch = kBatch,
          .sequence = 8,
          .precision = Precision::kMixed,
          .math = Math::kFp16,
          .clip = clip};
}

// The scale doubles after each step of one run and stays in the other. Adam mixes gradients of several steps,
// so a scale left in them would weigh the last ones most. Six steps move a parameter by up to 0.06.
TEST(LossScale, MayChangeBetweenSteps) {
  const Model m = tiny("tiny-gpt");
  for (const double clip : {0.0, 0.1}) {
    exec::RunOptions o = small_run(6);
    o.loss_scale = 1024;
    const auto constant = train(m, plan(1, 1, 2, 1), fp16(clip), stack(), o);
    o.loss_scale_window = 1;
    const auto growing = train(m, plan(1, 1, 2, 1), fp16(clip), stack(), o);
    EXPECT_EQ(constant.steps.back().loss_scale, 1024);
    EXPECT_EQ(growing.steps.back().loss_scale, 32768);  // 1024 x 2^5
    for (std::size_t s = 0; s < 6; ++s) {
      EXPECT_NEAR(growing.steps[s].gradient_norm, constant.steps[s].gradient_norm,
                  0.02 * constant.steps[s].gradient_norm);
    }
    EXPECT_LT(largest_difference(growing.parameters, constant.parameters), 0.006) << "clip " << clip;
  }
}

// Adam divides by 1 - beta^n at its n-th update, so the first moves each parameter by the learning rate,
// whatever its gradient g: g (1 - b1) / (1 - b1) over sqrt(g^2 (1 - b2) / (1 - b2)). Steps that were skipped
// are no updates: were they counted, say 20, the move would be
//   0.1 / (1 - 0.9^20) / sqrt(0.05 / (1 - 0.95^20)) = 0.1139 / 0.2792 = 0.41 of the rate.
TEST(Adam, DoesNotCountSkippedSteps) {
  const Model m = tiny("tiny-gpt");
  for (const Plan& p : {plan(1, 1, 1, 0), plan(1, 2, 2, 1)}) {
    exec::RunOptions o = small_run(40);
    o.loss_scale = 0x1p36;
    o.learning_rate = 0x1p-7F;
    std::int64_t skipped = 0;
    const auto dry = train(m, p, fp16(0), stack(), o);
    while (dry.steps[static_cast<std::size_t>(skipped)].skipped) ++skipped;
    ASSERT_GT(skipped, 10);
    o.steps = skipped + 1;
    const auto run = train(m, p, fp16(0), stack(), o);
    std::size_t biases = 0, moved = 0;
    for (const auto& [name, values] : run.parameters) {
      if (!name.ends_with("bias") || is_rounding(name)) continue;  // biases begin at zero
      biases += values.size();
      moved += static_cast<std::size_t>(std::count_if(
          values.begin(), values.end(), [](float b) { return std::abs(std::abs(b) - 0x1p-7F) < 0x1p-11F; }));
    }
    EXPECT_GT(biases, 500U);
    EXPECT_GT(static_cast<double>(moved), 0.95 * static_cast<double>(biases)) << skipped << " skipped";
  }
}

TEST(LearningRate, WarmsUpAndDecays) {
  exec::RunOptions o;
  o.learning_rate = 0.5F;
  o.warm_up = 4;
  o.steps = 13;
  const auto rate = [&](std::int64_t step) { return exec::learning_rate(o, step); };
  // An eighth of 1 at a time: a quarter, a half, three quarters, all of 0.5.
  EXPECT_EQ(rate(0), 0.125F);
  EXPECT_EQ(rate(1), 0.25F);
  EXPECT_EQ(rate(2), 0.375F);
  EXPECT_EQ(rate(3), 0.5F);
  EXPECT_EQ(rate(4), 0.5F);
  EXPECT_EQ(rate(12), 0.5F);
  // Half a cosine from step 4 to the last, 12, which has a tenth left; half way, at step 8, the mean of 0.5
  // and 0.05; a quarter of the way, at step 6, cos 45 degrees above it.
  o.decay_to = 0.1F;
  EXPECT_FLOAT_EQ(rate(3), 0.5F);
  EXPECT_FLOAT_EQ(rate(4), 0.5F);
  EXPECT_FLOAT_EQ(rate(8), 0.275F);
  EXPECT_NEAR(rate(6), 0.275 + 0.225 * std::sqrt(0.5), 1e-6);
  EXPECT_FLOAT_EQ(rate(12), 0.05F);
  EXPECT_FLOAT_EQ(rate(20), 0.05F) << "beyond the last step it stays";
  o.warm_up = 0;
  EXPECT_FLOAT_EQ(rate(0), 0.5F);
}

// The rate that a step reports is the rate that it takes: the first of four steps of warm-up is a run at a
// quarter of the rate.
TEST(LearningRate, IsThatOfTheStep) {
  const Model m = tiny("tiny-llama");
  const Training t{.global_batch = kBatch, .sequence = 8, .precision = Precision::kFp32, .math = Math::kFp32};
  exec::RunOptions warm = small_run(1), quarter = small_run(1);
  warm.learning_rate = 0x1p-5F;
  warm.warm_up = 4;
  quarter.learning_rate = 0x1p-7F;
  const auto expected = train(m, plan(1, 1, 1, 0), t, stack(), quarter).parameters;
  EXPECT_TRUE(train(m, plan(1, 1, 1, 0), t, stack(), warm).parameters == expected);
}

}  // namespace
}  // namespace orrery
