// SPDX-License-Identifier: Apache-2.0
//
// What passes take: against the engine, and against what memory and arithmetic allow.
#include <gtest/gtest.h>

#include <cmath>

#include "sim/serving/passes.h"

namespace orrery::sim {
namespace {

struct ServedModel {
  Problem problem;
  std::unique_ptr<Topology> topology;
};
ServedModel served(const char* model, const char* topology, const Serving& serving = {},
                   std::int64_t nodes = 1) {
  Scenario s;
  s.model = preset_model(model);
  s.cluster = {topology, nodes};
  const DataFolders data;
  ServedModel out;
  Stack stack = load_serving_stack(serving.stack, Cursor{}, data);
  out.problem = served_problem(resolve(std::move(s), Cursor{}, data), serving, std::move(stack));
  out.topology = std::make_unique<Topology>(out.problem.cluster);
  return out;
}

// At sizes of the grid a decode and a prefill are what the engine says, to the rounding of their parts. A
// stage of a pipeline that has more than an even share, here that with the head, paces its lanes.
TEST(ServingPasses, AreTheEnginesOnTheGrid) {
  const ServedModel s = served("llama-3-8b", "dgx-h100");
  const auto expect = [](double got, double engine, const Plan& plan) {
    EXPECT_GE(got, 0.99 * engine) << plan.tp << " " << plan.pp;
    EXPECT_LE(got, (plan.pp == 1 ? 1.01 : 1.05) * engine) << plan.tp << " " << plan.pp;
  };
  for (const Plan& plan : {Plan{.tp = 1}, Plan{.tp = 4}, Plan{.tp = 2, .pp = 2}}) {
    const PassModel passes(s.problem, *s.topology, plan, 2);
    for (const std::int64_t sequences : {1, 32, 96}) {
      const double engine = seconds(passes.through_engine(sequences, 1, 1500));
      expect(seconds(passes.decode(sequences, 1500)), engine, plan);
    }
    for (const std::int64_t tokens : {512, 4096}) {
      const double engine = seconds(passes.through_engine(1, tokens, 0));
      expect(seconds(passes.prefill(tokens)), engine, plan);
    }
  }
}

// Between two sizes of the grid it is within 5 % of the engine's.
TEST(ServingPasses, AreNearTheEnginesBetweenTheGrid) {
  const ServedModel s = served("llama-3-8b", "dgx-h100");
  const PassModel passes(s.problem, *s.topology, {.tp = 2}, 2);
  for (const std::int64_t sequences : {3, 40, 83, 150, 333}) {
    const double engine = seconds(passes.through_engine(sequences, 1, 700));
    EXPECT_NEAR(seconds(passes.decode(sequences, 700)), engine, 0.05 * engine) << sequences;
  }
}

// A decode reads all weights and the whole cache: no faster than memory gives them, and not 2.5 times as
// slow.
TEST(ServingPasses, DecodesAreBoundByMemory) {
  const ServedModel s = served("llama-3-8b", "dgx-h100");
  const PassModel passes(s.problem, *s.topology, {}, 2);
  const double bandwidth = static_cast<double>(s.problem.devices.front().memory_bandwidth.value);
  const double weights = 2 * (32.0 * 218'103'808 + 128'256.0 * 4096);
  for (const std::int64_t sequences : {1, 16, 64}) {
    for (const double context : {100.0, 4000.0}) {
      const double bytes = weights + static_cast<double>(sequences) * context * 131'072;
      const double overhead = seconds(s.problem.stack.pass_overhead),
                   got = seconds(passes.decode(sequences, context));
      EXPECT_GT(got, bytes / bandwidth + overhead);
      EXPECT_LT(got, 2.5 * bytes / bandwidth + overhead);
    }
  }
}

// Prompts are bound by arithmetic: 2 FLOPs for each parameter and token, at 40 to 90 % of the peak.
TEST(ServingPasses, LongPromptsAreBoundByArithmetic) {
  const ServedModel s = served("llama-3-70b", "dgx-h100");
  const PassModel passes(s.problem, *s.topology, {.tp = 8}, 2);
  const double flops = 2.0 * 68.5e9 * 8192;  // parameters of layers, without the embedding and the head
  const double use = flops / 8 / s.problem.devices.front().half.value / seconds(passes.prefill(8192));
  EXPECT_GT(use, 0.4);
  EXPECT_LT(use, 0.9);
}

TEST(ServingPasses, GrowWithSequencesContextAndTokens) {
  const ServedModel s = served("qwen3-30b-a3b", "dgx-h100");
  const PassModel passes(s.problem, *s.topology, {.tp = 2}, 2);
  Time before{0};
  for (const std::int64_t n : {1, 2, 5, 16, 50, 128, 200}) {
    const Time t = passes.decode(n, 1000);
    EXPECT_GE(t, before) << n;
    before = t;
  }
  EXPECT_GT(passes.decode(32, 8000), passes.decode(32, 1000));
  EXPECT_GT(passes.prefill(4000), passes.prefill(2000));
  // A part of a prompt beside decodes adds less than it takes alone: the weights are read once.
  const PromptPart part{256, 0};
  const double both = seconds(passes.time({32, 1000, {&part, 1}}));
  EXPECT_LT(both, seconds(passes.decode(32, 1000)) + seconds(passes.prefill(256)));
  EXPECT_GT(both, seconds(passes.decode(32, 1000)));
}

// Of 128 experts one token chooses 8: a decode of one sequence reads their weights and no others'.
TEST(ServingPasses, FewTokensReadFewExperts) {
  const ServedModel s = served("qwen3-30b-a3b", "dgx-h100");
  const PassModel passes(s.problem, *s.topology, {}, 2);
  const double one = seconds(passes.decode(1, 100)), many = seconds(passes.decode(256, 100));
  const double bandwidth = static_cast<double>(s.problem.devices.front().memory_bandwidth.value);
  const double all = 2.0 * 30.5e9 / bandwidth;  // s to read every parameter
  EXPECT_LT(one - seconds(s.problem.stack.pass_overhead), 0.7 * all);
  EXPECT_GT(many, all);
}

// Llama-3-8B has 8.03e9 parameters; in 8 bits those of its layers' products, 6.98e9, take half.
TEST(ServingPasses, MemoryIsWeightsAndCache) {
  const ServedModel wide = served("llama-3-8b", "dgx-h100");
  const PassModel passes(wide.problem, *wide.topology, {}, 2);
  const ServedMemory m = passes.memory(4096, 64);
  EXPECT_NEAR(static_cast<double>(m.weights), 2 * 8.03e9, 0.01e9);
  EXPECT_EQ(passes.cache_bytes(1000), 131'072'000);
  EXPECT_GT(m.workspace, 4096 * 4096 * 2);
  EXPECT_EQ(m.device, std::int64_t{80} << 30);
  Serving narrow;
  narrow.weights = ServedFormat::kFp8;
  const ServedModel eight = served("llama-3-8b", "dgx-h100", narrow);
  const PassModel in_eight(eight.problem, *eight.topology, {}, 1);
  EXPECT_EQ(m.weights - in_eight.memory(4096, 64).weights, 32LL * 218'103'808);
  EXPECT_EQ(in_eight.cache_bytes(1000), 65'536'000);
  // Each of four stages has a quarter of the layers; the first has the embedding, the last the head.
  const PassModel staged(wide.problem, *wide.topology, {.pp = 4}, 2);
  EXPECT_EQ(staged.cache_bytes(1000), 131'072'000 / 4);
  EXPECT_NEAR(static_cast<double>(staged.memory(4096, 64).weights), 2 * (8.0 * 218.1e6 + 525.3e6), 1e7);
}

// Half as many bytes and twice the rate: a decode of few sequences takes little more than half as long.
TEST(ServingPasses, EightBitWeightsAreReadInHalfTheTime) {
  Serving narrow;
  narrow.weights = ServedFormat::kFp8;
  const ServedModel wide = served("llama-3-70b", "dgx-h200"),
                    eight = served("llama-3-70b", "dgx-h200", narrow);
  const PassModel a(wide.problem, *wide.topology, {.tp = 2}, 2),
      b(eight.problem, *eight.topology, {.tp = 2}, 2);
  const double overhead = seconds(wide.problem.stack.pass_overhead);
  const double share = (seconds(b.decode(4, 500)) - overhead) / (seconds(a.decode(4, 500)) - overhead);
  EXPECT_GT(share, 0.5);
  EXPECT_LT(share, 0.65);
}

}  // namespace
}  // namespace orrery::sim
