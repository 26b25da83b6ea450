// SPDX-License-Identifier: Apache-2.0
//
// How full the fullest rank of experts is: closed forms.
#include "sim/expert_loads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <variant>

#include "core/scenario.h"
#include "planner/evaluate.h"
#include "program/expert_spans.h"
#include "program/loads.h"
#include "sim/estimate/estimate.h"

namespace orrery::sim {
namespace {

Model model_with(const ExpertsLayer& experts, std::int64_t layers = 2) {
  Model m = preset_model("tiny-llama");
  m.layers = layers;
  ModelBlock block = standard_block(m);
  block.layers.back() = {experts};
  m.blocks = {{layers, {block}}};
  return m;
}

ExpertLoads loads_of(const ExpertsLayer& experts, const ExpertLoad& load) {
  Training t;
  t.expert_load = load;
  return {model_with(experts), t};
}

// The mean of the largest of `parts` counts of so many choices of equal chance:
// P(all <= m) = n! / parts^n times the coefficient of x^n in (sum over j <= m of x^j / j!)^parts.
double expected_maximum(int choices, int parts) {
  double mean = 0;
  for (int m = 0; m < choices; ++m) {
    // Coefficients times j!, scaled by the binomials that products of exponential series have.
    std::vector<double> product{1};
    product.resize(static_cast<std::size_t>(choices) + 1, 0.0);
    for (int p = 0; p < parts; ++p) {
      // After p + 1 parts: the number of choices so far, with its chance, where each is as likely in all
      // parts.
      std::vector<double> next(product.size(), 0.0);
      const double chance = 1.0 / (parts - p);
      for (int had = 0; had <= choices; ++had) {
        if (product[static_cast<std::size_t>(had)] == 0) continue;
        const int left = choices - had;
        for (int j = 0; j <= std::min(m, left); ++j) {
          const double log_binomial = std::lgamma(left + 1) - std::lgamma(j + 1) - std::lgamma(left - j + 1);
          const double log_chance = j * std::log(chance) + (chance < 1  ? (left - j) * std::log(1 - chance)
                                                            : left == j ? 0
                                                                        : -INFINITY);
          next[static_cast<std::size_t>(had + j)] +=
              product[static_cast<std::size_t>(had)] * std::exp(log_binomial + log_chance);
        }
      }
      product = std::move(next);
    }
    mean += 1 - product[static_cast<std::size_t>(choices)];  // the mean is the sum of P(maximum > m)
  }
  return mean;
}

// Two choices of two: the largest count is 2 or 1, each with chance 1/2.
TEST(ExpertLoads, TheTestsOwnSumIsRight) {
  EXPECT_NEAR(expected_maximum(2, 2), 1.5, 1e-12);
  EXPECT_NEAR(expected_maximum(1, 4), 1, 1e-12);
}

TEST(ExpertLoads, EqualChancesGiveTheExpectedMaximumOfAMultinomial) {
  for (const auto& [parts, tokens] : {std::pair{2, 40}, {8, 160}, {4, 400}}) {
    const ExpertsLayer experts{.experts = parts, .top_k = 1, .ffn_hidden = 16};
    double sum = 0;
    const int draws = 2000;
    ExpertLoads loads = loads_of(experts, {DirichletLoad{.spread = 0}});
    const SharedExperts of{.parts = parts, .ranks = parts, .tokens = tokens / parts};
    for (int i = 0; i < draws; ++i) sum += loads.drawn(of, static_cast<std::uint64_t>(i))[0];
    const double expected = expected_maximum(tokens, parts) * parts / tokens;
    EXPECT_NEAR(sum / draws, expected, 0.01) << parts << " parts of " << tokens;
    EXPECT_NEAR(loads.mean(of), expected, 0.03);
    EXPECT_GT(expected, 1.05);
  }
}

// Normal counts, where there are many: with two parts of M choices the larger is M/2 + sqrt(M)/2 E|z|,
// E|z| = sqrt(2/pi). Of 2 of 4 experts, choices differ less by sqrt(2/3).
TEST(ExpertLoads, ManyChoicesDifferAsNormalOnesDo) {
  const std::int64_t tokens = 1 << 20;
  ExpertLoads loads = loads_of({.experts = 4, .top_k = 2, .ffn_hidden = 16}, {DirichletLoad{.spread = 0}});
  const SharedExperts of{.parts = 2, .ranks = 2, .tokens = tokens / 2};
  const auto choices = static_cast<double>(2 * tokens);
  double sum = 0;
  const int draws = 2000;
  for (int i = 0; i < draws; ++i) sum += loads.drawn(of, static_cast<std::uint64_t>(i))[0] - 1;
  const double expected = std::sqrt(2 / M_PI) / std::sqrt(choices) * std::sqrt(2.0 / 3);
  EXPECT_NEAR(sum / draws / expected, 1, 0.05);
}

// Two experts: the chance of one is Beta(a, a), whose squared spread is 1 / (2 a + 1). With 1/3 it is
// uniform, and the larger of the two has 3/4 in the mean: 1.5 even shares.
TEST(ExpertLoads, AUniformChanceGivesOneAndAHalf) {
  ExpertLoads loads =
      loads_of({.experts = 2, .top_k = 1, .ffn_hidden = 16}, {DirichletLoad{.spread = std::sqrt(1.0 / 3)}});
  const SharedExperts of{.parts = 2, .ranks = 2, .tokens = 1 << 24};
  double sum = 0, squares = 0;
  const int draws = 4000;
  for (int i = 0; i < draws; ++i) {
    const double load = loads.drawn(of, static_cast<std::uint64_t>(i))[1];
    sum += load;
    squares += load * load;
  }
  EXPECT_NEAR(sum / draws, 1.5, 0.02);
  // Uniform from 1 to 2: variance 1/12.
  EXPECT_NEAR(squares / draws - sum / draws * sum / draws, 1.0 / 12, 0.01);
}

// 64 experts, 8 a rank, one of them with 4 even shares, 63 with 60/63: its rank has (4 + 7 * 60/63) / 8.
TEST(ExpertLoads, AHotExpertFillsItsRank) {
  ExpertLoads loads = loads_of({.experts = 64, .top_k = 4, .ffn_hidden = 16}, {HotLoad{.shares = 4}});
  const SharedExperts of{.parts = 8, .ranks = 8, .tokens = 1 << 22};
  EXPECT_NEAR(loads.mean(of), (4 + 7 * 60.0 / 63) / 8, 1e-3);
  // Each rank has one: a rank of the hot one alone.
  EXPECT_NEAR(loads.mean({.parts = 64, .ranks = 64, .tokens = 1 << 19}), 4, 1e-2);
}

// A token chooses no expert twice: of 2 of 4 experts, one can have two even shares at most. The record gives
// it 70 of 100 choices, so it gets 50, and the others share the rest as before: 10 : 10 : 10.
TEST(ExpertLoads, NoExpertGetsATokenTwice) {
  ExpertLoads loads =
      loads_of({.experts = 4, .top_k = 2, .ffn_hidden = 16}, {RecordedLoad{{{70, 10, 10, 10}}}});
  EXPECT_NEAR(loads.mean({.parts = 4, .ranks = 4, .tokens = 1 << 22}), 2, 1e-3);
  // Two ranks: 50 and 50/3 of 100.
  EXPECT_NEAR(loads.mean({.parts = 2, .ranks = 2, .tokens = 1 << 22}), 2 * (0.5 + 0.5 / 3), 1e-3);
}

TEST(ExpertLoads, RecordsAreOfTheirLayers) {
  Training t;
  t.expert_load = {RecordedLoad{{{30, 10}, {25, 15}}}};
  ExpertLoads loads(model_with({.experts = 2, .top_k = 1, .ffn_hidden = 16}), t);
  const SharedExperts of{.parts = 2, .ranks = 2, .tokens = 1 << 26};
  const std::vector<double> means = loads.means(of);
  EXPECT_NEAR(means.at(0), 1.5, 1e-3);
  EXPECT_NEAR(means.at(1), 1.25, 1e-3);
  EXPECT_NEAR(loads.mean(of), 1.375, 1e-3);
}

// With a capacity of 1.25 even shares nothing gets more, whatever is chosen.
TEST(ExpertLoads, CapacitiesBoundThem) {
  ExpertLoads loads = loads_of({.experts = 16, .top_k = 2, .ffn_hidden = 16, .capacity_factor = 1.25},
                               {DirichletLoad{.spread = 2}});
  const SharedExperts of{.parts = 16, .ranks = 16, .tokens = 4096};
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_LE(loads.drawn(of, i)[0], 1.25 + 1e-12);
  EXPECT_GT(loads.mean(of), 1.1);
}

TEST(ExpertLoads, AreEvenWhereOneRankHasAllExpertsOrNothingIsSaid) {
  const ExpertsLayer experts{.experts = 8, .top_k = 2, .ffn_hidden = 16};
  ExpertLoads hot = loads_of(experts, {HotLoad{.shares = 4}});
  EXPECT_EQ(hot.mean({.parts = 1, .ranks = 1, .tokens = 64}), 1);
  ExpertLoads unsaid(model_with(experts), Training{});
  EXPECT_EQ(unsaid.mean({.parts = 8, .ranks = 8, .tokens = 64}), 1);
  EXPECT_TRUE(unsaid.even({.parts = 8, .ranks = 8, .tokens = 64}));
}

// More spread never fills a rank less; the room of a plan holds 18 of 20 draws.
TEST(ExpertLoads, SpreadFillsRanksAndRoomHoldsThem) {
  const ExpertsLayer experts{.experts = 128, .top_k = 8, .ffn_hidden = 16};
  const SharedExperts of{.parts = 16, .ranks = 16, .tokens = 4096};
  double before = 1;
  for (const double spread : {0.0, 0.25, 0.5, 1.0, 2.0}) {
    ExpertLoads loads = loads_of(experts, {DirichletLoad{.spread = spread}});
    const double load = loads.mean(of);
    EXPECT_GT(load, before) << spread;
    before = load;
    int held = 0;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::vector<double> drawn = loads.drawn(of, i);
      held += *std::max_element(drawn.begin(), drawn.end()) <= loads.room(of);
    }
    EXPECT_GE(held, 19) << spread;
    EXPECT_LT(loads.room(of), 4 * load);
  }
}

struct Work {
  double flops = 0, experts_flops = 0;
  std::int64_t exchanged = 0, reduced = 0;
};
Work work_of(const program::Program& p) {
  Work out;
  for (const program::Segment& s : p.classes[0].segments) {
    for (const program::Op& op : s.ops) {
      (op.is<program::ops::GroupedGemm>() ? out.experts_flops : out.flops) += op.flops;
      if (op.group == p.communication.group("ep")) out.exchanged += op.payload.value;
      if (op.stream == p.communication.stream("dp")) out.reduced += op.payload.value;
    }
  }
  return out;
}

// Rows of experts are computed and exchanged in proportion, and nothing else changes.
TEST(ExpertLoads, LoadTheOpsOfExperts) {
  const Model m = model_with({.experts = 8, .top_k = 2, .ffn_hidden = 64});
  const Training t{.global_batch = 8, .sequence = 64};
  Plan p;
  p.dp = p.ep = 4;
  p.micro_batches = 2;
  const Stack stack;
  program::Program loaded = program::compile(m, p, t, stack);
  const Work even = work_of(loaded);
  program::load_experts(loaded, stack, std::vector<double>(2, 1.5));
  const Work more = work_of(loaded);
  EXPECT_NEAR(more.experts_flops, 1.5 * even.experts_flops, 1e-9 * even.experts_flops);
  EXPECT_EQ(more.flops, even.flops);
  EXPECT_NEAR(static_cast<double>(more.exchanged), 1.5 * static_cast<double>(even.exchanged),
              1e-3 * static_cast<double>(even.exchanged));
  EXPECT_EQ(more.reduced, even.reduced);
  EXPECT_GT(even.reduced, 0);
}

Problem problem_with(const std::string& load) {
  const Json scenario =
      parse_json(R"({"model": "mixtral-8x7b", "cluster": {"topology": "dgx-h100", "nodes": 2},
    "training": {"global_batch": 64, "sequence": 4096)" +
                     load + R"(}})",
                 "scenario.json");
  const Cursor at{"scenario.json"};
  return resolve(read_scenario(scenario, at), at, DataFolders());
}

// Experts over the eight ranks of a node.
Plan plan_of_problem() {
  Plan p;
  p.dp = 16;
  p.ep = 8;
  p.zero = 1;
  p.micro_batches = 4;
  p.recompute = Recompute::kFull;
  return p;
}

// A predicted timeline has the tokens of one draw: of each layer, in each micro-batch, as many as are chosen
// by the tokens of all ranks that share experts, and on the fullest rank what loads say of this draw.
TEST(ExpertLoads, ATimelineHasTheTokensOfOneDraw) {
  const Problem even = problem_with(""),
                uneven = problem_with(R"(, "expert_load": {"dirichlet": {"spread": 0.5}})");
  const Plan p = plan_of_problem();
  const Topology topology(even.cluster);
  const planner::EvaluateOptions record{.record = true};
  EXPECT_TRUE(planner::evaluate(even, topology, p, record).simulation.timeline.experts.of.empty());
  const planner::Evaluation e = planner::evaluate(uneven, topology, p, record);
  const ExpertCounts& counts = e.simulation.timeline.experts;
  ASSERT_FALSE(counts.groups.empty());
  EXPECT_EQ(counts.groups[0], (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  ASSERT_EQ(counts.of.size(), counts.groups.size() * 32 * 4);  // layers, micro-batches
  const ExpertLoads loads(uneven.scenario.model, uneven.scenario.training);
  const std::vector<double> drawn = loads.drawn(shared_experts(p, uneven.scenario.training), 0);
  std::vector<double> fullest(32, 0.0);
  for (const ExpertTokens& of : counts.of) {
    EXPECT_LT(of.start, of.end);
    ASSERT_EQ(of.tokens.size(), 8U);
    const double sum = std::accumulate(of.tokens.begin(), of.tokens.end(), 0.0);
    EXPECT_EQ(sum, 8 * 4096 * 2);  // ranks, tokens, top_k
    const auto most = static_cast<double>(*std::max_element(of.tokens.begin(), of.tokens.end()));
    fullest[static_cast<std::size_t>(of.layer)] +=
        most / (sum / 8) / static_cast<double>(4 * counts.groups.size());
  }
  // 65,536 choices: an expert's share differs by less than 1.5 % from one micro-batch to another.
  for (std::size_t l = 0; l < fullest.size(); ++l) EXPECT_NEAR(fullest[l], drawn[l], 0.03 * drawn[l]) << l;
}

// A capacity bounds what an expert gets; where a rank has all experts there is a group for each.
TEST(ExpertLoads, DrawnTokensKeepCapacities) {
  Training t{.global_batch = 8, .sequence = 1024};
  t.expert_load = {HotLoad{.shares = 8}};
  const ExpertLoads loads(model_with({.experts = 16, .top_k = 2, .ffn_hidden = 16, .capacity_factor = 1.25}),
                          t);
  const SharedExperts of{.parts = 4, .ranks = 4, .tokens = 1024};
  const auto tokens = loads.tokens(of, 1, 0, 2);
  ASSERT_EQ(tokens.size(), 2U);
  for (const auto& by_expert : tokens) {
    EXPECT_EQ(by_expert[0], 4 * 160);  // ranks, 1.25 * 1024 * 2 / 16
    for (const std::int64_t n : by_expert) EXPECT_LE(n, 4 * 160);
  }
  // The other groups' tokens choose by the same chances, and not alike.
  EXPECT_NE(loads.tokens(of, 1, 1, 2), tokens);
  EXPECT_EQ(loads.tokens(of, 1, 0, 2), tokens);
}

// An expert that every token chooses gets all of them, and the others share what is left, to the token.
TEST(ExpertLoads, DrawnTokensAreAllThatAreChosen) {
  Training t{.global_batch = 8, .sequence = 64};
  t.expert_load = {HotLoad{.shares = 2}};  // of 2 of 4 experts: each token's
  const ExpertLoads loads(model_with({.experts = 4, .top_k = 2, .ffn_hidden = 16}), t);
  const SharedExperts of{.parts = 1, .ranks = 1, .tokens = 64};
  bool differ = false;
  for (const auto& by_expert : loads.tokens(of, 0, 0, 50)) {
    EXPECT_EQ(by_expert[0], 64);
    EXPECT_EQ(std::accumulate(by_expert.begin(), by_expert.end(), std::int64_t{0}), 64 * 2);
    for (std::size_t e = 1; e < 4; ++e) EXPECT_LE(by_expert[e], 64);
    differ |= by_expert[1] != by_expert[2];
  }
  EXPECT_TRUE(differ);
}

// Two layers of 65,536 experts have 131,072 numbers for each group and micro-batch, of which 4,000,000 are
// kept: 30 micro-batches of a timeline of one group, and 7 of all four replicas.
TEST(ExpertLoads, OfTooManyTokensTheFirstMicroBatchesAreKept) {
  Problem problem = problem_with(R"(, "expert_load": {"hot": {"shares": 2}})");
  problem.scenario.model = model_with({.experts = 1 << 16, .top_k = 1, .ffn_hidden = 1});
  problem.scenario.training.global_batch = 4 * 40 * 32;
  problem.scenario.training.sequence = 4096;
  Plan p{.dp = 4, .micro_batch = 32, .micro_batches = 40};
  const planner::Evaluation e = planner::evaluate(problem, Topology(problem.cluster), p, {.record = true});
  const ExpertCounts& counts = e.simulation.timeline.experts;
  EXPECT_EQ(counts.groups.size(), 1U);
  EXPECT_EQ(counts.left_out, 10);
  EXPECT_EQ(counts.of.size(), 2U * 30);
  for (const ExpertTokens& of : counts.of) {
    EXPECT_LT(of.micro_batch, 30);
    // A rank has all experts: they get its own micro-batch, each token once.
    EXPECT_EQ(std::accumulate(of.tokens.begin(), of.tokens.end(), std::int64_t{0}), 32 * 4096);
  }
  EXPECT_EQ(program::counted_micro_batches(e.program), 7);
}

// Of 8 ranks that are 2 tensor ranks of 4 replicas, 2 have columns of the same experts and 4 share all; or
// each rank has experts of its own.
TEST(ExpertLoads, GroupsAreOfRanksThatHaveAllExpertsBetweenThem) {
  const Model m = model_with({.experts = 8, .top_k = 2, .ffn_hidden = 64});
  const Training t{.global_batch = 8, .sequence = 64};
  Plan p{.tp = 2, .dp = 4, .sequence_parallel = true};
  p.micro_batches = 2;
  const auto groups = [&](std::int64_t ep, std::int64_t etp) {
    p.ep = ep;
    p.etp = etp;
    const program::Program program = program::compile(m, p, t, Stack());
    std::vector<std::vector<std::int64_t>> out;
    for (std::int64_t r = 0; r < p.ranks(); ++r) out.push_back(program::expert_group(program, r));
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  };
  using Groups = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(groups(1, 2), (Groups{{0}, {2}, {4}, {6}}));
  EXPECT_EQ(groups(2, 2), (Groups{{0, 2}, {4, 6}}));
  EXPECT_EQ(groups(4, 1), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups(8, 1), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

// The step of uneven loads lies between the draws' ends, above the step of even ones, which is the step that
// a scenario without loads has; the estimate is as near the engine as ever.
TEST(ExpertLoads, StepsAreOfTheFullestRank) {
  const Problem even = problem_with(""),
                uneven = problem_with(R"(, "expert_load": {"dirichlet": {"spread": 0.5}})");
  const Plan p = plan_of_problem();
  const Topology topology(even.cluster);
  const planner::EvaluateOptions draws{.draws = planner::kLoadDraws};
  const planner::Evaluation flat = planner::evaluate(even, topology, p, draws),
                            drawn = planner::evaluate(uneven, topology, p, draws);
  EXPECT_FALSE(flat.predicted.imbalance.has_value());
  ASSERT_TRUE(drawn.predicted.imbalance.has_value());
  const Imbalance& i = *drawn.predicted.imbalance;
  EXPECT_EQ(i.even_s, flat.predicted.step_time_s);
  EXPECT_LT(i.even_s, i.low_s);
  EXPECT_LE(i.low_s, i.mean_s);
  EXPECT_LE(i.mean_s, i.high_s);
  EXPECT_NEAR(drawn.predicted.step_time_s, i.mean_s, 0.05 * i.mean_s);
  // 8 experts over 8 ranks: the fullest has well more than the mean.
  EXPECT_GT(i.load, 1.3);
  EXPECT_GT(i.fullest, i.load);
  Estimator estimator(uneven, topology);
  const double estimate = seconds(estimator.estimate(p).step);
  EXPECT_NEAR(estimate, drawn.predicted.step_time_s, 0.02 * estimate);
}

}  // namespace
}  // namespace orrery::sim
