// SPDX-License-Identifier: Apache-2.0
//
// Plans that serve: they keep to bounds and memory, and change with what is asked as they should.
#include "planner/serve.h"

#include <gtest/gtest.h>

#include <cmath>

namespace orrery {
namespace {

struct Question {
  Serving serving;
  const char *model = "llama-3-8b", *topology = "dgx-h100";
  std::int64_t nodes = 1;
  Search search{};
};

Problem problem_of(const Question& q) {
  Scenario s;
  s.model = preset_model(q.model);
  s.cluster = {q.topology, q.nodes};
  s.search = q.search;
  const DataFolders data;
  return sim::served_problem(resolve(std::move(s), Cursor{}, data), q.serving,
                             sim::load_serving_stack(q.serving.stack, Cursor{}, data));
}

planner::ServingAnswer ask(const Question& q, std::size_t top = 2, std::int64_t requests = 200) {
  return planner::serve(problem_of(q), q.serving, {.top = top, .requests = requests});
}

Question question() {
  Question q;
  q.serving.input_tokens = 1000;
  q.serving.output_tokens = 200;
  q.serving.disaggregated = false;
  return q;
}

TEST(Serve, PlansKeepToBoundsMemoryAndDevices) {
  Question q = question();
  q.model = "llama-3-70b";
  q.serving.disaggregated = std::nullopt;
  q.serving.requests_per_s = 4;
  q.serving.ttft = Time{1'500 * kPicosecondsPerSecond / 1000};
  q.serving.tpot = Time{40 * kPicosecondsPerSecond / 1000};
  const planner::ServingAnswer a = ask(q);
  ASSERT_FALSE(a.plans.empty());
  bool apart = false;
  for (const planner::ServedPlan& p : a.plans) {
    EXPECT_LE(p.steady.ttft_s, 1.5);
    EXPECT_LE(p.steady.tpot_s, 0.040);
    EXPECT_LE(p.devices(), 8);
    EXPECT_GE(p.requests_per_s, 4 * (1 - 1e-9));
    EXPECT_LE(static_cast<double>(p.memory.weights + p.memory.workspace + p.memory.overhead + p.cache_bytes),
              0.9 * static_cast<double>(p.memory.device) * (1 + 1e-9));
    apart = apart || p.prefill.has_value();
  }
  // 141 GB of weights do not fit on one device of 80 GiB: the answer says so.
  bool told = false;
  for (const planner::Unserved& u : a.others)
    told = told || (u.plan.tp == 1 && u.plan.pp == 1 && u.why.find("a device needs") != std::string::npos);
  EXPECT_TRUE(told);
}

// What keeps to a bound keeps to a wider one, so more is served.
TEST(Serve, WiderBoundsServeMore) {
  const auto most = [](double tpot_ms) {
    Question q = question();
    q.serving.tpot = from_seconds(1e-3 * tpot_ms);
    const planner::ServingAnswer a = ask(q, 0);
    return a.plans.empty() ? 0.0 : a.plans.front().output_tokens_per_device_s(q.serving);
  };
  double before = 0;
  for (const double bound : {1.0, 5.0, 8.0, 12.0, 20.0, 50.0}) {
    const double now = most(bound);
    EXPECT_GE(now, before) << bound;
    before = now;
  }
  EXPECT_EQ(most(1.0), 0);
  EXPECT_GT(most(50.0), 2 * most(8.0));
}

// The closed form of the steady state and the simulated requests agree.
TEST(Serve, TheSteadyStateIsThatOfTheSimulation) {
  Question q = question();
  q.search.tp = {1};
  q.search.pp = {1};
  q.search.micro_batch = {32};
  q.serving.output_spread = 0.3;  // so that requests do not end together
  const planner::ServingAnswer a = ask(q, 1, 1500);
  ASSERT_EQ(a.plans.size(), 1U);
  const planner::ServedPlan& p = a.plans.front();
  EXPECT_NEAR(p.run->tpot_s[0], p.steady.tpot_s, 0.1 * p.steady.tpot_s);
  EXPECT_NEAR(p.run->requests_per_s, p.requests_per_s, 0.1 * p.requests_per_s);
  EXPECT_NEAR(p.run->mean_batch, 32, 3);
  EXPECT_GT(p.run->busy, 0.99);
}

// Hardly anybody is there: the first token comes after the prefill, the others after a decode each.
TEST(Serve, AtLowLoadTheFirstTokenTakesThePrefill) {
  Question q = question();
  q.search.tp = {1};
  q.search.pp = {1};
  q.serving.requests_per_s = 0.05;
  q.serving.arrivals = Arrivals::kEven;
  const Problem problem = problem_of(q);
  const planner::ServingAnswer a = planner::serve(problem, q.serving, {.top = 1, .requests = 30});
  const sim::Topology topology(problem.cluster);
  const sim::PassModel passes(problem, topology, {.tp = 1, .schedule = Schedule::kGPipe}, 2);
  const planner::ServingRun& run = *a.plans.front().run;
  EXPECT_NEAR(run.ttft_s[1], seconds(passes.prefill(1000)), 1e-9);
  EXPECT_NEAR(run.tpot_s[1], seconds(passes.decode(1, 1100)), 0.02 * run.tpot_s[1]);
  EXPECT_EQ(a.plans.front().devices(), 1);
}

// A rate beyond what all devices serve: no plan, and the reason has both rates.
TEST(Serve, SaysWhatIsTooMuch) {
  Question q = question();
  q.serving.requests_per_s = 1e5;
  const planner::ServingAnswer a = ask(q);
  EXPECT_TRUE(a.plans.empty());
  ASSERT_FALSE(a.others.empty());
  EXPECT_NE(a.others.front().why.find("requests/s of 1e+05 on 8 devices"), std::string::npos)
      << a.others.front().why;
}

// Apart, decodes wait for no prompts: at the same batch a token takes no longer.
TEST(Serve, ApartTokensTakeNoLonger) {
  Question q = question();
  q.serving.requests_per_s = 20;
  q.serving.input_tokens = 4000;
  q.search.tp = {1};
  q.search.pp = {1};
  q.search.micro_batch = {16};
  const planner::ServingAnswer together = ask(q);
  q.serving.disaggregated = true;
  const planner::ServingAnswer apart = ask(q);
  ASSERT_FALSE(together.plans.empty());
  ASSERT_FALSE(apart.plans.empty());
  const planner::ServedPlan& p = apart.plans.front();
  ASSERT_TRUE(p.prefill.has_value());
  EXPECT_LT(p.steady.tpot_s, together.plans.front().steady.tpot_s);
  // 4,000 tokens of 131,072 bytes over NVLink of 450 GB/s at most.
  EXPECT_GT(p.transfer_s, 4000 * 131'072 / 450e9);
  EXPECT_LT(p.transfer_s, 4 * 4000 * 131'072 / 450e9);
  EXPECT_LE(p.devices(), 8);
}

TEST(Serve, TheSameSeedGivesTheSameAnswer) {
  Question q = question();
  q.serving.requests_per_s = 10;
  q.serving.input_spread = 1;
  const Problem problem = problem_of(q);
  const auto run = [&](std::uint64_t seed) {
    return *planner::serve(problem, q.serving, {.top = 1, .requests = 200, .seed = seed}).plans.front().run;
  };
  const planner::ServingRun a = run(1), again = run(1), other = run(2);
  EXPECT_EQ(a.ttft_s[2], again.ttft_s[2]);
  EXPECT_EQ(a.tpot_s[0], again.tpot_s[0]);
  EXPECT_NE(a.ttft_s[2], other.ttft_s[2]);
}

// Ranks that share experts serve sequences of their own: they exchange tokens, and each holds fewer experts.
TEST(Serve, ExpertsMayLieOverRanks) {
  Question q = question();
  q.model = "qwen3-30b-a3b";
  q.search.tp = {1};
  q.search.pp = {1};
  q.search.ep = {1, 4};
  const planner::ServingAnswer a = ask(q, 0);
  ASSERT_EQ(a.plans.size(), 2U);
  const auto of = [&](std::int64_t ep) -> const planner::ServedPlan& {
    return a.plans[a.plans[0].pool.plan.ep == ep ? 0 : 1];
  };
  // 128 experts of 3 x 768 x 2048 in 48 layers: 29.0e9 of 30.5e9 parameters, of which three quarters go.
  EXPECT_NEAR(static_cast<double>(of(1).memory.weights - of(4).memory.weights), 2 * 0.75 * 28.99e9, 0.1e9);
  EXPECT_EQ(of(4).pool.plan.ranks(), 4);
}

}  // namespace
}  // namespace orrery
