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
            sp(plan(2, 2, 2, 1)), with(sp(plan(2, 1, 2, 3)), Recompute::kFull)}) {
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

}  // namespace
}  // namespace orrery
