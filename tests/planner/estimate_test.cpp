// SPDX-License-Identifier: Apache-2.0
//
// The estimate against the engine: 200 plans over schedule, ZeRO, sequence parallelism, recomputation,
// overlap and uneven stages. Peak bytes are equal for all. Time is within 5 % for all of them, and within 1 %
// for 98 % where flows do not share links.
#include "sim/estimate/estimate.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <random>

#include "planner/evaluate.h"
#include "planner/search.h"
#include "program/schedule.h"
#include "sim/place.h"
#include "tests/program/random_order.h"

namespace orrery {
namespace {

Problem problem(std::mt19937& random, bool slowing) {
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster("dgx-a100", {}, {}, data);
  p.cluster.nodes = 8;  // as many devices as the largest plan has ranks
  p.devices = {load_device("a100-80gb", {}, data)};
  p.stack = load_stack("megatron-core", {}, data);
  p.stack.overlap_grad_reduce = random() % 4 != 0;
  p.stack.flash_attention = random() % 4 != 0;
  if (!slowing) p.devices[0].overlap_compute = p.devices[0].overlap_communication = 1;
  p.devices[0].host_op = Time{0};
  p.scenario.model = preset_model(random() % 2 == 0 ? "megatron-1.7b" : "llama-2-7b");
  p.scenario.training.sequence = 2048;
  return p;
}

// The i-th plan of a stratified list: every combination of the discrete axes comes round.
Plan stratified(int i, std::mt19937& random, const Model& m) {
  constexpr Schedule kSchedules[] = {Schedule::k1F1B, Schedule::kInterleaved, Schedule::kGPipe,
                                     Schedule::kZeroBubbleH1, Schedule::kZeroBubbleV};
  Plan p;
  p.schedule = kSchedules[i % 5];
  p.zero = i / 5 % 4;
  if (p.zero >= 2 && program::splits_backward(p.schedule)) p.zero -= 2;
  p.recompute = static_cast<Recompute>(i / 20 % 3);
  p.recompute_layers = p.recompute == Recompute::kFull ? 1 + static_cast<std::int64_t>(random() % 3) : 1;
  p.tp = 1 << random() % 3;
  p.sequence_parallel = p.tp > 1 && i / 60 % 2 == 0;
  p.pp = p.schedule == Schedule::k1F1B && random() % 4 == 0 ? 1 : 2 + static_cast<std::int64_t>(random() % 3);
  p.vpp = p.schedule == Schedule::kZeroBubbleV   ? 2
          : p.schedule == Schedule::kInterleaved ? 2 + static_cast<std::int64_t>(random() % 2)
                                                 : 1;
  p.dp = 1 << random() % 3;
  if (p.dp == 1) p.zero = 0;
  p.micro_batch = 1 + static_cast<std::int64_t>(random() % 2);
  p.micro_batches = p.pp * (1 + static_cast<std::int64_t>(random() % 8));
  std::mt19937 of_parts(static_cast<unsigned>(i));
  if (p.recompute == Recompute::kSelective && i % 2 == 0) {
    for (const RecomputePart part : depth_of(m).parts().list()) {
      if (of_parts() % 2 == 0) p.recompute_parts.push_back(part);
    }
  }
  if (!p.sequence_parallel && i % 4 == 0) p.loss_chunks = 2 << of_parts() % 4;
  if (i % 3 == 0 && p.pp > 1) {
    p.chunk_layers = layers_by_chunk(p, m.layers);
    ++p.chunk_layers[0];
    --p.chunk_layers.back();
  }
  if (p.recompute == Recompute::kFull && p.recompute_layers == 1 && of_parts() % 2 == 0) {
    const auto layers = layers_by_chunk(p, m.layers);
    p.recompute_first = of_parts() % *std::max_element(layers.begin(), layers.end());
    if (of_parts() % 2 == 0) {
      std::vector<std::int64_t> by_chunk;
      for (const std::int64_t n : layers) by_chunk.push_back(of_parts() % (n + 1));
      p = with_recomputed(p, by_chunk, m.layers);
    }
  }
  return p;
}

// The engine, with or without links that transfers share.
Time engine(const Problem& p, const sim::Topology& topology, const program::Program& program,
            const Plan& plan, bool sharing) {
  const sim::PlanLinks links = sim::plan_links(topology, plan);
  const sim::CostModel cost(p.devices, p.stack, p.cluster, links, p.scenario.training, plan.ranks());
  const sim::EngineOptions options{.record = false};
  const sim::Layout layout = sharing
                                 ? sim::place(topology, program, cost)
                                 : sim::by_stage(program, sim::price(program, cost), cost.pace(sim::only(0)));
  return sim::simulate(program, layout, options).step;
}

// Of the estimate from the engine.
struct Errors {
  std::vector<double> alone, sharing;  // where flows do not share links, and where they do
  double most = 0.05;
  void add(const Problem& p, const Plan& plan, const std::string& which) {
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    const sim::Estimate e = estimator.estimate(plan);
    const auto program = program::compile(p.scenario.model, plan, p.scenario.training, p.stack);
    Bytes peak{0};
    for (const auto& c : program.classes) peak = std::max(peak, c.logical_peak);
    EXPECT_EQ(e.peak, peak) << short_name(plan) << " " << which;
    const Time step = engine(p, topology, program, plan, true);
    const double error = std::abs(ratio(e.step, step) - 1);
    const bool shared = ratio(step, engine(p, topology, program, plan, false)) > 1.001;
    EXPECT_LT(error, most) << short_name(plan) << " " << which;
    (shared ? sharing : alone).push_back(error);
  }
};

double percentile(std::vector<double> all, int percent) {
  std::sort(all.begin(), all.end());
  return all[all.size() * static_cast<std::size_t>(percent) / 100];
}

Errors errors_of_200(bool slowing, unsigned seed) {
  std::mt19937 random(seed);
  Errors errors;
  for (int i = 0; i < 200; ++i) {
    Problem p = problem(random, slowing);
    const Plan plan = stratified(i, random, p.scenario.model);
    Training& training = p.scenario.training;
    training.global_batch = plan.global_batch();
    training.lamb = i % 4 == 1;
    if (i % 4 == 2)
      training.muon = Muon{.tp_mode = i % 8 == 2 ? MuonTpMode::kDuplicated : MuonTpMode::kBlockwise};
    if (i % 12 == 2) {
      training.precision = Precision::kFp32;
      training.math = Math::kFp32;
    }
    if (i % 7 == 0) training.clip = 0;  // no stage waits for the others' gradients
    errors.add(p, plan, fmt::format("of {}, seed {} plan {}", p.scenario.model.name, seed, i));
  }
  return errors;
}

TEST(Estimate, EqualsTheEngineWhereComputeAndCollectivesDoNotSlowEachOther) {
  const Errors errors = errors_of_200(false, 20260214);
  ASSERT_GT(errors.alone.size(), 100U);
  ASSERT_GT(errors.sharing.size(), 20U);
  EXPECT_LT(percentile(errors.alone, 50), 0.001);
  EXPECT_LT(percentile(errors.alone, 95), 0.005);
  EXPECT_LT(percentile(errors.alone, 98), 0.01);
  EXPECT_LT(percentile(errors.sharing, 95), 0.03);
}
// Each chunk recomputes another number of its layers, none and all among them.
TEST(Estimate, EqualsTheEngineWhereChunksRecomputeDifferently) {
  constexpr unsigned kDifferently = 20261129;
  std::mt19937 random(kDifferently);
  Errors errors;
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    Problem p = problem(random, false);
    Plan plan = stratified(i, random, p.scenario.model);
    std::vector<std::int64_t> by_chunk;
    for (const std::int64_t n : layers_by_chunk(plan, p.scenario.model.layers))
      by_chunk.push_back(random() % 4 == 0 ? n : static_cast<std::int64_t>(random()) % (n + 1));
    plan = with_recomputed(plan, by_chunk, p.scenario.model.layers);
    different += !plan.recompute_by_chunk.empty();
    p.scenario.training.global_batch = plan.global_batch();
    errors.add(p, plan, fmt::format("of {}, seed {} plan {}", p.scenario.model.name, kDifferently, i));
  }
  EXPECT_GT(different, 80);
  EXPECT_LT(percentile(errors.alone, 50), 0.001);
  EXPECT_LT(percentile(errors.alone, 95), 0.01);
}
// Listed schedules. A designed one takes the time to the picosecond that it takes by its name; one that
// nobody designed is walked, and its bytes are the engine's.
TEST(Estimate, EqualsTheEngineOfListedSchedules) {
  constexpr unsigned kListedSeed = 20261201;
  std::mt19937 random(kListedSeed);
  Errors errors;
  int undesigned = 0;
  for (int i = 0; i < 100; ++i) {
    Problem p = problem(random, false);
    Plan plan = stratified(i, random, p.scenario.model);
    p.scenario.training.global_batch = plan.global_batch();
    Plan listed = plan;
    listed.schedule = Schedule::kListed;
    listed.schedule_order = program::order_of(plan);
    const sim::Topology topology(p.cluster);
    const auto step = [&](const Plan& of) {
      return engine(p, topology, program::compile(p.scenario.model, of, p.scenario.training, p.stack), of,
                    true);
    };
    EXPECT_EQ(step(listed), step(plan)) << short_name(plan) << " seed " << kListedSeed << " plan " << i;
    errors.add(p, listed, fmt::format("listed, seed {} plan {}", kListedSeed, i));
    listed = program::in_random_order(plan, random);
    if (!program::order_problem(listed).empty()) continue;
    ++undesigned;
    errors.add(p, listed, fmt::format("random order, seed {} plan {}", kListedSeed, i));
  }
  EXPECT_GT(undesigned, 40);
  EXPECT_LT(percentile(errors.alone, 50), 0.002);
  EXPECT_LT(percentile(errors.alone, 95), 0.02);
}
TEST(Estimate, IsNearTheEngineWhereTheyDo) {
  for (const unsigned seed : {20260214U, 20261120U}) {
    const Errors errors = errors_of_200(true, seed);
    EXPECT_LT(percentile(errors.alone, 50), 0.001);
    EXPECT_LT(percentile(errors.alone, 95), 0.01);
    EXPECT_LT(percentile(errors.sharing, 95), 0.04);
  }
}

// What decides the end of a step, one plan for each: within 0.6 % of the engine.
// Blocks that differ along the depth: a dense beginning, then two kinds in turn, then an end of a third.
TEST(Estimate, EqualsTheEngineOfBlocksThatDiffer) {
  std::mt19937 random(20261125);
  Errors errors;
  for (int i = 0; i < 120; ++i) {
    Problem p = problem(random, false);
    Model& m = p.scenario.model;
    const ModelBlock standard = standard_block(m);
    ModelBlock wide = standard, beside = standard;
    std::get<MlpLayer>(wide.layers[1].is).ffn_hidden = 6 * m.hidden;
    beside.form = BlockForm::kParallelOneNorm;
    std::get<MlpLayer>(beside.layers[1].is).ffn_hidden = 3 * m.hidden;
    const auto alternating = static_cast<std::int64_t>(random() % 14);
    m.blocks = {{3, {wide}}, {1 + alternating, {standard, beside}}, {4, {beside}}, {5, {wide}}};
    m.layers = 3 + 2 * (1 + alternating) + 9;
    Plan plan = stratified(i, random, m);
    if (plan.zero == 3 && random() % 2 == 0) plan.reshard_after_forward = false;
    p.scenario.training.global_batch = plan.global_batch();
    errors.add(p, plan, fmt::format("of {} blocks of {}, plan {}", m.layers, m.name, i));
  }
  ASSERT_GT(errors.alone.size(), 60U);
  EXPECT_LT(percentile(errors.alone, 50), 0.001);
  EXPECT_LT(percentile(errors.alone, 95), 0.01);
}

// Chunks without layers: ends that hold the embedding or the head alone, and stages in between that only pass
// on.
TEST(Estimate, EqualsTheEngineOfChunksWithoutLayers) {
  std::mt19937 random(20261127);
  Errors errors;
  struct Case {
    std::int64_t pp, vpp;
    std::vector<std::int64_t> layers;
  };
  const Case cases[] = {{4, 1, {0, 12, 12, 0}},
                        {3, 1, {12, 0, 12}},
                        {4, 2, {0, 4, 4, 4, 4, 4, 4, 0}},
                        {2, 3, {0, 6, 3, 3, 12, 0}}};
  for (const Case& c : cases) {
    for (const std::int64_t zero : {0, 1}) {
      Problem p = problem(random, false);
      p.scenario.model = preset_model("megatron-1.7b");
      ASSERT_EQ(p.scenario.model.layers, 24);
      const Plan plan{.pp = c.pp,
                      .vpp = c.vpp,
                      .dp = 2,
                      .zero = zero,
                      .micro_batches = 3 * c.pp,
                      .schedule = c.vpp > 1 ? Schedule::kInterleaved : Schedule::k1F1B,
                      .chunk_layers = c.layers};
      p.scenario.training.global_batch = plan.global_batch();
      program::check_plan(p.scenario.model, plan, p.scenario.training, {});
      errors.add(p, plan, fmt::format("layers {}", fmt::join(c.layers, " ")));
    }
  }
}

// State and activations in the hosts' memory, over links from slow ones that decide the step to fast ones.
TEST(Estimate, EqualsTheEngineOfWhatIsOffloaded) {
  std::mt19937 random(20261129), more(20261130);
  Errors errors;
  errors.most = 0.065;  // where copies over slow links take ten times what compute does
  for (int i = 0; errors.alone.size() + errors.sharing.size() < 200; ++i) {
    Problem p = problem(random, false);
    Plan plan = stratified(i, random, p.scenario.model);
    Offload& offload = plan.offload.emplace();
    constexpr double kShares[] = {0, 0.25, 0.5, 1};
    offload.optimizer = kShares[random() % 4];
    offload.activation_layers = program::splits_backward(plan.schedule) || random() % 2 == 0
                                    ? 0
                                    : static_cast<std::int64_t>(random() % 12);
    if (plan.zero == 3 && random() % 2 == 0) {
      offload.parameters = true;
      offload.optimizer = 1;
    }
    if (offload.optimizer > 0) {
      offload.overlap = random() % 3 != 0;
      constexpr OnDrives kOnDrives[] = {OnDrives::kNothing, OnDrives::kOptimizer, OnDrives::kAll};
      offload.nvme = kOnDrives[more() % (offload.parameters ? 3 : 2)];
    }
    const auto drives = Bandwidth{(1LL << more() % 5) * 4'000'000'000};
    p.cluster.host->nvme = Drives{.capacity = Bytes{1LL << 44}, .read = drives, .write = drives / 2};
    p.cluster.host->link = Bandwidth{(1LL << random() % 5) * 8'000'000'000};
    p.stack.keeps_offloaded_master = random() % 2 == 0;
    p.scenario.training.global_batch = plan.global_batch();
    if (i % 7 == 0) p.scenario.training.clip = 0;
    errors.add(p, plan,
               fmt::format("of {}, link {}, drives {}, plan {}", p.scenario.model.name,
                           format(p.cluster.host->link), format(drives), i));
  }
  ASSERT_GT(errors.alone.size(), 100U);
  EXPECT_LT(percentile(errors.alone, 50), 0.001);
  EXPECT_LT(percentile(errors.alone, 95), 0.015);
  EXPECT_LT(percentile(errors.sharing, 95), 0.05);
}

// Eight experts, of which a token has two, beside columns that all tokens share.
ModelBlock sparse_block(const Model& m, std::int64_t shared_columns, double balance_loss) {
  ModelBlock out = standard_block(m);
  out.layers[1] = {ExpertsLayer{.experts = 8,
                                .top_k = 2,
                                .ffn_hidden = m.hidden / 2,
                                .shared_ffn_hidden = shared_columns,
                                .balance_loss = balance_loss}};
  return out;
}

// Experts over ranks of their own: every second block has eight, of which a token has two; tensor ranks split
// them, or have some each, and so have replicas.
TEST(Estimate, EqualsTheEngineOfExpertsOnTheirOwnRanks) {
  std::mt19937 random(20261126);
  Errors errors;
  errors.most = 0.07;  // reductions of every micro-batch beside exchanges, on the same links
  for (int i = 0; errors.alone.size() + errors.sharing.size() < 150; ++i) {
    Problem p = problem(random, false);
    Model& m = p.scenario.model;
    const ModelBlock sparse = sparse_block(m, i % 2 == 0 ? 0 : m.hidden, 0.01);
    m.blocks = {{m.layers / 2, {standard_block(m), sparse}}};
    Plan plan = stratified(i, random, m);
    plan.ep = 1 << random() % 4;
    if (random() % 2 == 0) plan.etp = 1 << random() % 3;
    if (!plan.splits_experts() || program::experts_problem(plan)) continue;
    p.scenario.training.global_batch = plan.global_batch();
    if (i % 3 == 0) p.scenario.training.muon = Muon{};
    errors.add(p, plan, fmt::format("of {}, plan {}", m.name, i));
  }
  ASSERT_GT(errors.alone.size(), 50U);
  EXPECT_LT(percentile(errors.alone, 50), 0.001);
  EXPECT_LT(percentile(errors.alone, 95), 0.01);
  EXPECT_LT(percentile(errors.sharing, 95), 0.05);
}

// Forwards and backwards side by side, on one stage and in interleaved chunks; blocks without experts make
// pieces longer.
TEST(Estimate, EqualsTheEngineOfPairs) {
  std::mt19937 random(20261130);
  Errors errors;
  errors.most = 0.065;
  std::vector<double> gains;
  for (int i = 0; errors.alone.size() + errors.sharing.size() < 120; ++i) {
    Problem p = problem(random, false);
    Model& m = p.scenario.model;
    const ModelBlock sparse = sparse_block(m, i % 2 == 0 ? 0 : m.hidden, 0);
    if (i % 3 == 0)
      m.blocks = {{m.layers, {sparse}}};
    else if (i % 3 == 1)
      m.blocks = {{3, {standard_block(m)}}, {m.layers - 3, {sparse}}};
    else
      m.blocks = {{m.layers / 2, {standard_block(m), sparse}}};
    Plan plan = stratified(i, random, m);
    plan.chunk_layers.clear();
    plan.zero %= 2;
    plan.ep = 2 << random() % 3;
    if (random() % 2 == 0) plan.etp = 1;
    plan.overlap_exchanges = true;
    if (!program::overlap_problem(plan).empty() || program::experts_problem(plan)) continue;
    p.scenario.training.global_batch = plan.global_batch();
    errors.add(p, plan, fmt::format("of {}, plan {}", m.name, i));
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    const Time step = estimator.estimate(plan).step;
    EXPECT_LE(estimator.lower_bound(plan), step) << short_name(plan);
    plan.overlap_exchanges = false;
    gains.push_back(ratio(estimator.estimate(plan).step, step));
  }
  ASSERT_GT(errors.alone.size(), 30U);
  EXPECT_LT(percentile(errors.alone, 50), 0.003);
  EXPECT_LT(percentile(errors.alone, 95), 0.02);
  EXPECT_LT(percentile(errors.sharing, 95), 0.05);
  EXPECT_GT(percentile(gains, 75), 1.03);
}

// DualPipeV, with whole and split backwards: dense and sparse models, with modules of multi-token prediction
// or without, one after the other and side by side, whose pieces of memory meet.
TEST(Estimate, EqualsTheEngineOfDualPipeV) {
  constexpr unsigned kDualSeed = 20261203;
  RecordProperty("seed", kDualSeed);
  std::mt19937 random(kDualSeed);
  Errors errors;
  errors.most = 0.15;
  int pairs = 0, with_mtp = 0;
  for (int i = 0; errors.alone.size() + errors.sharing.size() < 200; ++i) {
    Problem p = problem(random, false);
    Model& m = p.scenario.model;
    p.cluster.nodes = 16;
    p.stack.exchange_units = i % 2 == 0 ? 20 : 0;
    if (i % 4 == 0) {
      m = preset_model("llama-2-7b");
      m.mtp_layers = 1 + static_cast<std::int64_t>(random() % 2);
    }
    const bool has_experts = i % 3 != 0;
    if (has_experts) m.blocks = {{3, {standard_block(m)}}, {m.layers - 3, {sparse_block(m, 0, 0.01)}}};
    Plan plan = stratified(i, random, m);
    plan.chunk_layers.clear();
    plan.recompute_by_chunk.clear();
    plan.recompute_first = 0;
    plan.loss_chunks = m.mtp_layers > 0 ? 1 : plan.loss_chunks;
    plan.schedule = Schedule::kDualPipeV;
    plan.vpp = 2;
    plan.zero %= 2;
    plan.pp = 1 + static_cast<std::int64_t>(random() % 5);
    plan.micro_batches =
        2 * plan.pp + static_cast<std::int64_t>(random() % (4 * static_cast<unsigned>(plan.pp)));
    if (i % 5 == 0) {
      plan.chunk_layers = layers_by_chunk(plan, m.layers);
      --plan.chunk_layers.back();
      ++plan.chunk_layers.front();
    }
    // The last chunk has the modules and the heads alone.
    if (i % 8 == 4) {
      plan.chunk_layers = layers_by_chunk(plan, m.layers);
      plan.chunk_layers.front() += std::exchange(plan.chunk_layers.back(), 0);
    }
    if (has_experts) {
      plan.ep = 2 << random() % 2;
      plan.overlap_exchanges = random() % 3 != 0;
      if (!plan.splits_experts() || program::experts_problem(plan)) continue;
      if (!program::overlap_problem(plan).empty()) plan.overlap_exchanges = false;
    }
    pairs += plan.overlap_exchanges;
    with_mtp += m.mtp_layers > 0;
    p.scenario.training.global_batch = plan.global_batch();
    errors.add(p, plan, fmt::format("of {}, seed {} plan {}", m.name, kDualSeed, i));
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    EXPECT_LE(estimator.lower_bound(plan), estimator.estimate(plan).step) << short_name(plan);
  }
  EXPECT_GT(pairs, 40);
  EXPECT_GT(with_mtp, 30);
  ASSERT_GT(errors.alone.size(), 50U);
  EXPECT_LT(percentile(errors.alone, 50), 0.003);
  EXPECT_LT(percentile(errors.alone, 95), 0.02);
  // Transfers both ways and exchanges on the same NICs: the estimate does not see them meet.
  EXPECT_LT(percentile(errors.sharing, 90), 0.05);
}

// The closed form of interleaved chunks of unequal size is no bound: 32 layers in six and in nine chunks.
TEST(Estimate, TheLowerBoundOfUnequalInterleavedChunksIsABound) {
  std::mt19937 random(7);
  for (const std::int64_t v : {2, 3}) {
    for (int i = 0; i < 12; ++i) {
      Problem p = problem(random, true);
      p.scenario.model = preset_model("llama-2-7b");
      Plan plan{.tp = 2,
                .pp = 3,
                .vpp = v,
                .dp = i % 3 == 0 ? 4 : 1,
                .zero = i % 3 == 0 ? 2 : 0,
                .micro_batch = 1 + i % 2,
                .micro_batches = 3 * (2 + i % 5),
                .schedule = Schedule::kInterleaved,
                .recompute = i % 2 == 0 ? Recompute::kFull : Recompute::kNone};
      if (i % 2 == 0) plan.recompute_layers = 2;
      p.scenario.training.global_batch = plan.global_batch();
      const sim::Topology topology(p.cluster);
      sim::Estimator estimator(p, topology);
      EXPECT_LE(estimator.lower_bound(plan), estimator.estimate(plan).step) << short_name(plan);
    }
  }
}

// Modules of multi-token prediction behind the last block, which is dense or sparse, with the embedding tied
// or apart; forwards and backwards side by side in some.
TEST(Estimate, EqualsTheEngineOfMultiTokenPrediction) {
  std::mt19937 random(20261202);
  Errors errors;
  errors.most = 0.07;
  int pairs = 0, sparse_plans = 0, alone = 0;
  for (int i = 0; errors.alone.size() + errors.sharing.size() < 150; ++i) {
    Problem p = problem(random, false);
    Model& m = p.scenario.model;
    m = preset_model("llama-2-7b");
    m.tied_embeddings = random() % 2 == 0;
    m.mtp_layers = 1 + static_cast<std::int64_t>(random() % 3);
    const bool has_experts = i % 4 != 0;
    const ModelBlock sparse = sparse_block(m, 0, 0.01);
    if (has_experts && i % 3 == 0)
      m.blocks = {{3, {sparse}}, {m.layers - 3, {standard_block(m)}}};
    else if (has_experts)
      m.blocks = {{3, {standard_block(m)}}, {m.layers - 3, {sparse}}};
    Plan plan = stratified(i, random, m);
    plan.zero %= 2;
    plan.loss_chunks = 1;
    // The last chunk has the modules and the heads alone.
    const bool apart = i % 5 == 1 && plan.pp > 1;
    if (apart) {
      plan.recompute_first = 0;
      plan.recompute_by_chunk.clear();
      plan.chunk_layers.clear();
      plan.chunk_layers = layers_by_chunk(plan, m.layers);
      plan.chunk_layers.front() += std::exchange(plan.chunk_layers.back(), 0);
    }
    alone += apart;
    if (has_experts) {
      plan.ep = 2 << random() % 3;
      plan.overlap_exchanges = random() % 2 == 0;
      if (!plan.splits_experts() || program::experts_problem(plan)) continue;
      if (!program::overlap_problem(plan).empty()) plan.overlap_exchanges = false;
    }
    pairs += plan.overlap_exchanges;
    sparse_plans += has_experts;
    p.scenario.training.global_batch = plan.global_batch();
    errors.add(p, plan, fmt::format("of {}, plan {}", m.name, i));
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    EXPECT_LE(estimator.lower_bound(plan), estimator.estimate(plan).step) << short_name(plan);
  }
  EXPECT_GT(pairs, 5);
  EXPECT_GT(sparse_plans, 40);
  EXPECT_GT(alone, 15);
  ASSERT_GT(errors.alone.size(), 50U);
  EXPECT_LT(percentile(errors.alone, 50), 0.001);
  EXPECT_LT(percentile(errors.alone, 95), 0.01);
  EXPECT_LT(percentile(errors.sharing, 95), 0.05);
}

// ZeRO's shards on 4 of 16 ranks, experts on all 16, or on 8 of them: replicas of shards sum quarters.
TEST(Estimate, EqualsTheEngineOfFewerShardsThanExpertsHaveRanks) {
  std::mt19937 random(20261128);
  Errors errors;
  for (const std::int64_t ep : {8, 16}) {
    for (const std::int64_t zero : {1, 2, 3}) {
      Problem p = problem(random, false);
      p.cluster.nodes = std::max<std::int64_t>(p.cluster.nodes, 16);
      Model& m = p.scenario.model;
      ModelBlock sparse = standard_block(m);
      sparse.layers[1] = {ExpertsLayer{.experts = 16, .top_k = 2, .ffn_hidden = m.hidden / 2}};
      m.blocks = {{m.layers, {sparse}}};
      const Plan plan{.dp = 16, .ep = ep, .zero = zero, .shard_group = 4, .micro_batches = 4};
      p.scenario.training.global_batch = plan.global_batch();
      errors.add(p, plan, m.name);
    }
  }
}

// Ranks that share sequences, in all ways; every third model has experts, which lie over these ranks too.
TEST(Estimate, EqualsTheEngineOfSharedSequences) {
  std::mt19937 random(20261127);
  Errors errors;
  // As above: keys that go around beside reductions of every micro-batch. A ring over nodes takes one adapter
  // whole, which transfers between stages use too.
  errors.most = 0.095;
  for (int i = 0; errors.alone.size() + errors.sharing.size() < 150; ++i) {
    Problem p = problem(random, false);
    Model& m = p.scenario.model;
    if (i % 3 == 0) {
      ModelBlock sparse = standard_block(m);
      sparse.layers[1] = {ExpertsLayer{.experts = 8, .top_k = 2, .ffn_hidden = m.hidden / 2}};
      m.blocks = {{m.layers / 2, {standard_block(m), sparse}}};
    }
    Plan plan = stratified(i, random, m);
    plan.cp = 2 << random() % 3;
    plan.ulysses = 1 << random() % 4;
    if (plan.cp % plan.ulysses != 0) continue;
    if (plan.ring() > 1) plan.cp_keys = random() % 2 == 0 ? ContextKeys::kRing : ContextKeys::kAllGather;
    if (i % 3 == 0) plan.ep = 1 << random() % 4;
    plan.dp = std::max<std::int64_t>(1, plan.dp / plan.cp);
    if (plan.shard_group > 0 && plan.dp % plan.shard_group != 0) plan.shard_group = 0;
    if (plan.ranks() > p.cluster.devices()) continue;
    p.scenario.training.global_batch = plan.global_batch();
    try {
      program::check_plan(m, plan, p.scenario.training, Cursor{});
    } catch (const InputError&) {
      continue;
    }
    errors.add(p, plan, fmt::format("of {}, plan {}", m.name, i));
  }
  ASSERT_GT(errors.alone.size(), 50U);
  EXPECT_LT(percentile(errors.alone, 50), 0.001);
  EXPECT_LT(percentile(errors.alone, 95), 0.01);
  EXPECT_LT(percentile(errors.sharing, 95), 0.06);
}

TEST(Estimate, EqualsTheEngineAtTheEndOfAStep) {
  struct Case {
    const char* about;
    const char* cluster;
    std::int64_t nodes;
    const char *stack, *model;
    std::int64_t sequence;
    Plan plan;
  };
  const Case cases[] = {
      {"tensor ranks add parts of gradients beside recomputation",
       "p5",
       13,
       "maxtext",
       "gpt2-350m",
       1024,
       {.tp = 2, .dp = 6, .sequence_parallel = true, .recompute = Recompute::kSelective}},
      {"the embedding's reduction runs beside more than four layers",
       "designed-fat-tree-4to1",
       13,
       "fsdp",
       "megatron-1.7b",
       128,
       {.dp = 7, .zero = 2, .micro_batches = 5}},
      {"and those of both ends beside the last backward alone",
       "gb200-nvl72",
       11,
       "torchtitan",
       "llama-3-8b",
       512,
       {.tp = 2, .dp = 16, .sequence_parallel = true, .zero = 2, .shard_group = 4, .micro_batch = 2}},
      {"tensor-parallel ops and reductions have cables of their own",
       "nd40rs-v2",
       8,
       "torchtitan",
       "llama-2-7b",
       2048,
       {.tp = 2,
        .pp = 8,
        .vpp = 2,
        .dp = 4,
        .sequence_parallel = true,
        .zero = 2,
        .micro_batches = 16,
        .schedule = Schedule::kInterleaved}},
      {"only replicas of shards are reached over the network",
       "designed-dragonfly",
       4,
       "orrery-graph",
       "megatron-1.7b",
       2048,
       {.tp = 4, .dp = 6, .zero = 2, .shard_group = 2}},
      {"no pipeline has the slowest pair at every hop",
       "p5",
       11,
       "orrery-graph",
       "gpt2-350m",
       512,
       {.pp = 5, .vpp = 2, .dp = 6, .schedule = Schedule::kZeroBubbleV}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.about);
    const DataFolders data;
    Problem p;
    p.cluster = load_cluster(c.cluster, {}, {}, data);
    p.cluster.nodes = c.nodes;
    p.devices = {load_device(p.cluster.device, {}, data)};
    p.stack = load_stack(c.stack, {}, data);
    p.scenario.model = preset_model(c.model);
    p.scenario.training = {.global_batch = c.plan.global_batch(), .sequence = c.sequence};
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    const Time step = planner::evaluate(p, topology, c.plan, {}).simulation.step;
    EXPECT_NEAR(ratio(estimator.estimate(c.plan).step, step), 1, 0.007) << short_name(c.plan);
  }
}

// Eight-way tensor parallelism in chunks of one or two layers: what a chunk begins and ends with weighs most.
TEST(Estimate, EqualsTheEngineForManyShortChunks) {
  std::mt19937 random(3);
  Errors errors;
  for (int i = 0; i < 8; ++i) {
    Problem p = problem(random, false);
    p.scenario.model = preset_model("llama-2-7b");
    Plan plan;
    plan.schedule = Schedule::kInterleaved;
    plan.tp = 8;
    plan.pp = 4;
    plan.vpp = i % 2 == 0 ? 4 : 8;
    plan.micro_batch = 1;
    plan.micro_batches = 4 + 12 * (i / 2 % 2);
    plan.sequence_parallel = i / 4 % 2 == 0;
    p.scenario.training.global_batch = plan.global_batch();
    errors.add(p, plan, "");
  }
  EXPECT_EQ(errors.alone.size(), 8U);
  EXPECT_LT(percentile(errors.alone, 99), 0.01);
}

// A kernel's gap of 1 ms makes nearly all of the step. On its way up the norm pays one at each of the 3 hops
// between four stages, where a stage adds its own part; nobody adds on the way down: 3 ms in all, not 6.
TEST(Estimate, TheNormComesDownWithoutAdding) {
  std::mt19937 random(1);
  Problem p = problem(random, false);
  p.devices[0].kernel_gap = Time{1'000'000'000};
  p.scenario.model = preset_model("tiny-gpt");
  p.scenario.training = {.global_batch = 1, .sequence = 64, .clip = 1};
  const Plan plan{.pp = 4};
  const sim::Topology topology(p.cluster);
  sim::Estimator estimator(p, topology);
  const auto program = program::compile(p.scenario.model, plan, p.scenario.training, p.stack);
  EXPECT_NEAR(seconds(estimator.estimate(plan).step), seconds(engine(p, topology, program, plan, true)),
              0.0005);
}

// An op takes the host 1 s and the device nearly nothing, so the step takes as many seconds as it has ops.
// Each of the 7 blocks (the embedding, 4 layers, the last norm and the head) fills a bucket of 1 B, so that
// the end of the step has 7 updates and clears 7 gradients: 14 ops.
TEST(Estimate, TheHostIssuesEveryOpOfAStep) {
  std::mt19937 random(1);
  Problem p = problem(random, false);
  p.devices[0].host_op = Time{1'000'000'000'000};
  p.stack.launch = Launch::kEager;
  p.stack.host_cost_factor = 1;
  p.stack.bucket = Bytes{1};
  p.scenario.model = preset_model("tiny-llama");
  p.scenario.training = {.global_batch = 1, .sequence = 64, .clip = 0};
  const Plan plan;
  const sim::Topology topology(p.cluster);
  sim::Estimator estimator(p, topology);
  const auto program = program::compile(p.scenario.model, plan, p.scenario.training, p.stack);
  EXPECT_NEAR(seconds(estimator.estimate(plan).step), static_cast<double>(program.ops_per_step()), 0.5);
}

// What the software takes before work on what arrived passes once for each forward and backward on the way of
// a micro-batch: 2 pp vpp times (a second micro-batch that follows it adds 2). m micro-batches hold up the
// last stage of two, which has more layers, by 2 m of it, and the first by one before and one after. A stage
// alone hands nothing over.
TEST(Estimate, AHandoverPassesBeforeEachForwardAndBackward) {
  std::mt19937 random(1);
  Problem p = problem(random, false);
  p.scenario.model = preset_model("megatron-1.7b");
  p.cluster.intra_latency = p.cluster.nic_latency = Time{0};
  const Time handover{300'000'000};
  const auto more = [&](const Plan& plan) {
    std::array<Time, 2> engine_takes, estimated;
    for (const std::size_t with : {0U, 1U}) {
      p.stack.handover = with == 1 ? handover : Time{0};
      const sim::Topology topology(p.cluster);
      const auto program = program::compile(p.scenario.model, plan, p.scenario.training, p.stack);
      engine_takes[with] = engine(p, topology, program, plan, true);
      estimated[with] = sim::Estimator(p, topology).estimate(plan).step;
    }
    const auto in_handovers = [&](const std::array<Time, 2>& takes) {
      return ratio(takes[1] - takes[0], handover);
    };
    EXPECT_NEAR(in_handovers(estimated), in_handovers(engine_takes), 1e-6) << short_name(plan);
    return in_handovers(engine_takes);
  };
  EXPECT_EQ(more({.micro_batches = 4}), 0);
  EXPECT_NEAR(more({.pp = 2, .micro_batches = 1}), 4, 1e-6);
  EXPECT_NEAR(more({.pp = 4, .micro_batches = 1}), 8, 1e-6);
  EXPECT_NEAR(more({.pp = 2, .vpp = 3, .micro_batches = 2, .schedule = Schedule::kInterleaved}), 14, 1e-6);
  const std::int64_t layers = p.scenario.model.layers;
  EXPECT_NEAR(more({.pp = 2, .micro_batches = 5, .chunk_layers = {layers / 2 - 2, layers / 2 + 2}}),
              2 * 5 + 2, 1e-6);
}

TEST(Estimate, TheLowerBoundsAreBounds) {
  std::mt19937 random(5);
  std::vector<double> shares;  // of the peak, that the bound knows of
  for (int i = 0; i < 300; ++i) {
    Problem p = problem(random, true);
    const Plan plan = stratified(i, random, p.scenario.model);
    p.scenario.training.global_batch = plan.global_batch();
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    const sim::Estimate e = estimator.estimate(plan);
    const Time least = estimator.lower_bound(plan);
    EXPECT_LE(least, e.step) << short_name(plan);
    const sim::Estimator::HeldBytes held = estimator.held_bytes(plan);
    const Bytes least_peak = estimator.least_peak(plan, held);
    EXPECT_LE(held.most, least_peak);
    EXPECT_LE(least_peak, e.peak) << short_name(plan);
    shares.push_back(ratio(least_peak, e.peak));
    Plan keeps_all = plan;
    keeps_all.recompute = Recompute::kNone;
    keeps_all.recompute_layers = 1;
    EXPECT_LE(estimator.lower_bound(keeps_all), e.step) << short_name(plan);
  }
  std::sort(shares.begin(), shares.end());
  EXPECT_GT(shares.front(), 0.02);
  EXPECT_GT(shares[shares.size() / 2], 0.8);
}

}  // namespace
}  // namespace orrery
