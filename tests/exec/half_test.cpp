// SPDX-License-Identifier: Apache-2.0
//
// Training in 16-bit floats: what is stored is 16 bits wide, sums are fp32, plans that only move data change
// no bit, and fp16 follows its gradients' size with a loss scale.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "exec/loss_scale.h"
#include "kernels/cpu/fast.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

Training training(Precision precision, Math math) {
  return {.global_batch = kBatch, .sequence = 8, .precision = precision, .math = math};
}
Plan serial() {
  return plan(1, 1, 1, 0);
}

bool representable(DType type, const std::vector<float>& values) {
  std::vector<std::uint16_t> bits(values.size());
  std::vector<float> back(values.size());
  const auto n = static_cast<kernels::Index>(values.size());
  kernels::narrow(type, n, values.data(), bits.data());
  kernels::widen(type, n, bits.data(), back.data());
  return back == values;
}
bool representable(DType type, const exec::LogicalTensors& tensors) {
  for (const auto& [name, values] : tensors) {
    if (!representable(type, values)) return false;
  }
  return true;
}

void expect_same(const exec::RunResult& a, const exec::RunResult& b, const Plan& p) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    // Replicas' losses are added last, in double precision.
    EXPECT_NEAR(a.steps[s].loss, b.steps[s].loss, 1e-12 * b.steps[s].loss) << short_name(p) << " step " << s;
    EXPECT_EQ(a.steps[s].gradient_norm, b.steps[s].gradient_norm) << short_name(p) << " step " << s;
  }
  EXPECT_TRUE(a.gradients == b.gradients) << short_name(p);
  EXPECT_TRUE(a.parameters == b.parameters) << short_name(p);
}

// |a - b| over |b|, as norms of all tensors together.
double distance(const exec::LogicalTensors& a, const exec::LogicalTensors& b) {
  double off = 0, size = 0;
  for (const auto& [name, reference] : b) {
    const std::vector<float>& other = a.at(name);
    for (std::size_t i = 0; i < reference.size(); ++i) {
      off += std::pow(static_cast<double>(other[i]) - static_cast<double>(reference[i]), 2);
      size += std::pow(static_cast<double>(reference[i]), 2);
    }
  }
  return std::sqrt(off / size);
}

struct Recipe {
  Precision precision;
  Math math;
  DType parameters, gradients;
};
const Recipe kRecipes[] = {
    {Precision::kMixed, Math::kBf16, DType::kBfloat16, DType::kBfloat16},
    {Precision::kMixed, Math::kFp16, DType::kFloat16, DType::kFloat16},
    {Precision::kMegatron, Math::kBf16, DType::kBfloat16, DType::kFloat32},
    {Precision::kNoMaster, Math::kBf16, DType::kBfloat16, DType::kBfloat16},
};

TEST(Half, StoresSixteenBits) {
  for (const Recipe& r : kRecipes) {
    for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
      const auto result = train(tiny(preset), serial(), training(r.precision, r.math), stack());
      EXPECT_TRUE(representable(r.parameters, result.parameters)) << preset;
      // Gradients are captured before the optimizer, and fp16's are divided by a power of two after.
      if (r.gradients != DType::kFloat16) {
        EXPECT_EQ(representable(DType::kBfloat16, result.gradients), r.gradients == DType::kBfloat16)
            << preset;
      }
    }
  }
}

// Adam's updates are about as large as the learning rate, 1e-8, and half a step of bf16 at a parameter of
// 0.02 is 6e-5. To the nearest only parameters below 3e-6 move, 1 in 10,000; at random, 1 in several hundred.
// Shards of ZeRO round as replicas do.
TEST(Half, StochasticRoundingKeepsWhatIsSmallerThanAStep) {
  Training t = training(Precision::kNoMaster, Math::kBf16);
  exec::RunOptions o = small_run(3);
  o.learning_rate = 1e-8F;
  const auto moved = [&](const exec::RunResult& r, const exec::RunResult& from) {
    std::size_t out = 0, all = 0;
    for (const auto& [name, values] : from.parameters) {
      for (std::size_t i = 0; i < values.size(); ++i) out += values[i] != r.parameters.at(name)[i];
      all += values.size();
    }
    return static_cast<double>(out) / static_cast<double>(all);
  };
  exec::RunOptions still = o;
  still.learning_rate = 0;
  const Model m = tiny("tiny-llama");
  const auto start = train(m, plan(1, 1, 2, 0), t, stack(), still);
  const auto nearest = train(m, plan(1, 1, 2, 0), t, stack(), o);
  t.stochastic_rounding = true;
  const auto random = train(m, plan(1, 1, 2, 0), t, stack(), o);
  EXPECT_GT(moved(random, start), 5 * moved(nearest, start));
  EXPECT_GT(moved(random, start), 0.0003);
  EXPECT_TRUE(representable(DType::kBfloat16, random.parameters));
  expect_same(train(m, plan(1, 1, 2, 1), t, stack(), o), random, plan(1, 1, 2, 1));
}

// Pipelines and recomputation, and with fp32 gradients ZeRO-2 and 3, add the same numbers in the same order.
TEST(Half, PlansThatMoveDataChangeNoBit) {
  const Plan moving[] = {plan(1, 4, 1, 0),
                         with(plan(1, 2, 1, 0), Schedule::kInterleaved, 2),
                         with(plan(1, 4, 1, 0), Schedule::kZeroBubbleH1),
                         with(plan(1, 2, 1, 0), Schedule::kZeroBubbleV, 2),
                         with(plan(1, 1, 1, 0), Recompute::kFull),
                         with(plan(1, 2, 1, 0), Recompute::kSelective)};
  for (const Recipe& r : kRecipes) {
    for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
      const Training t = training(r.precision, r.math);
      Model m = tiny(preset);
      m.tied_embeddings = false;  // stages that share a weight add its two gradients in another order
      const auto expected = train(m, serial(), t, stack());
      for (const Plan& p : moving) expect_same(train(m, p, t, stack()), expected, p);
      if (r.gradients != DType::kFloat32) continue;
      for (const Plan& p : {plan(1, 1, 4, 2), plan(1, 1, 4, 3), plan(1, 2, 2, 3)})
        expect_same(train(m, p, t, stack()), expected, p);
    }
  }
}

// Products of layers in 8 bits: coarser than bf16's and of the same function, so that it learns about as
// well; between plans that keep tensors whole not a bit differs.
TEST(Half, ProductsInEightBits) {
  for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
    Model m = tiny(preset);
    m.ffn_hidden = 64;
    m.tied_embeddings = false;
    const Plan serial = plan(1, 1, 1, 0, 4);
    const auto run_in = [&](Precision precision, Math math, const Plan& p, std::int64_t steps = 2) {
      return train(m, p, training(precision, math), stack(), small_run(steps));
    };
    const auto exact = run_in(Precision::kFp32, Math::kFp32, serial);
    const auto half = run_in(Precision::kMixed, Math::kBf16, serial);
    for (const Precision precision : {Precision::kMixed, Precision::kMegatron}) {
      const auto eight = run_in(precision, Math::kFp8, serial);
      const double rounding = distance(eight.gradients, exact.gradients);
      EXPECT_GT(rounding, 2 * distance(half.gradients, exact.gradients)) << preset;
      EXPECT_LT(rounding, 0.2) << preset;
      for (const Plan& p : {plan(1, 2, 1, 0, 4), with(plan(1, 1, 1, 0, 4), Recompute::kFull),
                            with(plan(1, 2, 1, 0, 4), Schedule::kZeroBubbleH1)})
        expect_same(run_in(precision, Math::kFp8, p), eight, p);
      for (const Plan& p : {sp(plan(2, 1, 1, 0, 4)), plan(1, 1, 2, 1, 4)}) {
        EXPECT_LT(distance(run_in(precision, Math::kFp8, p).gradients, exact.gradients), 2 * rounding)
            << short_name(p);
      }
    }
    const auto learnt = run_in(Precision::kMixed, Math::kFp8, serial, 40),
               learnt_in_half = run_in(Precision::kMixed, Math::kBf16, serial, 40);
    EXPECT_LT(learnt.steps.back().loss, 0.9 * learnt.steps.front().loss) << preset;
    EXPECT_LT(learnt.steps.back().loss, 1.1 * learnt_in_half.steps.back().loss) << preset;
  }
}

// The other narrow formats: 8 bits in blocks are as close as with a factor for each tensor, 4 bits further,
// and all learn. Plans that keep tensors whole give the same bits.
TEST(Half, ProductsInNarrowFormats) {
  Model m = tiny("tiny-llama");
  m.ffn_hidden = 64;
  m.tied_embeddings = false;
  const Plan serial = plan(1, 1, 1, 0, 4);
  const auto run_in = [&](Math math, const Plan& p, std::int64_t steps = 2) {
    const bool exact = math == Math::kFp32;
    return train(m, p, training(exact ? Precision::kFp32 : Precision::kMixed, math), stack(),
                 small_run(steps));
  };
  const auto exact = run_in(Math::kFp32, serial);
  const double eight = distance(run_in(Math::kFp8, serial).gradients, exact.gradients);
  const auto half = run_in(Math::kBf16, serial, 40);
  for (const Math math : {Math::kFp8Rowwise, Math::kFp8Blockwise, Math::kMxfp8, Math::kNvfp4}) {
    const auto here = run_in(math, serial);
    const double far = distance(here.gradients, exact.gradients);
    const bool four = math == Math::kNvfp4;
    EXPECT_GT(far, four ? 1.5 * eight : 0.3 * eight) << name_of(math);
    EXPECT_LT(far, four ? 8 * eight : 1.5 * eight) << name_of(math);
    for (const Plan& p : {plan(1, 2, 1, 0, 4), with(plan(1, 1, 1, 0, 4), Recompute::kFull)})
      expect_same(run_in(math, p), here, p);
    const auto learnt = run_in(math, serial, 40);
    EXPECT_LT(learnt.steps.back().loss, 0.9 * learnt.steps.front().loss) << name_of(math);
    EXPECT_LT(learnt.steps.back().loss, 1.15 * half.steps.back().loss) << name_of(math);
  }
}

// What splits sums rounds them elsewhere: the result may be as far from fp32 as twice the serial run is.
TEST(Half, PlansThatSplitSumsStayAsCloseToFp32) {
  for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
    for (const bool flash : {true, false}) {
      const Model m = tiny(preset);
      const auto exact = train(m, serial(), training(Precision::kFp32, Math::kFp32), stack(flash));
      for (const Recipe& r : kRecipes) {
        const Training t = training(r.precision, r.math);
        const auto one = train(m, serial(), t, stack(flash));
        const double rounding = distance(one.gradients, exact.gradients);
        EXPECT_GT(rounding, r.math == Math::kFp16 ? 1e-5 : 1e-4) << "nothing was rounded";
        EXPECT_LT(rounding, r.math == Math::kFp16 ? 1e-2 : 5e-2);
        for (const Plan& p : {plan(2, 1, 1, 0), sp(plan(4, 1, 1, 0, 2)), plan(1, 1, 4, 0), plan(1, 1, 4, 1),
                              sp(plan(2, 2, 2, 1)), plan(1, 2, 2, 3)}) {
          const auto split = train(m, p, t, stack(flash));
          EXPECT_LT(distance(split.gradients, exact.gradients), 2 * rounding) << short_name(p);
          EXPECT_NEAR(split.steps[1].loss, exact.steps[1].loss, 0.01 * exact.steps[1].loss) << short_name(p);
        }
      }
    }
  }
}

// Gradients of this model times 2^40 are beyond fp16's 65,504: steps are left out while the scale halves, and
// no parameter changes; then training goes on, as if it had begun there.
TEST(Half, AnOverflowLeavesTheStepOut) {
  const Model m = tiny("tiny-gpt");
  const Training t = training(Precision::kMixed, Math::kFp16);
  for (const Plan& p : {serial(), sp(plan(2, 2, 2, 1)), plan(1, 2, 2, 3)}) {
    exec::RunOptions o = small_run(1);
    o.loss_scale = 0x1p40;
    const auto first = train(m, p, t, stack(), o);
    EXPECT_TRUE(first.steps[0].skipped);
    o.learning_rate = 0;
    EXPECT_TRUE(first.parameters == train(m, p, t, stack(), o).parameters)
        << "the left out step changed some";
    o = small_run(60);
    o.loss_scale = 0x1p40;
    const auto run = train(m, p, t, stack(), o);
    double scale = 0x1p40;
    std::int64_t skipped = 0;
    for (const exec::StepReport& step : run.steps) {
      EXPECT_EQ(step.loss_scale, scale);
      if (step.skipped) {
        scale /= 2;
        ++skipped;
      }
      EXPECT_TRUE(std::isfinite(step.loss));
      EXPECT_EQ(step.skipped, !std::isfinite(step.gradient_norm));
    }
    EXPECT_GE(skipped, 15) << short_name(p);
    EXPECT_LE(skipped, 40) << short_name(p);
    EXPECT_LT(run.steps.back().loss, 0.9 * run.steps.front().loss) << "it does not learn";
  }
}

// What the scale is for: without it, small gradients fall below fp16's least.
TEST(Half, TheScaleKeepsSmallGradients) {
  const Model m = tiny("tiny-gpt");
  const Training t = training(Precision::kMixed, Math::kFp16);
  const auto exact = train(m, serial(), training(Precision::kFp32, Math::kFp32), stack());
  const auto error = [&](double scale) {
    exec::RunOptions o = small_run();
    o.loss_scale = scale;
    return distance(train(m, serial(), t, stack(), o).gradients, exact.gradients);
  };
  EXPECT_GT(error(0x1p-6), 4 * error(4096));
  EXPECT_NEAR(error(65536), error(4096), 1e-6) << "in between it changes next to nothing";
}

TEST(Half, TheScaleGrowsAndEnds) {
  exec::LossScale s(1024, 3);
  s.update(false);
  s.update(false);
  EXPECT_EQ(s.scale(), 1024);
  s.update(false);
  EXPECT_EQ(s.scale(), 2048);
  s.update(false);
  s.update(true);
  EXPECT_EQ(s.scale(), 1024);
  EXPECT_EQ(s.skipped(), 1);
  s.update(false);
  s.update(false);
  EXPECT_EQ(s.scale(), 1024) << "an overflow begins the count anew";
  s.update(false);
  EXPECT_EQ(s.scale(), 2048);
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) s.update(true);
      },
      Error);
}

// A checkpoint holds the masters and the loss scale: a run goes on to the bit, and in another precision.
TEST(Half, CheckpointsGoOn) {
  const fs::path folder = fs::temp_directory_path() / ("orrery-half-" + std::to_string(::getpid()));
  const Model m = tiny("tiny-gpt");
  for (const Recipe& r : kRecipes) {
    fs::remove_all(folder);
    const Training t = training(r.precision, r.math);
    const Plan p = sp(plan(2, 2, 2, 1));
    exec::RunOptions o = small_run(6);
    o.loss_scale = 0x1p24;
    o.loss_scale_window = 4;
    const auto whole = train(m, p, t, stack(), o);
    o.checkpoints = folder;
    o.checkpoint_every = 4;
    o.steps = 4;
    train(m, p, t, stack(), o);
    o.steps = 6;
    o.resume = true;
    o.checkpoint_every = 0;
    const auto rest = train(m, p, t, stack(), o);
    ASSERT_EQ(rest.first_step, 4);
    for (const std::size_t s : {0UL, 1UL}) {
      EXPECT_EQ(rest.steps[s].loss, whole.steps[4 + s].loss);
      EXPECT_EQ(rest.steps[s].loss_scale, whole.steps[4 + s].loss_scale);
    }
    EXPECT_TRUE(rest.parameters == whole.parameters);
    const auto in_fp32 = train(m, plan(1, 1, 2, 3), training(Precision::kFp32, Math::kFp32), stack(), o);
    ASSERT_EQ(in_fp32.first_step, 4);
    EXPECT_NEAR(in_fp32.steps[1].loss, whole.steps[5].loss, 0.01 * whole.steps[5].loss);
  }
  fs::remove_all(folder);
}

// Formats that the engine has no arithmetic for are refused, not run as something else.
TEST(Half, WhatIsStoredIsWhatIsMultiplied) {
  const Model m = tiny("tiny-gpt");
  for (const auto& [precision, math] : {std::pair{Precision::kFp32, Math::kFp8},
                                        {Precision::kFp32, Math::kMxfp8},
                                        {Precision::kMixed, Math::kFp8Delayed},
                                        {Precision::kMixed, Math::kFp32},
                                        {Precision::kFp32, Math::kBf16},
                                        {Precision::kSgd, Math::kTf32},
                                        {Precision::kAdam8bit, Math::kBf16},
                                        {Precision::kMegatronAdamBf16, Math::kBf16},
                                        {Precision::kPrecisionAware, Math::kBf16},
                                        {Precision::kDeepspeedBf16, Math::kBf16}}) {
    const auto program = program::compile(m, serial(), training(precision, math), stack());
    for (const exec::Backend backend : {exec::Backend::kCpu, exec::Backend::kCuda}) {
      const bool cuda = backend == exec::Backend::kCuda;
      const bool of_both =
          precision == Precision::kMegatronAdamBf16 || precision == Precision::kPrecisionAware;
      const bool runs = of_both || (cuda ? math == Math::kTf32 : precision == Precision::kAdam8bit);
      const std::string problem = exec::run_problem(program, backend);
      EXPECT_EQ(problem.find("allowed: ") == std::string::npos, runs) << problem;
    }
  }
  // GPUs take 8 bits with a factor for each tensor; what else there is only processors emulate.
  const auto narrow = program::compile(m, serial(), training(Precision::kMixed, Math::kMxfp8), stack());
  EXPECT_EQ(exec::run_problem(narrow, exec::Backend::kCpu), "");
  EXPECT_NE(exec::run_problem(narrow, exec::Backend::kCuda).find("allowed: bf16, fp16, fp8)"),
            std::string::npos);
}

}  // namespace
}  // namespace orrery
