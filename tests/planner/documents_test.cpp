// SPDX-License-Identifier: Apache-2.0
//
// What documents of unequal length do to a step: closed forms, and the engine's steps with drawn documents.
#include <gtest/gtest.h>

#include <cmath>

#include "planner/evaluate.h"
#include "planner/search.h"
#include "sim/document_loads.h"
#include "sim/estimate/estimate.h"

namespace orrery {
namespace {

constexpr std::int64_t kSequence = 8192;

Training packed(const Documents& documents, std::int64_t batch = 16) {
  return {.global_batch = batch, .sequence = kSequence, .documents = documents};
}
// A sequence is a document's end and another's beginning, of u and 1 - u of its tokens: it has u^2 + (1 -
// u)^2 of all pairs, 2/3 in the mean. With t = |u - 1/2|, even in [0, 1/2], it has w = 3/4 + 3 t^2 of the
// mean; the largest of R draws of t has the mean square R / (R + 2) / 4, so that E[max w] = 3/4 + 3/4 R / (R
// + 2).
const Documents kAsLongAsSequences{FixedLength{kSequence}};
double mean_longest(double r) {
  return 0.75 + 0.75 * r / (r + 2);
}
std::vector<sim::StageLoad> stages(const Plan& p, double all = 1) {
  return std::vector<sim::StageLoad>(static_cast<std::size_t>(p.pp), {0.25, 1.0, all});
}
double longer(const Plan& p, const Documents& documents = kAsLongAsSequences, double all = 1) {
  return sim::DocumentLoads(packed(documents)).longer(p, stages(p, all));
}

// All meet in every layer: in each of m micro-batches they wait for the longest.
TEST(Documents, ReplicasThatGatherParametersWaitInEveryMicroBatch) {
  for (const std::int64_t dp : {2, 4, 16}) {
    const Plan p{.dp = dp, .zero = 3, .micro_batches = 8};
    EXPECT_NEAR(longer(p), 8 * (mean_longest(static_cast<double>(dp)) - 1), 8 * 0.02) << dp;
  }
}

// So they do where they scatter gradients of every micro-batch, or keep what they gathered; and where experts
// lie over all of them, but not on islands, which meet after many steps.
TEST(Documents, ReplicasMeetInWhatTheyShare) {
  const Plan alone{.dp = 4, .micro_batches = 8};
  const double apart = longer(alone), together = 8 * (mean_longest(4) - 1);
  EXPECT_LT(apart, 0.6 * together);
  Plan scatters = alone, keeps = alone, experts = alone, islands = alone, some = alone;
  scatters.zero = 2;
  keeps.zero = 3;
  keeps.reshard_after_forward = false;
  experts.ep = 4;
  islands.islands = 4;
  some.zero = 3;
  some.shard_group = 2;
  for (const Plan& p : {scatters, keeps, experts}) EXPECT_NEAR(longer(p), together, 0.16) << short_name(p);
  EXPECT_NEAR(longer(islands), apart, 1e-9);
  EXPECT_GT(longer(some), apart);
  EXPECT_LT(longer(some), 0.9 * together);
}

// With one micro-batch each, replicas that meet at the end of a step wait for the longest too; in a naive
// pipeline it takes its time on each stage.
TEST(Documents, TheLongestReplicaPacesTheStep) {
  const double more = mean_longest(16) - 1;
  EXPECT_NEAR(longer({.dp = 16, .zero = 1}), more, 0.05);
  EXPECT_NEAR(longer({.pp = 2, .dp = 16, .schedule = Schedule::kNaive}), 2 * more, 0.1);
}

// Nothing waits where all sequences have as many pairs: of documents of one token, or of one document each.
// A long document has as many pairs on each rank of a ring; short ones lie within a rank's part.
TEST(Documents, EvenSequencesMakeNobodyWait) {
  for (const Plan& p :
       {Plan{.dp = 16, .zero = 3, .micro_batches = 4}, Plan{.pp = 4, .dp = 4, .micro_batches = 8},
        Plan{.dp = 4, .cp = 4, .micro_batches = 2}}) {
    EXPECT_NEAR(longer(p, {FixedLength{1}}), 0, 1e-9) << short_name(p);
    EXPECT_NEAR(longer(p, {FixedLength{1 << 24}}), 0, 0.02) << short_name(p);
  }
  Plan gathered{.dp = 2, .cp = 8};
  gathered.cp_keys = ContextKeys::kAllGather;
  EXPECT_NEAR(longer(gathered, {FixedLength{1 << 24}}), 0, 0.02);
}

// Documents of a sequence's length, c ranks: ranks have other shares of the pairs, and the fullest paces
// them. One rank that had all tokens would have none to wait for.
TEST(Documents, RanksThatShareSequencesAreNoLongerEven) {
  Plan ring{.cp = 4}, gathered = ring, heads = ring;
  gathered.cp_keys = ContextKeys::kAllGather;
  heads.ulysses = 4;
  EXPECT_NEAR(longer(heads), longer({}), 1e-9);
  EXPECT_GT(longer(gathered), 0.1);
  EXPECT_GT(longer(ring), longer(gathered));  // it waits in each step
}

// A stage that waits for another anyway hides what its documents take.
TEST(Documents, AStageThatHasLessToDoHidesThem) {
  const Plan p{.pp = 2, .dp = 8, .micro_batches = 16};
  sim::DocumentLoads loads(packed(kAsLongAsSequences));
  const double even = loads.longer(p, {{0.25, 1, 4}, {0.25, 1, 4}}),
               uneven = loads.longer(p, {{0.25, 1, 4}, {0, 0, 8}});
  EXPECT_GT(even, 1);
  EXPECT_LT(uneven, even / 2);
}

// Very many micro-batches cost no more time to think about, and wait in proportion.
TEST(Documents, WaitsOfManyMicroBatchesAddUp) {
  const double some = longer({.pp = 4, .dp = 2, .micro_batches = 1024});
  EXPECT_NEAR(longer({.pp = 4, .dp = 2, .micro_batches = 1 << 18}) / some, 256, 0.05 * 256);
}

TEST(Documents, ServingAndRunsWithoutThemWaitForNothing) {
  EXPECT_TRUE(sim::DocumentLoads(Training{}).even());
  Training serves = packed(kAsLongAsSequences);
  serves.cache.emplace();
  EXPECT_TRUE(sim::DocumentLoads(serves).even());
}

struct DocumentCase {
  const char* stack;
  Plan plan;
};

Problem problem_with(const DocumentCase& c, const Documents& documents) {
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster("p5", {}, {}, data);
  p.cluster.nodes = 4;
  p.devices = {load_device("h100-sxm", {}, data)};
  p.stack = load_stack(c.stack, {}, data);
  p.scenario.model = preset_model("llama-3.2-1b");
  p.scenario.training = {.global_batch = c.plan.global_batch(), .sequence = 65536, .documents = documents};
  return p;
}

const DocumentCase kDocumentCases[] = {
    {"megatron-core", {.dp = 32, .zero = 1, .micro_batches = 2, .recompute = Recompute::kFull}},
    {"megatron-core", {.dp = 32, .zero = 3, .micro_batches = 2, .recompute = Recompute::kFull}},
    {"megatron-core", {.tp = 2, .pp = 4, .dp = 4, .sequence_parallel = true, .micro_batches = 8}},
    {"megatron-core",
     {.tp = 2,
      .pp = 4,
      .vpp = 2,
      .dp = 4,
      .sequence_parallel = true,
      .micro_batches = 8,
      .schedule = Schedule::kInterleaved}},
    {"orrery",
     {.tp = 2,
      .pp = 4,
      .dp = 4,
      .sequence_parallel = true,
      .micro_batches = 8,
      .schedule = Schedule::kGPipe}},
    {"orrery",
     {.tp = 2,
      .pp = 4,
      .dp = 4,
      .sequence_parallel = true,
      .micro_batches = 8,
      .schedule = Schedule::kZeroBubbleH1}},
    {"orrery",
     {.tp = 2,
      .pp = 4,
      .vpp = 2,
      .dp = 4,
      .sequence_parallel = true,
      .micro_batches = 8,
      .schedule = Schedule::kZeroBubbleV}},
    {"orrery",
     {.tp = 2,
      .pp = 4,
      .vpp = 2,
      .dp = 4,
      .sequence_parallel = true,
      .micro_batches = 8,
      .schedule = Schedule::kDualPipeV}},
    {"megatron-core", {.tp = 2, .dp = 4, .cp = 4, .sequence_parallel = true, .micro_batches = 4}},
    {"megatron-core", {.tp = 2, .pp = 8, .dp = 2, .sequence_parallel = true, .micro_batches = 16}},
};

// The engine's step with documents that were drawn, in the mean; and without them the estimate's.
TEST(Documents, ThePredictedStepIsThatOfDrawnOnes) {
  for (const Documents& documents :
       {Documents{LognormalLength{4000, 3}}, Documents{RecordedLengths{{500, 2000, 60000}}}}) {
    for (const DocumentCase& c : kDocumentCases) {
      const Problem p = problem_with(c, documents);
      const sim::Topology topology(p.cluster);
      const planner::Evaluation e = planner::evaluate(p, topology, c.plan, {.draws = planner::kLoadDraws});
      const DocumentWait& wait = e.predicted.documents.value();
      const sim::Estimate estimate = sim::Estimator(p, topology).estimate(c.plan);
      EXPECT_EQ(from_seconds(wait.wait_s), estimate.documents) << short_name(c.plan);
      EXPECT_DOUBLE_EQ(e.predicted.step_time_s, wait.even_s + wait.wait_s);
      EXPECT_DOUBLE_EQ(e.predicted.breakdown.documents_s, wait.wait_s);
      EXPECT_NEAR(ratio(estimate.step, from_seconds(e.predicted.step_time_s)), 1, 0.02) << short_name(c.plan);
      // Where the head of a short last stage paces the others, it hides what these take.
      EXPECT_GT(wait.mean_s, (c.plan.pp < 8 ? 1.02 : 0.99) * wait.even_s) << short_name(c.plan);
      EXPECT_LE(wait.low_s, wait.mean_s);
      EXPECT_GE(wait.high_s, wait.mean_s);
      EXPECT_NEAR(e.predicted.step_time_s / wait.mean_s, 1, 0.05) << short_name(c.plan);
    }
  }
}

// Kernels that keep scores compute all pairs, whatever documents there are.
TEST(Documents, ScoresInMemoryMakeNobodyWait) {
  Problem p = problem_with(kDocumentCases[2], {LognormalLength{4000, 3}});
  p.stack.flash_attention = false;
  const planner::Evaluation e =
      planner::evaluate(p, sim::Topology(p.cluster), kDocumentCases[2].plan, {.draws = 2});
  EXPECT_EQ(e.predicted.documents.value().wait_s, 0);
  EXPECT_DOUBLE_EQ(e.predicted.documents->mean_s, e.predicted.documents->even_s);
}

// Documents of all of a sequence leave attention what it was, and the step with it.
TEST(Documents, OfWholeSequencesChangeNothing) {
  const DocumentCase& c = kDocumentCases[2];
  Problem p = problem_with(c, {FixedLength{1 << 24}});
  const sim::Topology topology(p.cluster);
  const double with = planner::evaluate(p, topology, c.plan).predicted.step_time_s;
  p.scenario.training.documents.reset();
  const planner::Evaluation without = planner::evaluate(p, topology, c.plan);
  EXPECT_FALSE(without.predicted.documents);
  EXPECT_NEAR(with / without.predicted.step_time_s, 1, 0.01);
}

// The search walks no plan past the best: small spaces, all of whose plans are looked at.
TEST(Documents, TheSearchFindsTheBest) {
  Problem p = problem_with(kDocumentCases[0], {LognormalLength{4000, 3}});
  p.cluster.nodes = 1;
  p.scenario.training.global_batch = 16;
  p.scenario.search.micro_batch = {1};
  p.scenario.search.tp = {1, 2};
  p.scenario.search.vpp = {1};
  const sim::Topology topology(p.cluster);
  const planner::SearchResult found = planner::search(p, topology, {.keep = 5});
  planner::SearchOptions whole{.keep = 5};
  whole.bound = false;
  const planner::SearchResult all = planner::search(p, topology, whole);
  ASSERT_FALSE(found.best.empty());
  ASSERT_EQ(found.best.size(), all.best.size());
  for (std::size_t i = 0; i < all.best.size(); ++i)
    EXPECT_EQ(found.best[i].estimate.step, all.best[i].estimate.step) << i;
}

}  // namespace
}  // namespace orrery
