// SPDX-License-Identifier: Apache-2.0
//
// The numbers of a prediction that people quote: dollars, days, utilisation, memory, intervals. Each is
// computed here from the step time alone, with the arithmetic written out.
#include <gtest/gtest.h>

#include <cmath>

#include "planner/evaluate.h"

namespace orrery::planner {
namespace {

Problem load(const char* name) {
  return load_problem(std::string(ORRERY_ROOT) + "/scenarios/" + name + ".json", DataFolders());
}

// Llama-3-70B, 512 sequences of 4096 tokens a step, on eight p4d at the price that was published.
Problem on_p4d() {
  Problem p = load("llama3-70b-p4d");
  p.cluster.node_hour = from_dollars(32.77);
  return p;
}

// 8 x $32.77 is $262.16 an hour: $1 every 13.7321 s. 500 M tokens are 238.41858 steps of 2,097,152 tokens.
TEST(Prices, AreWholeNodesTimesTime) {
  Problem p = on_p4d();
  const sim::Topology topology(p.cluster);
  const Predicted x = evaluate(p, topology, *p.scenario.plan).predicted;
  ASSERT_GT(x.step_time_s, 1);
  EXPECT_NEAR(x.cost_per_step_usd, x.step_time_s / 13.73207202, 1e-8 * x.cost_per_step_usd);
  EXPECT_NEAR(x.cost_usd, 238.4185791 * x.cost_per_step_usd, 1e-8 * x.cost_usd);
  EXPECT_NEAR(x.days, 238.4185791 * x.step_time_s / 86400, 1e-8 * x.days);
  EXPECT_NEAR(x.tokens_per_s, 2097152 / x.step_time_s, 1e-6);
  // A trillion tokens are 2,000 times 500 million.
  p.scenario.training.tokens = 1e12;
  const Predicted trillion = evaluate(p, topology, *p.scenario.plan).predicted;
  EXPECT_NEAR(trillion.cost_usd, 2000 * x.cost_usd, 1e-9 * trillion.cost_usd);
  EXPECT_EQ(trillion.cost_per_step_usd, x.cost_per_step_usd);
  // Without a number of tokens there is no run to pay for.
  p.scenario.training.tokens = 0;
  const Predicted endless = evaluate(p, topology, *p.scenario.plan).predicted;
  EXPECT_EQ(endless.cost_usd, 0);
  EXPECT_EQ(endless.days, 0);
  EXPECT_EQ(endless.cost_per_step_usd, x.cost_per_step_usd);
}

// A plan of 8, 9 or 64 ranks holds all eight nodes.
TEST(Prices, NodesThatAreIdleArePaid) {
  Problem p = on_p4d();
  p.scenario.model = preset_model("llama-2-7b");
  p.scenario.training.global_batch = 72;
  const sim::Topology topology(p.cluster);
  for (const std::int64_t dp : {1, 8, 9}) {
    const Plan plan{.dp = dp, .micro_batches = 72 / dp};
    const Predicted x = evaluate(p, topology, plan).predicted;
    EXPECT_NEAR(x.cost_per_step_usd, 8 * 32.77 / 3600 * x.step_time_s, 1e-9 * x.cost_per_step_usd) << dp;
  }
}

// Megatron-core on A100: runs of other studies had both.
TEST(Prices, TheIntervalIsThatOfWhatIsKnown) {
  const Problem p = on_p4d();
  const Predicted x = evaluate(p, sim::Topology(p.cluster), *p.scenario.plan).predicted;
  EXPECT_EQ(p.measured.knowledge, Knowledge::kBoth);
  EXPECT_GT(p.measured.runs, 100);
  EXPECT_DOUBLE_EQ(x.step_time_low_s, p.measured.low * x.step_time_s);
  EXPECT_DOUBLE_EQ(x.step_time_high_s, p.measured.high * x.step_time_s);
  EXPECT_LT(x.step_time_low_s, x.step_time_s);
  EXPECT_LT(x.step_time_s, x.step_time_high_s);
}

// Llama-2-7B: h 4096, 32 layers, feed-forward 11008, 32,000 words. A layer has 4 h^2 + 3 h f = 202,375,168
// matrix parameters, the head 131,072,000. Of a sequence of 2048:
//   layers  2 x 2048 x 32 x 202,375,168 = 26.5257e12
//   scores  4 x 2048^2 x 4096 x 32      =  2.1990e12
//   head    2 x 2048 x 131,072,000      =  0.5369e12   forward, and three times that in all
constexpr double kLayers = 2.0 * 2048 * 32 * 202375168, kScores = 4.0 * 2048 * 2048 * 4096 * 32,
                 kHead = 2.0 * 2048 * 131072000;

Problem llama2_7b() {
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster("dgx-a100", {}, {}, data);
  p.cluster.nodes = 1;
  p.devices = {load_device("a100-80gb", {}, data)};
  p.stack = load_stack("megatron-core", {}, data);
  p.scenario.model = preset_model("llama-2-7b");
  p.scenario.training = {.global_batch = 8, .sequence = 2048};
  return p;
}

TEST(Utilisation, IsModelFlopsOverThePeakOfAllRanks) {
  Problem p = llama2_7b();
  const double step_flops = 8 * 3 * (kLayers + kScores + kHead);
  // Eight A100 of 312 TFLOP/s for a second.
  EXPECT_NEAR(model_flops_utilisation(p, 8, 1.0), step_flops / (8 * 312e12), 1e-12);
  EXPECT_NEAR(model_flops_utilisation(p, 4, 0.5), step_flops / (4 * 312e12 * 0.5), 1e-12);
  const Plan plan{.dp = 8, .zero = 1};
  const Predicted x = evaluate(p, sim::Topology(p.cluster), plan).predicted;
  EXPECT_NEAR(x.mfu, step_flops / (8 * 312e12 * x.step_time_s), 1e-9);
  EXPECT_EQ(x.hfu, x.mfu);
  // fp32 without TF32 has a sixteenth of the peak: 19.5 TFLOP/s.
  p.scenario.training.precision = Precision::kFp32;
  p.scenario.training.math = Math::kFp32;
  EXPECT_NEAR(model_flops_utilisation(p, 8, 1.0), step_flops / (8 * 19.5e12), 1e-12);
}

// Full recomputation runs the forward of layers again, and never the head: 1 + 28.72 / 87.79 = 1.3272, where
// with the head it would be 4/3. Selective runs the scores again.
TEST(Utilisation, RecomputationLeavesTheHeadOut) {
  const Problem p = llama2_7b();
  const double total = 3 * (kLayers + kScores + kHead);
  const auto factor = [&](Recompute r) {
    Plan plan{.dp = 8};
    plan.recompute = r;
    return recompute_factor(p, plan);
  };
  EXPECT_EQ(factor(Recompute::kNone), 1);
  EXPECT_NEAR(factor(Recompute::kFull), 1 + (kLayers + kScores) / total, 1e-12);
  EXPECT_NEAR(factor(Recompute::kFull), 1.3272, 5e-5);
  EXPECT_NEAR(factor(Recompute::kSelective), 1 + kScores / total, 1e-12);
  EXPECT_NEAR(factor(Recompute::kSelective), 1.02505, 1e-5);
}

// The same from the program: what its recomputed ops compute. Norms, activations and other small ops count no
// FLOPs in either.
TEST(Utilisation, TheRecomputeFactorIsThatOfTheProgram) {
  Problem p = llama2_7b();
  p.stack.flash_attention = false;  // its backward computes the scores again, which no convention counts
  for (const auto& [r, first] :
       {std::pair{Recompute::kSelective, 0}, {Recompute::kFull, 0}, {Recompute::kFull, 8}}) {
    Plan plan{.dp = 8};
    plan.recompute = r;
    plan.recompute_first = first;
    const program::Program program = program::compile(p.scenario.model, plan, p.scenario.training, p.stack);
    double all = 0, again = 0;
    for (const program::Step& step : program.classes[0].steps) {
      for (const program::Op& op : program.classes[0].segments[static_cast<std::size_t>(step.segment)].ops) {
        all += op.flops;
        if (op.recomputed) again += op.flops;
      }
    }
    EXPECT_GT(again, 0);
    EXPECT_NEAR(recompute_factor(p, plan), all / (all - again), 0.003) << static_cast<int>(r);
  }
}

// A device holds what is live, 6 % more for the allocator (megatron-core), the context, and a communicator's
// buffers for each axis that has one.
TEST(StageMemory, HasAContextAndACommunicatorForEachAxis) {
  Problem p = llama2_7b();
  p.cluster.nodes = 8;
  p.scenario.training.global_batch = 8;
  const sim::Topology topology(p.cluster);
  for (const Plan& plan :
       {Plan{.micro_batches = 8}, Plan{.dp = 2, .zero = 1, .micro_batches = 4},
        Plan{.tp = 2, .dp = 2, .micro_batches = 4}, Plan{.tp = 2, .pp = 4, .dp = 2, .micro_batches = 4}}) {
    const Evaluation e = evaluate(p, topology, plan);
    const std::int64_t axes = (plan.tp > 1) + (plan.dp > 1) + (plan.pp > 1);
    std::int64_t most = 0;
    ASSERT_EQ(e.predicted.memory.size(), static_cast<std::size_t>(plan.pp));
    for (std::size_t s = 0; s < e.predicted.memory.size(); ++s) {
      const StageMemory& m = e.predicted.memory[s];
      const double live = static_cast<double>(e.program.classes[s].logical_peak.value);
      EXPECT_EQ(m.stage, static_cast<std::int64_t>(s));
      EXPECT_EQ(m.parameter + m.gradient + m.optimizer + m.activation + m.workspace + m.communication,
                e.program.classes[s].logical_peak.value);
      EXPECT_EQ(m.overhead, m.total - e.program.classes[s].logical_peak.value);
      EXPECT_NEAR(static_cast<double>(m.total),
                  live * p.stack.allocator_overhead + static_cast<double>(p.stack.context.value) +
                      static_cast<double>(axes * p.stack.communicator.value),
                  1.0)
          << short_name(plan);
      most = std::max(most, m.total);
    }
    EXPECT_EQ(e.predicted.peak_memory_bytes, most);
  }
}

}  // namespace
}  // namespace orrery::planner
