// SPDX-License-Identifier: Apache-2.0
//
// AdamW's constants, in closed form: what they do to single parameters in the first steps.
#include <filesystem>

#include "exec/checkpoint.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

constexpr float kRate = 0.01F;

Training fp32_training() {
  return {.global_batch = kBatch, .sequence = 8, .precision = Precision::kFp32, .math = Math::kFp32};
}

// Shards cut through tensors, units hold vectors and matrices, and stages hold other tensors.
std::vector<Plan> plans() {
  return {plan(1, 1, 1, 0), sp(plan(2, 2, 2, 1)), plan(1, 1, 4, 3), plan(4, 1, 2, 2)};
}

bool is_vector(const std::string& name) {
  return name.ends_with("/bias") || name.find("norm/weight") != std::string::npos;
}

struct Moved {
  exec::LogicalTensors before, after;
};
Moved one_step(const Model& m, const Plan& p, const Training& t, double decay) {
  exec::RunOptions o = small_run(1);
  o.weight_decay = static_cast<float>(decay);
  o.learning_rate = 0;
  Moved out{train(m, p, t, stack(), o).parameters, {}};
  o.learning_rate = kRate;
  out.after = train(m, p, t, stack(), o).parameters;
  return out;
}

// Decay alone takes rate * decay * parameter away: from matrices, and from norms and biases only when asked.
TEST(Optimizer, DecayShrinksMatricesAndOnRequestVectors) {
  constexpr double kDecay = 0.5;
  const Model m = tiny("tiny-gpt");
  for (const Plan& p : plans()) {
    for (const Decay decay : {Decay::kMatrices, Decay::kAll}) {
      Training t = fp32_training();
      t.optimizer.decay = decay;
      const Moved with = one_step(m, p, t, kDecay), without = one_step(m, p, t, 0);
      int vectors = 0, ones = 0;
      for (const auto& [name, before] : with.before) {
        const bool decays = decay == Decay::kAll || !is_vector(name);
        vectors += is_vector(name);
        for (std::size_t i = 0; i < before.size(); ++i) {
          const double taken = static_cast<double>(without.after.at(name)[i]) - with.after.at(name)[i];
          ASSERT_NEAR(taken, decays ? kRate * kDecay * before[i] : 0, decays ? 2e-7 : 0)
              << name << " of " << short_name(p);
          ones += before[i] == 1;  // of norms: there decay takes 0.005 away
        }
      }
      EXPECT_EQ(vectors, 4 * 8 + 2);  // in a layer two norms of two, and four biases; the last norm
      EXPECT_EQ(ones, 9 * 32);
    }
  }
}

// LAMB's update of a tensor is as long as the tensor, so decay turns it and shows in its direction alone. A
// bias begins as zeros and is AdamW's; of a norm's weight all elements begin as 1.
TEST(Optimizer, DecayLeavesVectorsAloneUnderLambToo) {
  const Model m = tiny("tiny-gpt");
  Training t = fp32_training();
  t.lamb = true;
  for (const Plan& p : plans()) {
    const Moved with = one_step(m, p, t, 10), without = one_step(m, p, t, 0);
    for (const auto& [name, after] : with.after)
      EXPECT_EQ(after == without.after.at(name), is_vector(name)) << name << " of " << short_name(p);
    t.optimizer.decay = Decay::kAll;
    const Moved all = one_step(m, p, t, 10);
    EXPECT_FALSE(all.after.at("layer0/mlp/norm/weight") == without.after.at("layer0/mlp/norm/weight"));
    t.optimizer.decay = Decay::kMatrices;
  }
}

// From moments of zero, bias correction makes the first update g / (|g| + epsilon) whatever the betas.
TEST(Optimizer, EpsilonIsAddedToTheRootOfTheSecondMoment) {
  Training t = fp32_training();
  t.clip = 0;
  t.optimizer.epsilon = 0.01;
  exec::RunOptions o = small_run(1);
  for (const Plan& p : plans()) {
    o.learning_rate = 0;
    const exec::LogicalTensors before = train(tiny("tiny-llama"), p, t, stack(), o).parameters;
    o.learning_rate = kRate;
    const exec::RunResult r = train(tiny("tiny-llama"), p, t, stack(), o);
    double shrunk = 0, all = 0;
    for (const auto& [name, gradient] : r.gradients) {
      for (std::size_t i = 0; i < before.at(name).size(); ++i) {
        const double g = gradient[i], update = g / (std::abs(g) + 0.01);
        ASSERT_NEAR(before.at(name)[i] - static_cast<double>(r.parameters.at(name)[i]), kRate * update, 3e-7)
            << name << " of " << short_name(p);
        shrunk += std::abs(update) < 0.5;
        ++all;
      }
    }
    EXPECT_GT(shrunk / all, 0.1);  // with 1e-8 all updates are one long
  }
}

// After a step from zero the moments are (1 - beta1) g and (1 - beta2) g^2.
TEST(Optimizer, BetasWeighTheGradientInTheMoments) {
  Training t = fp32_training();
  t.clip = 0;
  t.optimizer.beta1 = 0.75;
  t.optimizer.beta2 = 0.875;
  const auto folder = std::filesystem::temp_directory_path() / ("orrery-betas-" + std::to_string(::getpid()));
  for (const Plan& p : plans()) {
    std::filesystem::remove_all(folder);
    exec::RunOptions o = small_run(1);
    o.checkpoints = folder;
    o.checkpoint_every = 1;
    const exec::RunResult r = train(tiny("tiny-llama"), p, t, stack(), o);
    std::vector<std::string> passed_over;
    const auto program = program::compile(tiny("tiny-llama"), p, t, stack());
    const auto state = exec::restore_newest(folder, program, passed_over);
    ASSERT_TRUE(state);
    for (const auto& [name, gradient] : r.gradients) {
      const auto &first = state->states[1].at(name), &second = state->states[2].at(name);
      for (std::size_t i = 0; i < first.size(); ++i) {
        const float g = gradient[i];
        ASSERT_FLOAT_EQ(first[i], 0.25F * g) << name << " of " << short_name(p);
        ASSERT_FLOAT_EQ(second[i], 0.125F * g * g) << name << " of " << short_name(p);
      }
    }
  }
  std::filesystem::remove_all(folder);
}

// Momentum is beta1: with it a second step of the same length as the first goes on by beta1 of that.
TEST(Optimizer, MomentumOfSgdIsBeta1) {
  Training t = fp32_training();
  t.precision = Precision::kSgd;
  t.clip = 0;
  exec::RunOptions o = small_run(2);
  o.learning_rate = 1e-4F;
  const auto after_two = [&](double beta) {
    t.optimizer.beta1 = beta;
    return train(tiny("tiny-gpt"), plan(1, 1, 2, 1), t, stack(), o);
  };
  // p2(beta) - p2(0) = -rate beta g1, but for what the first step changed in the second gradient: nothing,
  // because both took the same first step.
  const exec::RunResult with = after_two(0.5), without = after_two(0);
  double off = 0, all = 0;
  for (const auto& [name, gradient] : with.gradients) {
    for (std::size_t i = 0; i < without.parameters.at(name).size(); ++i) {
      const double more = static_cast<double>(without.parameters.at(name)[i]) - with.parameters.at(name)[i];
      off += std::pow(more - 1e-4 * 0.5 * gradient[i], 2);
      all += std::pow(1e-4 * 0.5 * gradient[i], 2);
    }
  }
  EXPECT_LT(std::sqrt(off / all), 2e-2);  // parameters are rounded to 2^-24 of themselves
}

}  // namespace
}  // namespace orrery
