// SPDX-License-Identifier: Apache-2.0
//
// Passes of serving: what they compute and keep, against closed forms and against the training forward.
#include "program/serving.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "../exec/small_model.h"
#include "program/check.h"

namespace orrery {
namespace {

namespace ops = program::ops;

program::Program pass(const Model& model, Plan plan, std::int64_t sequences, std::int64_t tokens,
                      KvCache cache, Training training = {}) {
  plan.micro_batch = sequences;
  const Stack stack;
  return program::compile(model, plan, program::pass_of(training, tokens, cache), stack);
}

double flops(const program::RankClass& rank) {
  double sum = 0;
  for (const program::Segment& s : rank.segments) {
    for (const program::Op& op : s.ops) sum += op.flops;
  }
  return sum;
}

std::int64_t bytes_of_caches(const program::RankClass& rank) {
  std::int64_t sum = 0;
  for (const std::int32_t b : program::cache_buffers(rank))
    sum += rank.buffers[static_cast<std::size_t>(b)].bytes.value;
  return sum;
}

// 2 x layers x KV heads x head x 2 bytes, and of latent attention layers x (rank + turned) x 2.
TEST(Serving, CacheOfATokenIsItsClosedForm) {
  const auto each = [](const char* model, std::int64_t tp) {
    return program::cache_bytes(preset_model(model), tp, 1, 2);
  };
  EXPECT_EQ(each("llama-3-70b", 1), 2 * 80 * 8 * 128 * 2);  // 327,680
  EXPECT_EQ(each("llama-3-70b", 1), 327'680);
  EXPECT_EQ(each("llama-3-70b", 8), 327'680 / 8);
  EXPECT_EQ(each("llama-3-8b", 1), 131'072);
  EXPECT_EQ(each("deepseek-v3-671b", 1), 61 * (512 + 64) * 2);  // 70,272
  EXPECT_EQ(each("deepseek-v3-671b", 8), 70'272);               // every rank has all latents
  // A window of 4,096 tokens keeps as many.
  const Model windowed = preset_model("mistral-7b");
  EXPECT_EQ(program::cache_bytes(windowed, 1, 4096, 2), program::cache_bytes(windowed, 1, 32'768, 2));
  EXPECT_EQ(program::cache_bytes(windowed, 1, 4096, 2), 4096 * 131'072);
  EXPECT_EQ(program::cache_bytes(windowed, 1, 100, 1), 100 * 65'536);
}

TEST(Serving, ProgramsHoldAsMuchCacheAsTheClosedForm) {
  for (const char* name : {"llama-3-8b", "mistral-7b", "deepseek-v3-671b", "qwen3-30b-a3b", "gpt2-124m"}) {
    const Model model = preset_model(name);
    if (!program::serving_problem(model, {}).empty()) continue;
    for (const std::int64_t tp : {1, 2}) {
      const auto p = pass(model, {.tp = tp}, 3, 1, {.room = 5000, .cached = 1000});
      EXPECT_EQ(bytes_of_caches(p.classes.front()), 3 * program::cache_bytes(model, tp, 5000, 2)) << name;
    }
  }
}

// Llama-3-8B: a layer's matrices have 4096 (4096 + 2 x 1024) + 4096^2 + 4096 x 28672 + 14336 x 4096 =
// 218,103,808 elements, and the head 128,256 x 4096.
TEST(Serving, DecodeComputesTwiceItsParametersAndItsPairs) {
  const Model model = preset_model("llama-3-8b");
  constexpr std::int64_t kSequences = 4, kCached = 1000;
  const auto p = pass(model, {}, kSequences, 1, {.room = 2000, .cached = kCached});
  const double matrices = 32.0 * 218'103'808 + 128'256.0 * 4096;
  const double attention = 32.0 * 4 * 32 * (kCached + 1) * 128;  // layers x 4 x heads x keys x head
  EXPECT_EQ(flops(p.classes.front()), kSequences * (2 * matrices + attention));
}

// Of tensor ranks each does its share, and the sums of attention and MLP pass between them.
TEST(Serving, TensorRanksShareADecode) {
  const Model model = preset_model("llama-3-8b");
  const KvCache cache{.room = 2000, .cached = 1000};
  const auto one = pass(model, {}, 8, 1, cache), four = pass(model, {.tp = 4}, 8, 1, cache);
  EXPECT_EQ(flops(one.classes.front()), 4 * flops(four.classes.front()));
  std::int64_t sums = 0;
  for (const program::Op& op : four.classes.front().segments.front().ops) {
    const auto* c = op.as<ops::Collective>();
    if (c == nullptr || c->collective != CollectiveKind::kAllReduce) continue;
    EXPECT_EQ(op.payload.value, 8 * 4096 * 2);
    ++sums;
  }
  EXPECT_EQ(sums, 2 * 32 + 1);  // two a layer, and the embedding's
}

// A decode reads every weight of the layers and the head once, and the cache of all tokens.
TEST(Serving, DecodeReadsItsWeightsAndItsCache) {
  const Model model = preset_model("llama-3-8b");
  const auto p = pass(model, {}, 16, 1, {.room = 2000, .cached = 1000});
  double weights = 0, cache = 0;
  for (const program::Op& op : p.classes.front().segments.front().ops) {
    if (const auto* g = op.as<ops::Gemm>()) weights += 2.0 * static_cast<double>(g->n * g->k);
    if (op.is<ops::CachedAttention>()) cache += static_cast<double>(op.traffic.value);
  }
  EXPECT_EQ(weights, 2 * (32.0 * 218'103'808 + 128'256.0 * 4096));
  // The cached tokens and the new one, and 16 rows of queries, keys, values and results for each of 32
  // layers.
  EXPECT_EQ(cache, 16.0 * 1001 * 131'072 + 32.0 * 16 * 2 * (4096 + 2048 + 4096));
}

// Query i of q sees c + i + 1 tokens, at most w: counted one by one.
TEST(Serving, PairsSeenAreThoseOfEachQuery) {
  for (const std::int64_t queries : {1, 2, 7, 64}) {
    for (const std::int64_t cached : {0, 1, 5, 100}) {
      for (const std::int64_t window : {0, 1, 4, 6, 70, 1000}) {
        double pairs = 0;
        for (std::int64_t i = 0; i < queries; ++i) {
          const std::int64_t all = cached + i + 1;
          pairs += static_cast<double>(window > 0 ? std::min(window, all) : all);
        }
        EXPECT_EQ(ops::pairs_seen(queries, cached, window), pairs)
            << queries << " " << cached << " " << window;
      }
    }
  }
}

// The ops of the layers of a prefill are the training forward's, but for attention, which also keeps.
TEST(Serving, PrefillIsTheTrainingForward) {
  const Stack stack;
  for (const std::string kind : {"tiny-llama", "tiny-gpt", "gemma", "mixed", "neox", "experts", "sinks"}) {
    const Model model = tiny_of(kind);
    const Training training{.global_batch = 3, .sequence = 12};
    const Plan plan{.tp = 2, .micro_batch = 3};
    const auto forward = program::compile(model, plan, training, stack);
    const auto prefill = pass(model, {.tp = 2}, 3, 12, {.room = 12}, training);
    const auto& of_training = forward.classes.front().segments.front().ops;
    std::vector<const program::Op*> layers, served;
    for (const program::Op& op : of_training) {
      if (op.layer >= 0) layers.push_back(&op);
    }
    for (const program::Op& op : prefill.classes.front().segments.front().ops) {
      if (op.layer >= 0) served.push_back(&op);
    }
    ASSERT_EQ(layers.size(), served.size()) << kind;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      EXPECT_EQ(layers[i]->name, served[i]->name);
      const auto* attention = layers[i]->as<ops::Attention>();
      if (attention == nullptr) {
        EXPECT_EQ(program::key_of(layers[i]->kind), program::key_of(served[i]->kind)) << layers[i]->name;
        continue;
      }
      // Half a square of pairs counts the diagonal by half: s (s + 1) / 2 over s^2 / 2.
      if (attention->window > 0) continue;
      EXPECT_DOUBLE_EQ(served[i]->flops, layers[i]->flops * 13 / 12);
    }
  }
}

TEST(Serving, ProgramsOfPassesAreSound) {
  for (const std::string kind :
       {"tiny-llama", "tiny-gpt", "gemma", "mixed", "falcon", "post-norm", "experts", "latent", "sinks"}) {
    const Model model = tiny_of(kind);
    for (const Plan& plan :
         {Plan{}, Plan{.tp = 2}, Plan{.pp = 2, .micro_batches = 3}, Plan{.tp = 2, .pp = 2}}) {
      for (const std::int64_t tokens : {1, 5}) {
        const auto p = pass(model, plan, 2, tokens, {.room = 16, .cached = 8});
        const auto problems = program::check(p, 5);
        EXPECT_TRUE(problems.empty()) << kind << ": " << (problems.empty() ? "" : problems.front());
        for (const program::RankClass& rank : p.classes) {
          ASSERT_EQ(rank.segments.size(), 1U);
          EXPECT_EQ(rank.steps.size(), static_cast<std::size_t>(plan.micro_batches));
          EXPECT_EQ(rank.at_peak[static_cast<std::size_t>(program::BufferClass::kGradient)], Bytes{0});
          EXPECT_EQ(rank.at_peak[static_cast<std::size_t>(program::BufferClass::kOptimizer)], Bytes{0});
        }
      }
    }
  }
}

// The latent is absorbed where that has fewer FLOPs: for one query behind many tokens, not for a prompt.
TEST(Serving, LatentAttentionTakesTheCheaperOrder) {
  ops::CachedLatentAttention a{{.batch = 2,
                                .queries = 1,
                                .cached = 4095,
                                .room = 8192,
                                .heads = 128,
                                .turned = 64,
                                .plain = 128,
                                .value = 128,
                                .rank = 512}};
  EXPECT_TRUE(a.absorbs());
  // 2 x 2 x (128 (128 + 128) 512 for the query + 128 x 4096 pairs x (2 x 512 + 64)).
  EXPECT_EQ(a.flops(), 2.0 * 2 * (128.0 * 256 * 512 + 128.0 * 4096 * 1088));
  a.queries = 4096;
  a.cached = 0;
  EXPECT_FALSE(a.absorbs());
  EXPECT_EQ(a.flops(), 2.0 * 2 * (4096.0 * 128 * 256 * 512 + 128.0 * (4096.0 * 4097 / 2) * 320));
}

TEST(Serving, SaysWhichModelsAreNotServed) {
  EXPECT_EQ(program::serving_problem(preset_model("llama-3-8b"), {}), "");
  EXPECT_NE(program::serving_problem(tiny_of("encoder"), {}), "");
  EXPECT_NE(program::serving_problem(tiny_of("vit"), {}), "");
  EXPECT_NE(program::serving_problem(tiny_of("bags"), {}), "");
  Model further = preset_model("llama-3-8b");
  further.mtp_layers = 1;
  EXPECT_NE(program::serving_problem(further, {}).find("mtp_layers 0"), std::string::npos);
  EXPECT_NE(program::serving_problem(tiny_of("decoder"), {}), "");
  EXPECT_NE(program::serving_problem(preset_model("llama-3-8b"), {.cp = 2}), "");
}

}  // namespace
}  // namespace orrery
