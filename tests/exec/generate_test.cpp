// SPDX-License-Identifier: Apache-2.0
//
// Greedy answers with a cache are those of the training forward, run on the whole of each prefix.
#include "exec/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "exec/cpu_executor.h"
#include "exec/parameters.h"
#include "exec/shared_world.h"
#include "small_model.h"

namespace orrery {
namespace {

using Tokens = std::vector<std::vector<std::int32_t>>;

// Logits of all positions, from the forward of a training program with the weights of a seed.
class TrainingForward {
 public:
  TrainingForward(const Model& model, std::int64_t sequences, std::int64_t tokens, std::uint64_t seed)
      : program_(program::compile(model, {.micro_batch = sequences},
                                  {.global_batch = sequences,
                                   .sequence = tokens,
                                   .precision = Precision::kFp32,
                                   .math = Math::kFp32},
                                  Stack{})),
        world_(1, std::chrono::milliseconds(60'000)),
        communicator_(world_.communicator(0)),
        place_(program_, 0),
        executor_(place_, options_, *communicator_, world_.abort()) {
    executor_.clear();
    exec::write_initial(executor_, place_, seed);
  }

  std::vector<float> logits(const std::vector<std::int32_t>& tokens) {
    const program::RankClass& rank = place_.rank_class;
    for (const program::Feed& f : rank.feeds)
      executor_.write(place_.offset({f.buffer}, 0), std::as_bytes(std::span(tokens)));
    executor_.run({.what = exec::PassOf::kForward});
    const auto named = [&](const char* name) {
      return std::find_if(rank.buffers.begin(), rank.buffers.end(),
                          [&](const program::Buffer& b) { return b.name == name; });
    };
    auto buffer = named("head/soft_cap/out");
    if (buffer == rank.buffers.end()) buffer = named("head/out");
    EXPECT_EQ(buffer->life, program::Life::kSaved);  // so that it is still there
    std::vector<float> out(static_cast<std::size_t>(buffer->bytes.value) / sizeof(float));
    executor_.read(place_.offset({static_cast<std::int32_t>(buffer - rank.buffers.begin())}, 0),
                   std::as_writable_bytes(std::span(out)));
    return out;
  }

 private:
  const program::Program program_;
  const exec::RunOptions options_;
  exec::SharedWorld world_;
  std::unique_ptr<exec::Communicator> communicator_;
  const exec::Placement place_;
  exec::CpuExecutor executor_;
};

constexpr std::int64_t kPrompt = 6, kAnswer = 9;
constexpr std::uint64_t kSeed = 5;

Tokens prompts_of(const Model& model) {
  Tokens out(3);
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::int64_t t = 0; t < kPrompt; ++t)
      out[i].push_back(
          static_cast<std::int32_t>((17 * static_cast<std::int64_t>(i) + 5 * t * t + 3) % model.vocab));
  }
  return out;
}

exec::Generated answers(const Model& model, const Tokens& prompts, std::int64_t tp = 1) {
  return exec::generate(model, {.tp = tp}, {.precision = Precision::kFp32, .math = Math::kFp32}, Stack{},
                        prompts, {.tokens = kAnswer, .seed = kSeed});
}

class Generate : public testing::TestWithParam<std::string> {};

TEST_P(Generate, ChoosesWhatTheTrainingForwardFindsLikeliest) {
  const Model model = tiny_of(GetParam());
  const Tokens prompts = prompts_of(model);
  const exec::Generated got = answers(model, prompts);
  ASSERT_EQ(got.tokens.size(), prompts.size());
  const std::int64_t all = kPrompt + kAnswer;
  std::vector<std::int32_t> whole;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(std::ssize(got.tokens[i]), kAnswer);
    whole.insert(whole.end(), prompts[i].begin(), prompts[i].end());
    whole.insert(whole.end(), got.tokens[i].begin(), got.tokens[i].end());
  }
  // A token sees none behind it, so one pass over the whole has the logits of every prefix.
  const std::vector<float> logits = TrainingForward(model, std::ssize(prompts), all, kSeed).logits(whole);
  std::set<std::int32_t> chosen;
  for (std::int64_t i = 0; i < std::ssize(prompts); ++i) {
    for (std::int64_t t = kPrompt; t < all; ++t) {
      const float* const row = logits.data() + (i * all + t - 1) * model.vocab;
      const auto likeliest = static_cast<std::int32_t>(std::max_element(row, row + model.vocab) - row);
      EXPECT_EQ(whole[static_cast<std::size_t>(i * all + t)], likeliest) << "prompt " << i << ", token " << t;
      chosen.insert(likeliest);
    }
  }
  EXPECT_GT(chosen.size(), 1U);  // else the comparison says little
}

INSTANTIATE_TEST_SUITE_P(Models, Generate,
                         testing::Values("tiny-llama", "tiny-gpt", "neox", "falcon", "post-norm", "sandwich",
                                         "mixed", "gemma", "experts", "latent", "sinks"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GenerateRanks, TensorRanksGiveTheSameAnswers) {
  for (const char* kind : {"tiny-llama", "gemma", "latent", "sinks"}) {
    const Model model = tiny_of(kind);
    const Tokens prompts = prompts_of(model);
    EXPECT_EQ(answers(model, prompts, 2).tokens, answers(model, prompts).tokens) << kind;
  }
}

// The control: with another prompt, or other weights, the answers are others.
TEST(GenerateRanks, AnswersDependOnPromptAndWeights) {
  const Model model = tiny_of("tiny-llama");
  Tokens prompts = prompts_of(model);
  const exec::Generated first = answers(model, prompts);
  prompts[0][0] = (prompts[0][0] + 1) % 64;
  const exec::Generated other = answers(model, prompts);
  EXPECT_NE(first.tokens[0], other.tokens[0]);  // the first token of the prompt is seen at every position
  EXPECT_EQ(first.tokens[1], other.tokens[1]);
  const auto seeded = exec::generate(model, {}, {.precision = Precision::kFp32, .math = Math::kFp32}, Stack{},
                                     prompts_of(model), {.tokens = kAnswer, .seed = kSeed + 1});
  EXPECT_NE(first.tokens, seeded.tokens);
}

TEST(GenerateRanks, TheCacheIsAsLargeAsItsClosedForm) {
  const Model model = tiny_of("tiny-llama");  // 4 layers, 4 KV heads of 4 elements, fp32
  const exec::Generated got = answers(model, prompts_of(model));
  EXPECT_EQ(got.cache.value, 3 * (kPrompt + kAnswer) * 4 * 2 * 4 * 4 * 4);
  EXPECT_EQ(std::ssize(got.decode_s), kAnswer - 1);
}

}  // namespace
}  // namespace orrery
