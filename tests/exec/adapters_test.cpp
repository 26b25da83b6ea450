// SPDX-License-Identifier: Apache-2.0
//
// Training of adapters: they alone are trained, kept in checkpoints, and exchanged with PEFT.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "exec/checkpoint.h"
#include "exec/hugging_face_weights.h"
#include "exec/parameters.h"
#include "exec/safetensors.h"
#include "tests/exec/small_model.h"
#include "tests/folder.h"

namespace orrery {
namespace {

Training adapters(Precision precision = Precision::kFp32, Math math = Math::kFp32) {
  return {.global_batch = kBatch,
          .sequence = 8,
          .precision = precision,
          .math = math,
          .adapter = Adapter{.rank = 4, .alpha = 16}};
}

exec::RunResult run(const Plan& p, const Training& t, const exec::RunOptions& o) {
  return train(tiny("tiny-llama"), p, t, stack(), o);
}

TEST(AdapterRuns, LearnAndLeaveTheirModelAlone) {
  for (const auto& [precision, math] : {std::pair{Precision::kFp32, Math::kFp32},
                                        {Precision::kMixed, Math::kBf16},
                                        {Precision::kNoMaster, Math::kBf16},
                                        {Precision::kSgd, Math::kFp32}}) {
    const auto r = run(sp(plan(2, 2, 2, 3)), adapters(precision, math), small_run(12));
    EXPECT_LT(r.steps.back().loss, r.steps.front().loss - 0.02) << name_of(precision);
    // Gradients and parameters are of adapters alone, two for each of four matrices in four layers.
    EXPECT_EQ(r.gradients.size(), 4U * 4 * 2);
    for (const auto& [name, values] : r.parameters) EXPECT_NE(name.find("/lora_"), std::string::npos) << name;
  }
}

// B begins as zeros: the first loss is the model's own, and the first gradient of A is zero.
TEST(AdapterRuns, BeginAsTheModel) {
  Training whole = adapters();
  whole.adapter.reset();
  const auto model = run(plan(1, 1, 1, 0), whole, small_run(1));
  const auto r = run(plan(1, 1, 1, 0), adapters(), small_run(2));
  EXPECT_EQ(r.steps[0].loss, model.steps[0].loss);
  for (const auto& [name, values] : r.gradients) {
    const bool zero = std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
    EXPECT_EQ(zero, name.find("/lora_a") != std::string::npos) << name;
  }
}

// Uniform within b = 1 / sqrt(inputs): the deviation is b / sqrt(3), and no number is beyond b.
TEST(AdapterRuns, ABeginsUniform) {
  const auto program = program::compile(tiny("tiny-llama"), plan(1, 1, 1, 0), adapters(), stack());
  int seen = 0;
  for (const program::Parameter& p : program.classes.front().parameters) {
    if (p.name != "layer0/attn/qkv/lora_a/weight") continue;
    ++seen;
    ASSERT_EQ(p.cols, 32);
    const exec::InitialValues values(7, p);
    double sum = 0, squares = 0, most = 0;
    const std::int64_t n = p.rows * p.cols;
    for (std::int64_t i = 0; i < n; ++i) {
      const double x = values.at(i);
      sum += x;
      squares += x * x;
      most = std::max(most, std::abs(x));
    }
    const double bound = 1 / std::sqrt(32.0);
    EXPECT_LE(most, bound);
    EXPECT_GT(most, 0.97 * bound);
    // 384 numbers: their mean is off by 1 / sqrt(384) of a deviation.
    EXPECT_NEAR(sum / static_cast<double>(n), 0, 4 * bound / std::sqrt(3.0 * 384));
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(n)), bound / std::sqrt(3.0), 0.1 * bound);
  }
  EXPECT_EQ(seen, 1);
}

// A run that stops and goes on under another plan ends as one that never stopped, and its checkpoint holds
// adapters and their moments alone.
TEST(AdapterRuns, GoOnFromACheckpoint) {
  const Folder folder;
  exec::RunOptions o = small_run(6);
  const auto whole = run(plan(1, 1, 1, 0), adapters(), o);
  o.checkpoints = folder.path;
  o.checkpoint_every = 3;
  o.keep_checkpoints = 0;
  run(plan(1, 1, 4, 2), adapters(), o);
  std::filesystem::remove_all(folder.path / "step-00000006");
  const auto program = program::compile(tiny("tiny-llama"), plan(1, 1, 1, 0), adapters(), stack());
  std::vector<std::string> passed_over;
  const auto kept = exec::restore_newest(folder.path, program, passed_over);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->step, 3);
  EXPECT_EQ(kept->states.size(), 3U);
  EXPECT_EQ(kept->states[0].size(), 4U * 4 * 2);
  o.resume = true;
  const auto resumed = run(plan(1, 2, 2, 1), adapters(), o);
  EXPECT_EQ(resumed.first_step, 3);
  EXPECT_NEAR(resumed.steps.back().loss, whole.steps.back().loss, 1e-6);

  // Another alpha is another training.
  std::filesystem::remove_all(folder.path / "step-00000006");
  Training other = adapters();
  other.adapter->alpha = 8;
  EXPECT_THROW(run(plan(1, 1, 1, 0), other, o), Error);
  // And a checkpoint of all parameters is none of adapters.
  other.adapter.reset();
  EXPECT_THROW(run(plan(1, 1, 1, 0), other, o), Error);
}

// A product that computes GELU in its kernel gives its gradient in that of the next product; an adapter on
// either of them reads, or gives, what lies between.
TEST(AdapterRuns, FusedGeluChangesNothing) {
  Stack fused = stack();
  fused.fused_gelu = true;
  for (const AdapterTarget target : {AdapterTarget::kUp, AdapterTarget::kDown, AdapterTarget::kQuery}) {
    Training t = adapters();
    t.adapter->targets = {target, AdapterTarget::kOutput};
    const auto expected = train(tiny("tiny-gpt"), plan(1, 1, 1, 0), t, stack(), small_run(3));
    const auto actual = train(tiny("tiny-gpt"), plan(1, 1, 1, 0), t, fused, small_run(3));
    for (std::size_t s = 0; s < expected.steps.size(); ++s) {
      EXPECT_NEAR(actual.steps[s].loss, expected.steps[s].loss, 1e-6) << name_of(target);
      EXPECT_NEAR(actual.steps[s].gradient_norm, expected.steps[s].gradient_norm,
                  1e-4 * expected.steps[s].gradient_norm)
          << name_of(target) << ' ' << s;
    }
  }
}

// PEFT's names: of a fused matrix each part has an A and a B. What was written is read back, and a run that
// starts from it goes on where the other ended.
TEST(AdapterRuns, AreKeptAsPeftKeepsThem) {
  const Folder folder;
  const Model model = tiny("tiny-llama");
  Training t = adapters();
  t.adapter->targets = {AdapterTarget::kQuery, AdapterTarget::kValue, AdapterTarget::kDown};
  const auto program = program::compile(model, plan(1, 1, 1, 0), t, stack());
  const auto logical = exec::tensors_of(program);
  const exec::LogicalTensors trained = run(plan(1, 1, 1, 0), t, small_run(3)).parameters;
  exec::write_adapters(folder.path, model, *t.adapter, logical, trained, DType::kFloat32);

  const exec::TensorFiles files(folder.path / "adapter_model.safetensors");
  EXPECT_EQ(files.tensors().size(), 4U * 3 * 2);
  const std::string layer = "base_model.model.model.layers.2.";
  using Shape = std::vector<std::int64_t>;
  // 8 heads of 4, and 4 of keys and values: 32 and 16 rows; an MLP of 48.
  EXPECT_EQ(files.tensors().at(layer + "self_attn.q_proj.lora_A.weight").shape, (Shape{4, 32}));
  EXPECT_EQ(files.tensors().at(layer + "self_attn.q_proj.lora_B.weight").shape, (Shape{32, 4}));
  EXPECT_EQ(files.tensors().at(layer + "self_attn.v_proj.lora_B.weight").shape, (Shape{16, 4}));
  EXPECT_EQ(files.tensors().at(layer + "mlp.down_proj.lora_A.weight").shape, (Shape{4, 48}));
  // The second A of the fused matrix is that of the values.
  const std::vector<float>& fused = trained.at("layer2/attn/qkv/lora_a/weight");
  EXPECT_EQ(files.read(files.tensors().at(layer + "self_attn.v_proj.lora_A.weight")),
            std::vector<float>(fused.begin() + 4 * 32, fused.end()));
  const Json config = load_json((folder.path / "adapter_config.json").string());
  EXPECT_EQ(config.at("r"), 4);
  EXPECT_EQ(config.at("lora_alpha"), 16);
  EXPECT_EQ(config.at("target_modules"), Json({"down_proj", "q_proj", "v_proj"}));

  exec::Weights read;
  exec::read_adapters(folder.path, model, *t.adapter, logical, read);
  EXPECT_EQ(read.tensors, trained);
  EXPECT_NE(read.identity, "");

  // Two steps from them are others than two from the beginning, by the loss of the first.
  exec::RunOptions o = small_run(1);
  const double fresh = run(plan(1, 1, 1, 0), t, o).steps[0].loss;
  o.weights = &read;
  EXPECT_NE(run(plan(1, 1, 1, 0), t, o).steps[0].loss, fresh);

  Adapter other = *t.adapter;
  other.rank = 8;
  exec::Weights none;
  EXPECT_THROW(exec::read_adapters(folder.path, model, other, logical, none), InputError);
  other = *t.adapter;
  other.alpha = 4;
  EXPECT_THROW(exec::read_adapters(folder.path, model, other, logical, none), InputError);
  // An adapter that the scenario does not have is not passed over.
  other = *t.adapter;
  other.targets.pop_back();
  EXPECT_THROW(exec::read_adapters(folder.path, model, other, logical, none), InputError);
  // GPT-2's queries, keys and values are one matrix in Hugging Face's files, with one adapter.
  const Model gpt = tiny("tiny-gpt");
  const auto of_gpt = program::compile(gpt, plan(1, 1, 1, 0), t, stack());
  EXPECT_THROW(exec::write_adapters(folder.path / "gpt", gpt, *t.adapter, exec::tensors_of(of_gpt), {},
                                    DType::kFloat32),
               InputError);
}

}  // namespace
}  // namespace orrery
