// SPDX-License-Identifier: Apache-2.0
//
// Updates that spare memory: moments in 8 and 16 bits, and updates in the backward pass.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

Training in_recipe(Precision precision, Math math = Math::kBf16) {
  return {.global_batch = kBatch, .sequence = 8, .precision = precision, .math = math};
}

// Units are the same in all plans that keep tensors whole.
Stack piece_by_piece() {
  Stack s = stack();
  s.bucket = Bytes{1};
  return s;
}

double difference(const exec::LogicalTensors& a, const exec::LogicalTensors& b) {
  double off = 0, size = 0;
  for (const auto& [name, reference] : b) {
    for (std::size_t i = 0; i < reference.size(); ++i) {
      off += std::pow(static_cast<double>(a.at(name)[i]) - static_cast<double>(reference[i]), 2);
      size += std::pow(static_cast<double>(reference[i]), 2);
    }
  }
  return std::sqrt(off / size);
}

struct Narrow {
  Precision precision, wide;
};
constexpr Narrow kNarrow[] = {
    {Precision::kAdam8bit, Precision::kMixed},           {Precision::kPureBf16, Precision::kNoMaster},
    {Precision::kAdamBf16, Precision::kMixed},           {Precision::kMegatronAdamBf16, Precision::kMegatron},
    {Precision::kPrecisionAware, Precision::kMegatron},  {Precision::kPrecisionAwareBf16, Precision::kMixed},
    {Precision::kPureBf16Adam8bit, Precision::kNoMaster}};

// Narrow moments are another rounding of the same function: parameters differ from those of fp32's moments,
// and it learns as well.
TEST(NarrowMoments, LearnAsWideOnesDo) {
  for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
    for (const Narrow& n : kNarrow) {
      const auto run = [&](Precision p) {
        return train(tiny(preset), plan(1, 1, 1, 0, 4), in_recipe(p), stack(), small_run(40));
      };
      const auto narrow = run(n.precision), wide = run(n.wide);
      SCOPED_TRACE(std::string(preset) + " " + std::string(name_of(n.precision)));
      EXPECT_EQ(narrow.steps[0].loss, wide.steps[0].loss);
      EXPECT_GT(difference(narrow.parameters, wide.parameters), 1e-4);
      EXPECT_LT(narrow.steps.back().loss, 0.9 * narrow.steps.front().loss);
      EXPECT_LT(narrow.steps.back().loss, 1.1 * wide.steps.back().loss);
    }
  }
}

// Adam's first update is the learning rate against the gradient's sign, whatever the moments are rounded to.
// A parted master that lies halfway between two parameters may be rounded the other way: of 2^16 masters one.
TEST(NarrowMoments, TheFirstUpdateIsTheSameOfAll) {
  for (const Narrow& n : kNarrow) {
    const auto run = [&](Precision p) {
      return train(tiny("tiny-llama"), plan(1, 1, 1, 0), in_recipe(p), stack(), small_run(1));
    };
    const auto narrow = run(n.precision).parameters, wide = run(n.wide).parameters;
    if (!bytes_per_parameter(n.precision).splits_master()) {
      EXPECT_TRUE(narrow == wide) << name_of(n.precision);
      continue;
    }
    std::size_t elements = 0, differ = 0;
    for (const auto& [name, values] : wide) {
      elements += values.size();
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float other = narrow.at(name)[i];
        if (other == values[i]) continue;
        ++differ;
        EXPECT_GT(std::abs(other), std::abs(values[i]));
        EXPECT_NEAR(other, values[i], std::ldexp(std::abs(values[i]), -7));
      }
    }
    EXPECT_LE(differ, 8 * elements / 65536) << name_of(n.precision);
  }
}

TEST(NarrowMoments, PlansThatMoveDataChangeNoBit) {
  for (const Narrow& n : kNarrow) {
    Model m = tiny("tiny-llama");
    m.tied_embeddings = false;
    const Training t = in_recipe(n.precision);
    const auto expected = train(m, plan(1, 1, 1, 0), t, piece_by_piece(), small_run(3));
    for (const Plan& p : {plan(1, 4, 1, 0), with(plan(1, 1, 1, 0), Recompute::kFull),
                          with(plan(1, 2, 1, 0), Schedule::kZeroBubbleH1)}) {
      const auto actual = train(m, p, t, piece_by_piece(), small_run(3));
      EXPECT_TRUE(actual.parameters == expected.parameters) << short_name(p) << " " << name_of(n.precision);
    }
    // Shards begin their blocks where they begin.
    for (const Plan& p : {plan(1, 1, 2, 1), plan(1, 1, 4, 3), sp(plan(2, 1, 2, 2))}) {
      const auto actual = train(m, p, t, piece_by_piece(), small_run(3));
      EXPECT_NEAR(actual.steps[2].loss, expected.steps[2].loss, 0.01 * expected.steps[2].loss)
          << short_name(p);
    }
  }
}

// Checkpoints hold moments in fp32, so that a run goes on in another plan, and in another recipe. In bf16 to
// the bit; in 8 bits a block's scale may be rounded once more.
TEST(NarrowMoments, CheckpointsGoOn) {
  const fs::path folder = fs::temp_directory_path() / ("orrery-moments-" + std::to_string(::getpid()));
  for (const Narrow& n : kNarrow) {
    fs::remove_all(folder);
    const Model m = tiny("tiny-gpt");
    const Training t = in_recipe(n.precision);
    const Plan p = sp(plan(2, 2, 2, 1));
    exec::RunOptions o = small_run(6);
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
    if (bytes_per_parameter(n.precision).moment == 2) {
      EXPECT_TRUE(rest.parameters == whole.parameters);
    }
    EXPECT_NEAR(rest.steps[1].loss, whole.steps[5].loss, 0.002 * whole.steps[5].loss);
    const auto wide = train(m, plan(1, 1, 2, 3), in_recipe(n.wide), stack(), o);
    EXPECT_NEAR(wide.steps[1].loss, whole.steps[5].loss, 0.01 * whole.steps[5].loss);
  }
  fs::remove_all(folder);
}

// A parted master is a master. Few roundings differ, so that in 40 steps parameters are nearer to those of a
// whole master than those without one, and losses too.
TEST(NarrowMoments, PartedMastersAreMasters) {
  for (const auto& [parted, whole] : {std::pair{Precision::kPrecisionAware, Precision::kMegatronAdamBf16},
                                      std::pair{Precision::kPrecisionAwareBf16, Precision::kAdamBf16}}) {
    const auto run = [&](Precision p, std::int64_t steps) {
      return train(tiny("tiny-llama"), sp(plan(2, 1, 2, 1, 4)), in_recipe(p), stack(), small_run(steps));
    };
    EXPECT_NEAR(run(parted, 1).steps[0].loss, run(whole, 1).steps[0].loss, 1e-4);
    const auto few = run(parted, 40), all = run(whole, 40), none = run(Precision::kPureBf16, 40);
    const double off = difference(few.parameters, all.parameters);
    EXPECT_GT(off, 0);
    EXPECT_LT(2 * off, difference(none.parameters, all.parameters)) << name_of(parted);
    EXPECT_NEAR(few.steps.back().loss, all.steps.back().loss, 0.005 * all.steps.back().loss);
  }
}

// --- updates in the backward pass ----------------------------------------------------------------------

Training without_clipping(Precision precision, Math math) {
  Training t = in_recipe(precision, math);
  t.clip = 0;
  return t;
}
Plan whole_batch(std::int64_t tp = 1) {
  Plan p = plan(tp, 1, 1, 0, kBatch);
  return p;
}
Plan in_backward(Plan p) {
  p.update_in_backward = true;
  return p;
}

TEST(UpdateInBackward, ChangesNoBit) {
  const Training recipes[] = {without_clipping(Precision::kFp32, Math::kFp32),
                              without_clipping(Precision::kSgd, Math::kFp32),
                              without_clipping(Precision::kMixed, Math::kBf16),
                              without_clipping(Precision::kPrecisionAwareBf16, Math::kBf16),
                              without_clipping(Precision::kPureBf16Adam8bit, Math::kBf16)};
  for (const Training& recipe : recipes) {
    for (const char* preset : {"tiny-gpt", "tiny-llama"}) {
      for (const Plan& p : {whole_batch(), whole_batch(2), with(whole_batch(), Recompute::kFull),
                            parts_of_loss(with(whole_batch(), Recompute::kSelective), 4)}) {
        const Model m = tiny(preset);
        const auto after = train(m, p, recipe, stack(), small_run(3)),
                   within = train(m, in_backward(p), recipe, stack(), small_run(3));
        SCOPED_TRACE(std::string(preset) + " " + short_name(p) + " " +
                     std::string(name_of(recipe.precision)));
        EXPECT_EQ(within.steps[2].loss, after.steps[2].loss);
        EXPECT_TRUE(within.parameters == after.parameters);
        EXPECT_NE(within.steps[2].loss, within.steps[0].loss);
      }
    }
  }
}

// Adapters alone are trained: of frozen weights there is nothing to update.
TEST(UpdateInBackward, OfAdapters) {
  Training t = without_clipping(Precision::kFp32, Math::kFp32);
  t.adapter = Adapter{.rank = 4, .alpha = 8};
  const Model m = tiny("tiny-llama");
  const auto after = train(m, whole_batch(), t, stack(), small_run(3)),
             within = train(m, in_backward(whole_batch()), t, stack(), small_run(3));
  EXPECT_TRUE(within.parameters == after.parameters);
}

// Of a parameter 2 bytes, a gradient of 2 and moments of 8 are 12. Without gradients, but for two of the
// largest unit's, 10.
TEST(UpdateInBackward, SparesTheMemoryOfGradients) {
  Model m = preset_model("llama-2-7b");
  Training t = without_clipping(Precision::kNoMaster, Math::kBf16);
  t.sequence = 128;
  const auto gradients = [&](bool update_in_backward) {
    Plan p;
    p.update_in_backward = update_in_backward;
    t.global_batch = 1;
    const auto program = program::compile(m, p, t, Stack{});
    std::int64_t sum = 0, largest = 0;
    for (const program::Buffer& b : program.classes[0].buffers) {
      if (b.cls == program::BufferClass::kGradient) sum += b.bytes.value;
    }
    for (const program::Unit& u : program.classes[0].units) largest = std::max(largest, 2 * u.padded);
    return std::pair(sum, largest);
  };
  const auto [kept, largest] = gradients(false);
  EXPECT_EQ(kept, 2 * count_parameters(m));
  EXPECT_EQ(gradients(true).first, 2 * largest);
  // A layer of 4 x 4096^2 + 3 x 4096 x 11008 elements and two norms, with the head's norm.
  EXPECT_EQ(largest, 2 * (202'383'360 + 4096));
}

TEST(UpdateInBackward, IsRefusedWhereGradientsAreNotComplete) {
  const auto problem = [](Plan p, Training t) -> std::string {
    p.update_in_backward = true;
    t.global_batch = p.global_batch();
    try {
      program::check_plan(tiny("tiny-llama"), p, t, {"s.json", "/plan"});
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const Training t = without_clipping(Precision::kFp32, Math::kFp32);
  EXPECT_EQ(problem(whole_batch(), t), "");
  const std::string several =
      "s.json: /plan/update_in_backward: gradients are complete when several stages, replicas or "
      "micro-batches gave "
      "theirs; allowed: false, or pp, dp, cp, islands and micro_batches of 1";
  EXPECT_EQ(problem(plan(1, 1, 1, 0), t), several);
  EXPECT_EQ(problem(plan(1, 2, 1, 0, kBatch), t), several);
  EXPECT_EQ(problem(plan(1, 1, 2, 0, kBatch / 2), t), several);
  EXPECT_EQ(problem(whole_batch(), in_recipe(Precision::kFp32, Math::kFp32)),
            "s.json: /plan/update_in_backward: gradients are clipped by the norm of all of them; allowed: "
            "false, or "
            "training.clip 0");
  Training lamb = t;
  lamb.lamb = true;
  EXPECT_NE(problem(whole_batch(), lamb).find("look at whole tensors"), std::string::npos);
}

}  // namespace
}  // namespace orrery
