// SPDX-License-Identifier: Apache-2.0
//
// Islands that train on their own, and exchange: against runs without islands where closed forms say that
// both are the same, and against each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "exec/checkpoint.h"
#include "kernels/cpu/reference.h"
#include "tests/exec/small_model.h"
#include "tests/folder.h"

namespace orrery {
namespace {

// SGD without momentum: an island's difference after a step is the learning rate times its gradient.
Training plain_sgd(std::optional<OuterOptimizer> outer) {
  return {.global_batch = kBatch,
          .sequence = 8,
          .precision = Precision::kSgd,
          .math = Math::kFp32,
          .clip = 0,
          .optimizer = {.beta1 = 0},
          .outer = outer};
}

Training adamw(std::int64_t every, Precision precision = Precision::kFp32) {
  return {.global_batch = kBatch,
          .sequence = 8,
          .precision = precision,
          .math = precision == Precision::kFp32 ? Math::kFp32 : Math::kBf16,
          .outer = OuterOptimizer{.every = every}};
}

Plan on_islands(Plan p, std::int64_t islands) {
  p.islands = islands;
  p.micro_batches = kBatch / (p.micro_batch * p.replicas());
  return p;
}

exec::RunOptions islands_run(std::int64_t steps, float rate = 0.05F) {
  exec::RunOptions o = small_run(steps);
  o.learning_rate = rate;
  o.weight_decay = 0;
  return o;
}

double islands_apart(const exec::LogicalTensors& a, const exec::LogicalTensors& b) {
  double most = 0;
  for (const auto& [name, x] : a) {
    for (std::size_t i = 0; i < x.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(x[i]) - static_cast<double>(b.at(name)[i])));
  }
  return most;
}

// After one step of each island from the same parameters, the mean of their parameters is that of a step with
// the whole batch: theta - r (g1 + g2) / 2. DiLoCo goes (1 + momentum) times the outer rate as far, since
// Nesterov's momentum begins at the gradient: 0.7 * 1.9 = 1.33.
TEST(IslandRuns, MeetWhereAWholeBatchWouldLead) {
  const Model m = tiny("tiny-gpt");
  const auto together = [&](float rate) {
    return train(m, on_islands(plan(1, 1, 2, 0), 1), plain_sgd({}), stack(), islands_run(1, rate)).parameters;
  };
  const auto apart = [&](const OuterOptimizer& outer, std::int64_t islands = 2) {
    return train(m, on_islands(plan(1, 1, 1, 0), islands), plain_sgd(outer), stack(), islands_run(1))
        .parameters;
  };
  const double moved = islands_apart(together(0.05F), together(0));
  ASSERT_GT(moved, 1e-3);
  const OuterOptimizer mean{.every = 1, .learning_rate = 1, .momentum = 0};
  EXPECT_LT(islands_apart(apart(mean), together(0.05F)), 1e-6);
  EXPECT_LT(islands_apart(apart(mean, 4), together(0.05F)), 1e-6);
  EXPECT_LT(islands_apart(apart({.every = 1}), together(0.7F * 1.9F * 0.05F)), 1e-6);
  // Of the first island alone, before any exchange.
  EXPECT_GT(islands_apart(apart({.every = 2}), together(0.05F)), 0.05 * moved);
  // In bf16 a difference keeps 8 bits.
  OuterOptimizer narrow = mean;
  narrow.exchange = OuterFormat::kBf16;
  const double rounded = islands_apart(apart(narrow), together(0.05F));
  EXPECT_GT(rounded, 1e-6);
  EXPECT_LT(rounded, moved / 128);
}

// torch.optim.SGD(nesterov=True), by hand: v = mu v + g; x -= rate (g + mu v).
TEST(IslandRuns, TheOuterUpdateIsNesterovs) {
  const kernels::reference::Outer o{.learning_rate = 0.5F, .momentum = 0.75F, .share = 0.25F};
  float anchor = 10, velocity = 0;
  const float first = 8, second = -4;  // sums over four islands: gradients of 2 and -1
  kernels::reference::outer_update(o, 1, &first, &anchor, &velocity);
  EXPECT_FLOAT_EQ(velocity, 2);
  EXPECT_FLOAT_EQ(anchor, 10 - 0.5F * (2 + 0.75F * 2));  // 8.25
  kernels::reference::outer_update(o, 1, &second, &anchor, &velocity);
  EXPECT_FLOAT_EQ(velocity, 0.75F * 2 - 1);                     // 0.5
  EXPECT_FLOAT_EQ(anchor, 8.25F - 0.5F * (-1 + 0.75F * 0.5F));  // 8.5625
  kernels::reference::outer_update(o, 1, &first, &anchor, nullptr);
  EXPECT_FLOAT_EQ(anchor, 8.5625F - 0.5F * 2);
}

// How an island is laid out changes nothing: to the bit where only data moves.
TEST(IslandRuns, AreThoseOfAnyPlan) {
  for (const Precision precision : {Precision::kFp32, Precision::kMixed, Precision::kNoMaster}) {
    const Training t = adamw(2, precision);
    const Model m = tiny("tiny-llama");
    const auto expected = train(m, on_islands(plan(1, 1, 2, 0), 2), t, stack(), islands_run(5));
    for (const Plan& p : {plan(1, 1, 2, 1), plan(1, 2, 2, 0), plan(1, 2, 2, 1)}) {
      const auto actual = train(m, on_islands(p, 2), t, stack(), islands_run(5));
      for (std::size_t s = 0; s < expected.steps.size(); ++s)
        EXPECT_EQ(actual.steps[s].loss, expected.steps[s].loss) << short_name(p) << " step " << s;
      EXPECT_EQ(actual.parameters, expected.parameters) << short_name(p) << " " << name_of(precision);
    }
    const auto slowly = [&](const Plan& p) {
      return train(m, on_islands(p, 2), t, stack(), islands_run(5, 1e-3F)).steps.back().loss;
    };
    const double whole = slowly(plan(1, 1, 2, 0));
    EXPECT_NEAR(slowly(sp(plan(2, 1, 1, 0))), whole, 2e-3 * whole) << name_of(precision);
  }
}

// Islands learn from each other: four with a quarter of each batch lose by meeting less often.
TEST(IslandRuns, Learn) {
  const Model m = tiny("tiny-gpt");
  const auto loss = [&](std::int64_t islands, std::int64_t every) {
    Training t = adamw(every);
    t.outer->learning_rate = 1;
    t.outer->momentum = 0;
    if (islands == 1) t.outer.reset();
    exec::RunOptions o = islands_run(40, 3e-3F);
    const auto steps = train(m, on_islands(plan(1, 1, 1, 0), islands), t, stack(), o).steps;
    double mean = 0;
    for (std::size_t i = 30; i < 40; ++i) mean += steps[i].loss / 10;
    return std::pair{steps.front().loss, mean};
  };
  const auto [start, together] = loss(1, 1);
  double before = together;
  for (const std::int64_t every : {1, 4, 1000}) {
    const double met = loss(4, every).second;
    std::printf("  every %d steps: %.3f, together %.3f, from %.3f\n", static_cast<int>(every), met, together,
                start);
    EXPECT_GT(met, before + 0.05) << every;
    EXPECT_LT(met, start - 0.5) << every;
    before = met;
  }
}

// The anchor is the same on all islands whatever a run begins from: between exchanges with another outer
// momentum too. After the next exchange a run of islands that are alike from there on has what one island
// has.
TEST(IslandRuns, KeepTheAnchorOfAnotherRecipe) {
  const Folder folder;
  const Model m = tiny("tiny-llama");
  const auto run = [&](std::int64_t steps, double momentum) {
    Training t = adamw(4);
    t.outer->momentum = momentum;
    exec::RunOptions o = islands_run(steps);
    o.checkpoints = folder.path;
    o.checkpoint_every = 1;
    o.resume = o.force = true;
    train(m, on_islands(plan(1, 1, 1, 0), 2), t, stack(), o);
    std::vector<std::string> passed_over;
    const auto program = program::compile(m, on_islands(plan(1, 1, 1, 0), 2), t, stack());
    return exec::restore_newest(folder.path, program, passed_over).value();
  };
  const auto apart = [](const exec::RestoredState& s) {
    double most = 0;
    for (const auto& [name, x] : s.states.front()) {
      if (name.starts_with("island1/")) continue;
      const std::vector<float>& other = s.states.front().at("island1/" + name);
      for (std::size_t i = 0; i < x.size(); ++i) most = std::max<double>(most, std::abs(x[i] - other[i]));
    }
    return most;
  };
  EXPECT_GT(apart(run(3, 0.9)), 1e-4);
  EXPECT_EQ(apart(run(4, 0)), 0);
  EXPECT_GT(apart(run(6, 0.5)), 1e-4);
  EXPECT_EQ(apart(run(8, 0.5)), 0);
}

// A stage whose layers are none of the adapter's trains nothing, and exchanges nothing.
TEST(IslandRuns, OfAStageThatTrainsNothing) {
  const Model m = tiny("tiny-gpt");
  Training t = adamw(1);
  t.adapter = Adapter{.rank = 2, .alpha = 4};
  Plan p = on_islands(plan(1, 2, 1, 0), 2);
  p.chunk_layers = {4, 0};
  const auto steps = train(m, p, t, stack(), islands_run(3)).steps;
  EXPECT_EQ(steps.size(), 3U);
  EXPECT_TRUE(std::isfinite(steps.back().loss));
}

// A checkpoint between two exchanges has what each island holds: the run goes on to the bit.
TEST(IslandRuns, GoOnFromACheckpoint) {
  const Folder folder;
  const Model m = tiny("tiny-llama");
  for (const Precision precision : {Precision::kFp32, Precision::kMixed}) {
    const auto run = [&](std::int64_t steps, const Plan& p, const Training& t, bool force = false) {
      exec::RunOptions o = islands_run(steps);
      o.checkpoints = folder.path / name_of(precision);
      o.checkpoint_every = 3;
      o.resume = true;
      o.force = force;
      return train(m, p, t, stack(), o);
    };
    const Training t = adamw(2, precision);
    const auto whole = train(m, on_islands(plan(1, 2, 2, 1), 2), t, stack(), islands_run(7));
    run(3, on_islands(plan(1, 1, 2, 0), 2), t);
    const auto rest = run(7, on_islands(plan(1, 2, 2, 1), 2), t);
    ASSERT_EQ(rest.first_step, 3);
    ASSERT_EQ(rest.steps.size(), 4U);
    for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(rest.steps[s].loss, whole.steps[s + 3].loss) << s;
    EXPECT_EQ(rest.parameters, whole.parameters);
    // Another way to exchange is another training; so are other islands, which --force allows.
    EXPECT_THROW(run(9, on_islands(plan(1, 1, 2, 0), 2), adamw(3, precision)), InputError);
    EXPECT_THROW(run(9, on_islands(plan(1, 1, 2, 0), 4), t), InputError);
    const auto more = run(8, on_islands(plan(1, 1, 1, 0), 4), t, true);
    ASSERT_EQ(more.steps.size(), 1U);
    EXPECT_TRUE(std::isfinite(more.steps[0].loss));
    Training alone = t;
    alone.outer.reset();
    const auto one = run(9, on_islands(plan(1, 1, 2, 0), 1), alone, true);
    ASSERT_EQ(one.steps.size(), 1U);
    EXPECT_TRUE(std::isfinite(one.steps[0].loss));
  }
}

}  // namespace
}  // namespace orrery
