// SPDX-License-Identifier: Apache-2.0
#include "planner/risk.h"
#include "planner/search.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "planner/plan.h"
#include "planner/space.h"

namespace orrery::planner {
namespace {

Problem small_problem() {
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster("dgx-a100", {}, {}, data);
  p.cluster.nodes = 2;
  p.devices = {load_device("a100-80gb", {}, data)};
  p.stack = load_stack("megatron-core", {}, data);
  p.scenario.model = preset_model("llama-2-7b");
  p.scenario.training = {.global_batch = 64, .sequence = 2048};
  p.scenario.search.tp = {1, 2, 8};
  p.scenario.search.micro_batch = {1, 2};
  return p;
}

TEST(Search, PruningDoesNotChangeTheBestOfFiftyThousand) {
  Problem p = small_problem();
  p.stack.runs.reset();  // every axis
  p.cluster.nodes = 8;
  p.scenario.training.global_batch = 128;
  p.scenario.search.tp = {};
  p.scenario.search.micro_batch = {};
  p.scenario.search.dp = {1, 2, 4, 8, 16, 32, 64};
  p.scenario.search.zero = {0, 1, 2};
  const sim::Topology topology(p.cluster);
  const SearchResult pruned = search(p, topology, {.keep = 10, .threads = 2, .bound = true});
  const SearchResult brute = search(p, topology, {.keep = 10, .threads = 2, .bound = false});
  EXPECT_GT(pruned.counts.bounded, pruned.counts.costed);
  EXPECT_EQ(brute.counts.bounded, 0);
  EXPECT_EQ(brute.counts.costed, brute.counts.considered - brute.counts.invalid);
  EXPECT_GT(brute.counts.costed, 50000);
  ASSERT_EQ(pruned.best.size(), 10U);
  ASSERT_EQ(brute.best.size(), 10U);
  for (std::size_t i = 0; i < brute.best.size(); ++i) {
    EXPECT_EQ(pruned.best[i].plan, brute.best[i].plan) << i;
    EXPECT_EQ(pruned.best[i].estimate, brute.best[i].estimate) << i;
  }
  ASSERT_EQ(pruned.pareto.size(), brute.pareto.size());
  for (std::size_t i = 0; i < brute.pareto.size(); ++i)
    EXPECT_EQ(pruned.pareto[i].plan, brute.pareto[i].plan) << i;
}

TEST(Search, PruningLosesNoPlanOfAModelWithExperts) {
  for (const char* device_memory : {"80 GB", "24 GB"}) {  // with much room, and with little
    Problem p = small_problem();
    p.stack.runs.reset();
    p.scenario.model = preset_model("qwen3-30b-a3b");
    p.scenario.model.blocks[0].times = p.scenario.model.layers = 8;
    p.devices[0].memory = *parse_bytes(device_memory);
    p.scenario.search.tp = {1, 2};
    p.scenario.search.pp = {1, 2, 4};
    p.scenario.search.ep = {1, 4, 8};
    p.scenario.search.micro_batch = {1, 2};
    const sim::Topology topology(p.cluster);
    const SearchResult pruned = search(p, topology, {.keep = 5, .threads = 2});
    const SearchResult brute = search(p, topology, {.keep = 5, .threads = 2, .bound = false});
    EXPECT_LT(pruned.counts.costed * 4, brute.counts.costed);
    ASSERT_EQ(pruned.best.size(), brute.best.size());
    ASSERT_EQ(pruned.too_big.size(), brute.too_big.size());
    for (std::size_t i = 0; i < brute.best.size(); ++i) EXPECT_EQ(pruned.best[i].plan, brute.best[i].plan);
    for (std::size_t i = 0; i < brute.too_big.size(); ++i)
      EXPECT_EQ(pruned.too_big[i].plan, brute.too_big[i].plan) << i;
  }
}

TEST(Search, CountsAddUp) {
  const Problem p = small_problem();
  const SearchCounts c = search(p, sim::Topology(p.cluster), {.keep = 5}).counts;
  EXPECT_GE(c.considered, c.invalid + c.bounded + c.costed);
  EXPECT_LE(c.feasible, c.costed);
  EXPECT_EQ(c.considered, c.invalid + c.bounded + c.too_large + c.feasible);
}

TEST(Search, TwoThreadsGiveTheSameAnswerAsOne) {
  const Problem p = small_problem();
  const sim::Topology topology(p.cluster);
  const SearchResult a = search(p, topology, {.keep = 20, .threads = 1});
  const SearchResult b = search(p, topology, {.keep = 20, .threads = 2});
  ASSERT_EQ(a.best.size(), b.best.size());
  for (std::size_t i = 0; i < a.best.size(); ++i) EXPECT_EQ(a.best[i].plan, b.best[i].plan);
  EXPECT_EQ(a.counts.costed, b.counts.costed);
  EXPECT_EQ(a.counts.bounded, b.counts.bounded);
  EXPECT_EQ(a.pareto.size(), b.pareto.size());
}

// What the search memoises over plans never leaks: each plan alone gives the same bits.
TEST(Search, MemoisedCostsEqualSingleEvaluationsBitForBit) {
  Problem p = small_problem();
  p.stack.runs.reset();
  const sim::Topology topology(p.cluster);
  sim::Estimator shared(p, topology);
  const Space space(p);
  int compared = 0;
  std::int64_t seen = 0;
  for (const Space::Outer& o : space.outer()) {
    space.visit(o, {.plan = [&](const Plan& plan) {
                  const sim::Estimate e = shared.estimate(plan);
                  if (++seen % 7 != 0 || compared >= 1000) return Space::Verdict::kSeen;
                  sim::Estimator alone(p, topology);
                  EXPECT_EQ(e, alone.estimate(plan)) << short_name(plan);
                  ++compared;
                  return Space::Verdict::kSeen;
                }});
  }
  EXPECT_GE(compared, 1000);
}

TEST(Search, TheParetoFrontIsOne) {
  const Problem p = small_problem();
  const SearchResult r = search(p, sim::Topology(p.cluster), {.keep = 5, .bound = false});
  ASSERT_GT(r.pareto.size(), 1U);
  for (std::size_t i = 1; i < r.pareto.size(); ++i) {
    EXPECT_GE(r.pareto[i].estimate.step, r.pareto[i - 1].estimate.step);
    EXPECT_LT(r.pareto[i].device, r.pareto[i - 1].device);
  }
}

// A search that lists more tensor-parallel ranks than there are devices finds nothing for them.
TEST(Search, WhatIsListedMayBeMoreThanThereIs) {
  Problem p = small_problem();
  p.cluster.nodes = 1;
  p.cluster.devices_per_node = 1;
  p.scenario.search.tp = {8};
  EXPECT_EQ(search(p, sim::Topology(p.cluster), {.keep = 5}).counts.costed, 0);
  p.scenario.search.tp = {1, 8};
  p.scenario.training.precision = Precision::kSgd;
  EXPECT_GT(search(p, sim::Topology(p.cluster), {.keep = 5}).counts.costed, 0);
}

// Nothing listed: micro-batches are the divisors of the batch up to 16, chunks go down to one layer each
// (32 layers on 4 stages: up to 8 chunks), and the stages up to one for each layer.
TEST(Space, HoldsTheLargestOfEachAxis) {
  Problem p = small_problem();
  p.stack.runs.reset();
  p.scenario.training.global_batch = 96;
  p.scenario.search.micro_batch = {};
  p.scenario.search.tp = {1};
  p.scenario.search.pp = {1, 4};
  p.scenario.search.schedule = {Schedule::kInterleaved};
  std::set<std::int64_t> micro_batches, chunks;
  const Space space(p);
  for (const Space::Outer& o : space.outer())
    space.visit(o, {.plan = [&](const Plan& plan) {
                  micro_batches.insert(plan.micro_batch);
                  if (plan.pp == 4) chunks.insert(plan.vpp);
                  return Space::Verdict::kSeen;
                }});
  EXPECT_EQ(micro_batches, (std::set<std::int64_t>{1, 2, 3, 4, 6, 8, 12, 16}));
  EXPECT_EQ(*chunks.rbegin(), 8);
}

// Plans that come out recompute as many layers as rank first: one layer less, or one more, is not in a better
// place. Where the search names numbers, it keeps to them.
TEST(Search, RecomputesNoMoreThanItHasTo) {
  Problem p = load_problem(ORRERY_ROOT "/scenarios/llama2-7b-8k-a100.json", DataFolders{});
  p.scenario.plan.reset();
  p.stack.runs.reset();
  p.scenario.search = {};
  p.scenario.search.tp = p.scenario.search.pp = p.scenario.search.cp = {1};
  p.scenario.search.recompute = {Recompute::kFull};
  const sim::Topology topology(p.cluster);
  const SearchResult r = search(p, topology, {});
  std::int64_t some = 0;
  for (const Candidate& c : r.best) {
    const std::int64_t first = c.plan.recompute_first;
    some += first > 0;
    if (first < 2) continue;
    for (const std::int64_t other : {first - 1, first + 1}) {
      Plan beside = c.plan;
      beside.recompute_first = other;
      sim::Estimator estimator(p, topology);
      const sim::Estimate e = estimator.estimate(beside);
      EXPECT_EQ(e.step < c.estimate.step, other < first) << short_name(beside);
      const Candidate with{.plan = beside,
                           .estimate = e,
                           .device = estimator.device_bytes(beside, e.peak),
                           .capacity = usable(p, e.memory)};
      if (!with.fits()) continue;
      const double at =
          pessimistic_time(seconds(e.step), fits_probability(p, with), p.spread, p.scenario.search.risk);
      EXPECT_GE(at, seconds(c.ranked) * (1 - 1e-9)) << short_name(c.plan) << " against " << other;
    }
  }
  EXPECT_GT(some, 3);
  p.scenario.search.recompute_first = {0, 5};
  for (const Candidate& c : search(p, topology, {}).best)
    EXPECT_TRUE(c.plan.recompute_first == 0 || c.plan.recompute_first == 5) << short_name(c.plan);
}

// Where stages may differ, the first recomputes most: it has most micro-batches in flight. No stage could
// recompute a layer less within the memory that the plan takes, and the plan is faster than with one number
// for all. A stack that has one number, and a search that lists numbers, get that.
TEST(Search, LaterStagesRecomputeFewerLayers) {
  Problem p = load_problem(ORRERY_ROOT "/scenarios/llama3-70b-p4d.json", DataFolders{});
  p.scenario.plan.reset();
  p.stack.runs.reset();
  p.scenario.search = {};
  p.scenario.search.tp = {8};
  p.scenario.search.pp = {4};
  p.scenario.search.micro_batch = {1};
  p.scenario.search.zero = {1};
  p.scenario.search.sequence_parallel = {true};
  p.scenario.search.schedule = {Schedule::k1F1B};
  p.scenario.search.recompute = {Recompute::kFull};
  p.scenario.search.recompute_layers = {1};
  const sim::Topology topology(p.cluster);
  const auto best_of = [&](const Problem& of) { return search(of, topology, {}).best.at(0); };
  const Candidate best = best_of(p);
  const std::vector<std::int64_t>& by_chunk = best.plan.recompute_by_chunk;
  ASSERT_EQ(by_chunk.size(), 4U) << short_name(best.plan);
  EXPECT_TRUE(std::is_sorted(by_chunk.rbegin(), by_chunk.rend())) << short_name(best.plan);
  EXPECT_GT(by_chunk.front(), by_chunk.back());
  sim::Estimator estimator(p, topology);
  for (std::size_t c = 0; c < by_chunk.size(); ++c) {
    if (by_chunk[c] == 0) continue;
    std::vector<std::int64_t> fewer = by_chunk;
    --fewer[c];
    const Plan less = with_recomputed(best.plan, fewer, 80);
    EXPECT_GT(estimator.estimate(less).peak, best.estimate.peak) << short_name(less);
  }
  Problem alike = p;
  for (std::int64_t n = 0; n < 20; ++n) alike.scenario.search.recompute_first.push_back(n);
  const Candidate one_number = best_of(alike);
  EXPECT_TRUE(one_number.plan.recompute_by_chunk.empty());
  EXPECT_LT(best.ranked, one_number.ranked);
  Problem megatron = p;
  megatron.stack.runs = load_stack("megatron-core", {}, DataFolders()).runs;
  EXPECT_TRUE(best_of(megatron).plan.recompute_by_chunk.empty());
}

// For every shipped stack: the plans of the space are those of a stack that takes everything, less those that
// the stack cannot run.
TEST(Space, HoldsThePlansThatTheStackRunsAndNoOthers) {
  const DataFolders data;
  Problem p = small_problem();
  p.scenario.training.precision = Precision::kFp32;  // which every stack has
  p.scenario.training.math = Math::kFp32;
  p.scenario.search.dp = {1, 4};
  p.scenario.search.micro_batch = {1};
  p.scenario.search.tp = {1, 2};
  p.scenario.search.pp = {1, 2, 4};
  p.scenario.search.recompute_layers = {1, 2};
  const auto plans = [](const Problem& of) {
    std::set<Canonical> out;
    const Space space(of);
    for (const Space::Outer& o : space.outer())
      space.visit(o, {.plan = [&](const Plan& plan) {
                    EXPECT_TRUE(out.insert(canonical(plan)).second) << short_name(plan);
                    EXPECT_FALSE(stack_problem(of.stack, of.scenario.model, plan, of.scenario.training))
                        << short_name(plan);
                    return Space::Verdict::kSeen;
                  }});
    return out;
  };
  for (const std::string& name : data.names("profiles/stacks")) {
    p.stack = load_stack(name, {}, data);
    Problem unlimited = p;
    unlimited.stack.runs.reset();
    std::set<Canonical> expected;
    const Space space(unlimited);
    for (const Space::Outer& o : space.outer()) {
      // A placement that the stack has not is dropped whole, where it is another's second name too.
      const auto& orders = p.stack.runs->rank_order;
      if (std::find(orders.begin(), orders.end(), o.rank_order) == orders.end()) continue;
      space.visit(o, {.plan = [&](const Plan& plan) {
                    if (!stack_problem(p.stack, p.scenario.model, plan, p.scenario.training))
                      expected.insert(canonical(plan));
                    return Space::Verdict::kSeen;
                  }});
    }
    EXPECT_EQ(plans(p), expected) << name;
    EXPECT_GE(expected.size(), 8U) << name;
  }
}

// What repeats less comes first, however the modes are listed: it bounds what repeats more. Listed parts are
// tried, whole layers of experts too, and no others.
TEST(Space, RecomputesInOrder) {
  Problem p = small_problem();
  Model& m = p.scenario.model;
  ModelBlock sparse = standard_block(m);
  sparse.layers.back() = {ExpertsLayer{.experts = 8, .top_k = 2, .ffn_hidden = 24}};
  m.layers = 8;
  m.blocks = {{m.layers, {sparse}}};
  p.stack.runs.reset();
  p.stack.flash_attention = true;
  p.scenario.search.pp = p.scenario.search.tp = p.scenario.search.ep = {1};
  p.scenario.search.recompute_layers = {1};
  const auto seen = [&] {
    std::vector<std::string> out;
    const Space space(p);
    space.visit(space.outer().front(), {.plan = [&](const Plan& plan) {
                  std::string name(name_of(plan.recompute));
                  for (const RecomputePart part : plan.recompute_parts)
                    name += fmt::format(" {}", name_of(part));
                  if (plan.recompute_first > 0) name += fmt::format(" {}", plan.recompute_first);
                  if (out.empty() || std::find(out.begin(), out.end(), name) == out.end())
                    out.push_back(name);
                  return Space::Verdict::kSeen;
                }});
    return out;
  };
  p.scenario.search.recompute = {Recompute::kFull, Recompute::kSelective, Recompute::kNone};
  EXPECT_EQ(seen(), (std::vector<std::string>{"none", "selective layernorm moe-act", "full 2", "full 4",
                                              "full 6", "full"}));
  p.scenario.search.recompute_first = {3, 0, 8};
  EXPECT_EQ(seen(), (std::vector<std::string>{"none", "selective layernorm moe-act", "full 3", "full"}));
  p.scenario.search.recompute_first = {5};
  EXPECT_EQ(seen(), (std::vector<std::string>{"none", "selective layernorm moe-act", "full 5"}));
  p.scenario.search.recompute_first = {0};
  p.scenario.search.recompute_parts = {RecomputePart::kExperts, RecomputePart::kNorms};
  EXPECT_EQ(seen(),
            (std::vector<std::string>{"none", "selective layernorm", "selective layernorm moe", "full"}));
}

// Eight experts of 24 columns: what is listed and does not divide them is no plan.
TEST(Space, SharesExpertsAsTheyDivide) {
  Problem p = small_problem();
  Model& m = p.scenario.model;
  ModelBlock sparse = standard_block(m);
  sparse.layers.back() = {ExpertsLayer{.experts = 8, .top_k = 2, .ffn_hidden = 24}};
  m.blocks = {{m.layers, {sparse}}};
  p.stack.runs.reset();
  p.scenario.search.ep = {1, 3, 4};
  p.scenario.search.etp = {1, 5};
  p.scenario.search.pp = {1};
  const Space space(p);
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::int64_t invalid = 0;
  for (const Space::Outer& outer : space.outer()) {
    invalid += space
                   .visit(outer, {.plan =
                                      [&](const Plan& plan) {
                                        seen.emplace(plan.ep, plan.expert_tp());
                                        return Space::Verdict::kSeen;
                                      }})
                   .invalid;
  }
  EXPECT_EQ(seen, (std::set<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {4, 1}}));
  EXPECT_GT(invalid, 0);
}

TEST(Search, ReplicasDivideTheBatch) {
  EXPECT_EQ(replicas(2048, 4, 25), 16);  // 25 does not divide 512
  EXPECT_EQ(replicas(2000, 4, 25), 25);
  EXPECT_EQ(replicas(7, 2, 25), 0);
}

// 800 GPUs, TP8 PP4 DP25, batch 2048, micro-batch 4: rejected with the nearest batches.
TEST(PlanProblem, ABatchThatDoesNotDivideNamesTheNearest) {
  Problem p = small_problem();
  p.cluster.nodes = 100;
  p.scenario.training.global_batch = 2048;
  Plan plan;
  plan.tp = 8;
  plan.pp = 4;
  plan.dp = 25;
  plan.micro_batch = 4;
  plan.micro_batches = 20;
  EXPECT_NE(plan_problem(p, plan).find("batches of 2000 or 2100"), std::string::npos)
      << plan_problem(p, plan);
}

TEST(Plan, TheAnswerExplainsItself) {
  Problem p = small_problem();
  p.scenario.search.tp = {8};
  p.scenario.search.zero = {1};
  const Answer a = plan(p, {.top = 3, .threads = 1});
  ASSERT_FALSE(a.plans.empty());
  std::size_t simulated = 0;
  for (const Ranked& r : a.plans) simulated += 1 + r.variants.size();
  EXPECT_GE(simulated, 3U);
  const Predicted& best = a.plans[0].predicted;
  const Breakdown& b = best.breakdown;
  const double waited = std::accumulate(b.exposed_s.begin(), b.exposed_s.end(), 0.0);
  EXPECT_NEAR(b.forward_s + b.backward_s + b.recompute_s + b.optimizer_s + waited + b.host_s,
              best.step_time_s, 1e-9);
  EXPECT_FALSE(a.why.empty());
  EXPECT_FALSE(a.sensitivity.empty());
  EXPECT_EQ(a.alongside.size() + std::count_if(a.rejected.begin(), a.rejected.end(),
                                               [](const Rejected& r) { return r.step_time_s == 0; }),
            3U);
  for (const Candidate& c : a.search.too_big) EXPECT_LE(c.device, a.search.capacity * 2);
  for (const Ranked& r : a.plans) EXPECT_LE(r.predicted.peak_memory_bytes, a.search.capacity.value);
}

// What lies in the hosts' memory is one more thing to search: pruned or not, the answers are the same.
TEST(Search, OffloadingIsPrunedWithoutLoss) {
  Problem p = load_problem(ORRERY_ROOT "/scenarios/llama2-13b-offload-a100.json", DataFolders{});
  p.scenario.search.dp = {1, 2, 4, 8};
  p.scenario.search.offload.push_back({.optimizer = 1, .parameters = true});
  const sim::Topology topology(p.cluster);
  const SearchResult pruned = search(p, topology, {.keep = 10, .threads = 2, .bound = true});
  const SearchResult brute = search(p, topology, {.keep = 10, .threads = 2, .bound = false});
  EXPECT_LT(pruned.counts.costed, brute.counts.costed);
  ASSERT_EQ(pruned.best.size(), brute.best.size());
  bool offloads = false;
  for (std::size_t i = 0; i < brute.best.size(); ++i) {
    EXPECT_EQ(pruned.best[i].plan, brute.best[i].plan) << short_name(pruned.best[i].plan);
    EXPECT_EQ(pruned.best[i].estimate.step, brute.best[i].estimate.step);
    offloads = offloads || brute.best[i].plan.offloads();
    EXPECT_EQ(plan_problem(p, brute.best[i].plan), "");
  }
  EXPECT_TRUE(offloads);
  p.scenario.search.offload.push_back({.parameters = true});
  EXPECT_THROW(search(p, topology, {.keep = 1}), InputError);
}

// GPT-3's smallest model: 125M parameters, 6e-4 at half a million tokens.
// 47 stages of 2,048 micro-batches are dear to simulate and far behind.
TEST(Plan, ARuleOfThumbFarBehindIsRejectedWithItsTime) {
  const Problem p = load_problem(ORRERY_ROOT "/scenarios/qwen3-235b-256-h800.json", DataFolders{});
  const Answer a = plan(p, {.top = 1, .threads = 2});
  const auto deep = [](const auto& x) { return x.plan.pp == 47; };
  EXPECT_EQ(std::count_if(a.alongside.begin(), a.alongside.end(), deep), 0);
  const auto rejected = std::find_if(a.rejected.begin(), a.rejected.end(), deep);
  ASSERT_NE(rejected, a.rejected.end());
  EXPECT_NE(rejected->reason.find("times as long as the best plan"), std::string::npos) << rejected->reason;
  EXPECT_FALSE(a.alongside.empty());  // the others are
}

TEST(Plan, LearningRatesAreAdvisedForAdamAlone) {
  Problem p = small_problem();
  p.scenario.model = preset_model("gpt2-124m");
  p.scenario.training = {.global_batch = 244, .sequence = 2048};
  const auto advice = learning_rate_advice(p);
  ASSERT_TRUE(advice.has_value());
  EXPECT_NEAR(advice->learning_rate, 6e-4, 6e-6);
  EXPECT_EQ(advice->warm_up_steps, 751);  // 375e6 / (244 x 2048), rounded up
  p.scenario.training.lamb = true;
  EXPECT_FALSE(learning_rate_advice(p).has_value());
  p.scenario.training.lamb = false;
  p.scenario.training.precision = Precision::kSgd;
  EXPECT_FALSE(learning_rate_advice(p).has_value());
}

// The rate grows with the root of the batch, to four times the model's at most: 976 sequences are four of
// 244.
TEST(Plan, TheAdvisedRateGrowsWithTheRootOfTheBatch) {
  Problem p = small_problem();
  p.scenario.model = preset_model("gpt2-124m");
  const auto rate = [&](std::int64_t batch) {
    p.scenario.training = {.global_batch = batch, .sequence = 2048};
    return learning_rate_advice(p)->learning_rate;
  };
  EXPECT_NEAR(rate(976), 2 * rate(244), 1e-9);
  EXPECT_NEAR(rate(61), rate(244) / 2, 1e-9);
  EXPECT_NEAR(rate(1'000'000), rate(2'000'000), 1e-12);
  EXPECT_NEAR(rate(1'000'000), 4 * 6e-4, 24e-6);
  // GPT-3 175B: 0.6e-4 at 3.2M tokens in its table.
  p.scenario.model = preset_model("gpt3-175b");
  EXPECT_NEAR(rate(1562), 0.6e-4, 0.06e-4);
}

// Twice the memory admits what needs up to twice the capacity, and the fastest of that is the answer.
TEST(Plan, TwiceTheMemoryAdmitsUpToTwiceTheCapacity) {
  Problem p = small_problem();
  p.scenario.model = preset_model("llama-2-13b");
  p.scenario.training.global_batch = 16;
  p.scenario.search.tp = {4, 8};
  p.scenario.search.zero = {1};
  p.devices[0].memory = Bytes{p.devices[0].memory.value / 4};
  p.scenario.search.micro_batch = {1, 4};
  p.scenario.search.recompute_first = {0};  // of plans that do not fit quarters alone are tried
  p.scenario.search.schedule = {Schedule::k1F1B};
  const Answer a = plan(p, {.top = 1, .threads = 1});
  ASSERT_FALSE(a.plans.empty());
  const auto twice = std::find_if(a.sensitivity.begin(), a.sensitivity.end(),
                                  [](const Sensitivity& s) { return s.change == "2x device memory"; });
  ASSERT_NE(twice, a.sensitivity.end());
  const sim::Topology topology(p.cluster);
  sim::Estimator estimator(p, topology);
  const auto of_capacity = [&](const Plan& plan) {
    const Predicted x = evaluate(p, topology, plan).predicted;
    return static_cast<double>(x.peak_memory_bytes) / static_cast<double>(a.search.capacity.value);
  };
  for (const Candidate& c : a.search.too_big) EXPECT_LE(c.device, a.search.capacity * 2);
  EXPECT_GT(of_capacity(twice->plan), 1);
  EXPECT_LE(of_capacity(twice->plan), 2);
  EXPECT_NEAR(twice->step_time_s, seconds(estimator.estimate(twice->plan).step), 1e-12);
  EXPECT_NEAR(twice->speedup, seconds(a.search.best.front().estimate.step) / twice->step_time_s, 1e-12);
  // Of twice the device, no plan of the search is faster.
  Problem larger = p;
  larger.devices[0].memory = p.devices[0].memory * 2;
  const Answer b = plan(larger, {.top = 1, .threads = 1});
  EXPECT_NEAR(seconds(b.search.best.front().estimate.step), twice->step_time_s, 0.02 * twice->step_time_s);
}

// A deadline is in days of 86,400 s: the run ends before it, at the size that costs least.
TEST(Plan, ADeadlineLeavesOutWhatIsLater) {
  Problem p = small_problem();
  p.scenario.search.tp = {1};
  p.scenario.search.micro_batch = {1};
  p.scenario.search.zero = {1};
  p.scenario.training.global_batch = 32;
  p.scenario.training.tokens = 1e9;
  p.cluster.node_hour = from_dollars(10);
  p.scenario.goal = Goal::kCost;
  const Answer cheapest = plan(p, {.top = 1, .threads = 1});
  ASSERT_EQ(cheapest.nodes, 1);
  const double alone = cheapest.plans[0].predicted.days * 86400;
  p.scenario.goal = Goal::kCostByDeadline;
  p.scenario.deadline = RunTime{alone * 1.01};
  EXPECT_EQ(plan(p, {.top = 1, .threads = 1}).nodes, 1);
  p.scenario.deadline = RunTime{alone * 0.99};
  const Answer sooner = plan(p, {.top = 1, .threads = 1});
  EXPECT_EQ(sooner.nodes, 2);
  EXPECT_LT(sooner.plans[0].predicted.days * 86400, alone * 0.99);
  p.scenario.deadline = RunTime{alone * 0.1};
  // Nothing ends by then: the fastest is shown.
  const Answer late = plan(p, {.top = 1, .threads = 1});
  EXPECT_EQ(late.nodes, 2);
  for (const Ranked& r : late.plans) EXPECT_GT(r.predicted.days * 86400, alone * 0.1);
  EXPECT_FALSE(late.unmet.empty());
}

// Llama-2-70B has 80 layers: four stages of 20 on nodes of 8 with TP8, as its heads divide.
TEST(Heuristics, AreWhatTheirRulesSay) {
  Problem p = small_problem();
  p.cluster.nodes = 8;
  p.scenario.training.global_batch = 512;
  p.scenario.model = preset_model("llama-2-70b");
  const auto rules = heuristics(p);
  ASSERT_EQ(rules.size(), 3U);
  const Plan &tree = rules[0].plan, &fixed = rules[1].plan, &fsdp = rules[2].plan;
  EXPECT_EQ(fixed.tp, 8);
  EXPECT_EQ(fixed.pp, 4);
  EXPECT_EQ(fixed.dp, 2);
  EXPECT_EQ(fixed.zero, 1);
  EXPECT_EQ(fixed.micro_batches, 256);
  EXPECT_EQ(fsdp.tp * fsdp.pp, 1);
  EXPECT_EQ(fsdp.dp, 64);
  EXPECT_EQ(fsdp.zero, 3);
  // 69e9 parameters of 16 bytes over 8 GPUs are 138 GB; over 16, 69 GB are more than 0.8 of 80 GiB, 68.7 GB;
  // so four stages, 80 having no divisor 3.
  EXPECT_EQ(tree.tp, 8);
  EXPECT_EQ(tree.pp, 4);
  EXPECT_EQ(tree.dp, 2);
}

TEST(Plan, TheSmallestClusterIsTheFirstThatFits) {
  Problem p = small_problem();
  p.scenario.model = preset_model("llama-2-70b");
  p.scenario.search.tp = {8};
  p.scenario.search.recompute = {Recompute::kFull};
  p.scenario.search.micro_batch = {1};
  p.scenario.goal = Goal::kSmallest;
  p.cluster.nodes = 8;
  const Answer a = plan(p, {.top = 1, .threads = 1});
  ASSERT_FALSE(a.plans.empty());
  // 16 bytes x 69e9 = 1.10 TB: more than the 640 GB of one node, less than the 1.28 TB of two.
  EXPECT_EQ(a.nodes, 2);
  p.cluster.nodes = 1;
  EXPECT_TRUE(plan(p, {.top = 1, .threads = 1}).plans.empty());
}

TEST(Plan, ListedClusterSizesAreAllPlannedAndTheGoalChooses) {
  Problem p = small_problem();
  p.scenario.search.tp = {1};
  p.scenario.search.micro_batch = {1};
  p.scenario.search.nodes = {1, 2};
  p.cluster.node_hour = from_dollars(10);
  p.scenario.goal = Goal::kTime;
  EXPECT_EQ(plan(p, {.top = 1, .threads = 1}).nodes, 2);
  p.scenario.goal = Goal::kCost;
  EXPECT_EQ(plan(p, {.top = 1, .threads = 1}).nodes, 1);
}

TEST(Plan, CostIsWholeNodesTimesHours) {
  Problem p = small_problem();
  p.cluster.node_hour = from_dollars(10);
  p.scenario.training.tokens = 1e9;
  const Plan plan{.tp = 8, .dp = 2, .zero = 1, .micro_batches = 32};
  const Predicted x = evaluate(p, sim::Topology(p.cluster), plan).predicted;
  EXPECT_NEAR(x.days, 1e9 / x.tokens_per_s / 86400, 1e-12);
  EXPECT_NEAR(x.cost_usd, 2 * 10 * x.days * 24, 1e-9);
}

// A node that no other reaches: an error from any thread, not a crash.
TEST(Search, WhatAThreadFindsWrongEndsTheSearch) {
  Problem p = small_problem();
  ASSERT_EQ(p.cluster.nics, p.cluster.devices_per_node);
  for (std::int64_t d = 0; d < p.cluster.nics; ++d)
    p.cluster.fabric.faults.push_back(
        {fmt::format("device{}", p.cluster.devices_per_node + d), fmt::format("port1.{}", d), 0});
  for (const int threads : {1, 2}) {
    try {
      search(p, sim::Topology(p.cluster), {.threads = threads});
      ADD_FAILURE() << "no error with " << threads << " threads";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("there is no way from device"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace orrery::planner
