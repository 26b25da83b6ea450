// SPDX-License-Identifier: Apache-2.0
//
// Dropout is a function of what an element is: every plan drops the same ones.
#include <gtest/gtest.h>

#include <cmath>

#include "exec/data.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

Training training(double dropout) {
  return {.global_batch = kBatch,
          .sequence = 8,
          .precision = Precision::kFp32,
          .math = Math::kFp32,
          .dropout = dropout};
}

double worst(const exec::LogicalTensors& a, const exec::LogicalTensors& b) {
  double most = 0;
  for (const auto& [name, reference] : b) {
    double largest = 1e-12, off = 0;
    for (std::size_t i = 0; i < reference.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(reference[i])));
      off = std::max(off, std::abs(static_cast<double>(reference[i]) - static_cast<double>(a.at(name)[i])));
    }
    most = std::max(most, off / largest);
  }
  return most;
}

TEST(DropoutRuns, EveryPlanDropsTheSame) {
  for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
    for (const bool flash : {true, false}) {
      Model m = tiny(preset);
      m.tied_embeddings = false;
      const Stack s = stack(flash);
      const auto expected = train(m, plan(1, 1, 1, 0), training(0.2), s);
      // To the bit where data only move.
      for (const Plan& p : {plan(1, 4, 1, 0), with(plan(1, 1, 1, 0), Recompute::kFull),
                            with(plan(1, 2, 1, 0), Recompute::kSelective), plan(1, 1, 4, 3), plan(1, 2, 2, 2),
                            with(plan(1, 4, 1, 0), Schedule::kZeroBubbleH1),
                            with(plan(1, 2, 1, 0), Schedule::kInterleaved, 2)}) {
        const auto actual = train(m, p, training(0.2), s);
        EXPECT_TRUE(actual.gradients == expected.gradients) << preset << " " << short_name(p);
        EXPECT_TRUE(actual.parameters == expected.parameters) << preset << " " << short_name(p);
      }
      // Near it where sums are split.
      for (const Plan& p :
           {plan(1, 1, 1, 0, 4), plan(2, 1, 1, 0), sp(plan(4, 1, 1, 0, 2)), plan(1, 1, 4, 1, 2),
            sp(plan(2, 2, 2, 1)), with(sp(plan(2, 1, 2, 3)), Recompute::kFull),
            context(plan(1, 1, 2, 1), 4, 1), context(sp(plan(2, 1, 1, 0)), 4, 2),
            context(plan(1, 2, 1, 0), 2, 1, ContextKeys::kAllGather), context(plan(1, 1, 1, 0), 2, 2)}) {
        const auto actual = train(m, p, training(0.2), s);
        EXPECT_LT(worst(actual.gradients, expected.gradients), 2e-5) << preset << " " << short_name(p);
        EXPECT_NEAR(actual.steps[1].loss, expected.steps[1].loss, 1e-5 * expected.steps[1].loss);
      }
    }
  }
}

// Flash and materialised attention drop the same; another seed, another probability and none do not.
TEST(DropoutRuns, DependOnTheSeedAndTheProbabilityAlone) {
  const Model m = tiny("tiny-gpt");
  const Plan p = plan(1, 1, 1, 0);
  const auto flash = train(m, p, training(0.2), stack(true));
  EXPECT_LT(worst(train(m, p, training(0.2), stack(false)).gradients, flash.gradients), 2e-5);
  EXPECT_GT(worst(train(m, p, training(0.3), stack()).gradients, flash.gradients), 1e-2);
  EXPECT_GT(worst(train(m, p, training(0), stack()).gradients, flash.gradients), 1e-2);
  exec::RunOptions other = small_run();
  other.seed = 8;
  EXPECT_GT(worst(train(m, p, training(0.2), stack(), other).gradients, flash.gradients), 1e-2);
}

// All sequences are the same, and nothing is learnt: only what is dropped makes losses differ.
class OneSequence final : public exec::Dataset {
 public:
  std::int64_t sequences() const override { return 1000; }
  std::int64_t vocabulary() const override { return 64; }
  std::string identity() const override { return "its own"; }
  void read(std::int64_t, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(7 * i % 64);
      targets[i] = static_cast<std::int32_t>(7 * (i + 1) % 64);
    }
  }
};

// Each sequence of a run drops elements of its own. Samples are numbered over all steps, so the loss of step
// s with two sequences a step is the mean of those of steps 2s and 2s + 1 with one.
TEST(DropoutRuns, EachSampleOfARunDropsItsOwn) {
  const Model m = tiny("tiny-gpt");
  const OneSequence data;
  const auto losses = [&](double dropout, const Plan& p, std::int64_t steps) {
    Training t = training(dropout);
    t.global_batch = p.global_batch();
    exec::RunOptions o = small_run(steps);
    o.learning_rate = 0;
    o.data = &data;
    std::vector<double> out;
    for (const exec::StepReport& s : train(m, p, t, stack(), o).steps) out.push_back(s.loss);
    return out;
  };
  const auto of = [](std::int64_t dp, std::int64_t micro_batch, std::int64_t micro_batches) {
    return Plan{.dp = dp, .micro_batch = micro_batch, .micro_batches = micro_batches};
  };
  for (const double same : losses(0, of(1, 1, 1), 3)) EXPECT_EQ(same, losses(0, of(1, 1, 1), 1)[0]);
  const std::vector<double> one = losses(0.3, of(1, 1, 1), 6);
  for (std::size_t i = 0; i < one.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_GT(std::abs(one[i] - one[j]), 1e-6) << i << " and " << j;
  }
  for (const Plan& p : {of(2, 1, 1), of(1, 2, 1), of(1, 1, 2)}) {
    const std::vector<double> two = losses(0.3, p, 3);
    for (std::size_t s = 0; s < two.size(); ++s)
      EXPECT_NEAR(two[s], (one[2 * s] + one[2 * s + 1]) / 2, 1e-6) << short_name(p) << " step " << s;
  }
}

TEST(DropoutRuns, ValidationDropsNothing) {
  const Model m = tiny("tiny-gpt");
  const auto data = exec::built_in_data(3, m.vocab);
  exec::RunOptions o = small_run(1);
  o.learning_rate = 0;
  o.validation = data.get();
  o.validate_every = 1;
  const auto with = train(m, plan(1, 2, 2, 1), training(0.5), stack(false), o);
  const auto without = train(m, plan(1, 2, 2, 1), training(0), stack(false), o);
  EXPECT_EQ(with.steps[0].validation_loss, without.steps[0].validation_loss);
  EXPECT_NE(with.steps[0].loss, without.steps[0].loss);
}

// Every sequence is the same, so the mean over any number of batches is the loss of one, which is that of the
// training batch before the step.
class Same final : public exec::Dataset {
 public:
  std::int64_t sequences() const override { return 1000; }
  std::int64_t vocabulary() const override { return 64; }
  std::string identity() const override { return "its own"; }
  void read(std::int64_t, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      tokens[j] = static_cast<std::int32_t>(7 * j % 64);
      targets[j] = static_cast<std::int32_t>(7 * (j + 1) % 64);
    }
  }
};

TEST(Validation, LossIsTheMeanOverTokensOfAllItsBatches) {
  const Same data;
  exec::RunOptions o = small_run(1);
  o.learning_rate = 0;
  o.data = o.validation = &data;
  o.validate_every = 1;
  for (const std::int64_t batches : {1, 3}) {
    o.validation_batches = batches;
    for (const Plan& p : {plan(1, 1, 1, 0), plan(2, 1, 2, 1), plan(1, 2, 1, 0)}) {
      const auto step = train(tiny("tiny-gpt"), p, training(0), stack(false), o).steps.at(0);
      EXPECT_NEAR(step.validation_loss, step.loss, 1e-6 * step.loss) << short_name(p) << ", " << batches;
    }
  }
}

}  // namespace
}  // namespace orrery
