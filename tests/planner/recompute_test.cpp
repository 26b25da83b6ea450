// SPDX-License-Identifier: Apache-2.0
//
// How many layers each chunk recomputes: bytes against the compiled program, choices against all there are.
#include "planner/recompute.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "program/program.h"

namespace orrery::planner {
namespace {

constexpr unsigned kChoiceSeed = 20261129;

// Calls `see` with every choice of recomputed layers.
void for_each_choice(const StageChoices& stage,
                     const std::function<void(const std::vector<std::int64_t>&)>& see) {
  std::vector<std::int64_t> recomputed(stage.chunks.size());
  for (;;) {
    see(recomputed);
    std::size_t c = 0;
    while (c < recomputed.size() && recomputed[c] + 1 == std::ssize(stage.chunks[c])) recomputed[c++] = 0;
    if (c == recomputed.size()) return;
    ++recomputed[c];
  }
}

std::int64_t time_of(const StageChoices& stage, const std::vector<std::int64_t>& recomputed) {
  std::int64_t time = 0;
  for (std::size_t c = 0; c < recomputed.size(); ++c)
    time += stage.chunks[c][static_cast<std::size_t>(recomputed[c])].time;
  return time;
}

// The least time of all choices within a budget.
std::optional<std::int64_t> least_time(const StageChoices& stage, std::int64_t bytes) {
  std::optional<std::int64_t> least;
  for_each_choice(stage, [&](const std::vector<std::int64_t>& recomputed) {
    if (peak_bytes(stage, recomputed) > bytes) return;
    const std::int64_t time = time_of(stage, recomputed);
    least = std::min(least.value_or(time), time);
  });
  return least;
}

// The first chunks first, as few layers as the budget allows.
std::optional<std::int64_t> time_in_order(const StageChoices& stage, std::int64_t bytes) {
  std::vector<std::int64_t> recomputed(stage.chunks.size());
  for (std::size_t c = 0;;) {
    if (peak_bytes(stage, recomputed) <= bytes) return time_of(stage, recomputed);
    while (c < recomputed.size() && recomputed[c] + 1 == std::ssize(stage.chunks[c])) ++c;
    if (c == recomputed.size()) return std::nullopt;
    ++recomputed[c];
  }
}

// n layers that keep `kept` bytes each, or `input` where they are recomputed; the last recomputed layer is
// there whole when the chunk's backward begins.
std::vector<ChunkChoice> alike_layers(std::int64_t n, std::int64_t kept, std::int64_t input) {
  std::vector<ChunkChoice> out;
  for (std::int64_t r = 0; r <= n; ++r) {
    const std::int64_t net = (n - r) * kept + r * input, whole = r == n ? kept : 0;
    out.push_back({.work = {{{net, net}, {whole, -net}, {}, {}}}, .time = 3 * n + r});
  }
  return out;
}

// 1F1B on four stages of eight layers: 4, 3, 2 and 1 micro-batches in flight, each of which leaves
// 10 (8 - r) + r = 80 - 9r bytes. 200 bytes hold 4 (80 - 9r) from r = 4 on (176), 3 (80 - 9r) from r = 2 on
// (186), and 2 x 80 (160). With r = 8 a backward begins with ten more.
TEST(RecomputeChoices, StagesOfOneChunkRecomputeAsFewLayersAsTheirBudgetAllows) {
  const auto slots = program::pipeline_schedule(Schedule::k1F1B, 4, 1, 8);
  const auto stage = [&](std::size_t i) {
    return StageChoices{
        .slots = slots[i], .fixed = 1000, .least = 5, .memory = {}, .chunks = {alike_layers(8, 10, 1)}};
  };
  for (std::int64_t r = 0; r < 8; ++r) {
    for (std::int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(peak_bytes(stage(static_cast<std::size_t>(i)), {r}), 1000 + (4 - i) * (10 * (8 - r) + r));
  }
  EXPECT_EQ(peak_bytes(stage(0), {8}), 1000 + 4 * 8 + 10);
  using Numbers = std::vector<std::int64_t>;
  EXPECT_EQ(fastest_within(stage(0), 1200), Numbers{4});
  EXPECT_EQ(fastest_within(stage(1), 1200), Numbers{2});
  EXPECT_EQ(fastest_within(stage(2), 1200), Numbers{0});
  EXPECT_EQ(fastest_within(stage(3), 1200), Numbers{0});
  EXPECT_EQ(fastest_within(stage(0), 1042), Numbers{8});
  EXPECT_EQ(fastest_within(stage(0), 1041), std::nullopt);
  // One micro-batch in flight: seven layers hold 17 bytes, all eight 18.
  EXPECT_EQ(fastest_within(stage(3), 1017), Numbers{7});
  EXPECT_EQ(fastest_within(stage(3), 1016), std::nullopt);
  EXPECT_EQ(fastest_within(stage(3), 1004), std::nullopt);  // nor the end of the step
}

// Of chunks with any sizes and times, in any order of work: as good as the best of all choices, in every
// budget that one of them fills. Taking the first chunks first is not.
TEST(RecomputeChoices, AreTheBestOfAllChoices) {
  RecordProperty("seed", kChoiceSeed);
  std::mt19937 random(kChoiceSeed);
  const auto up_to = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
  int budgets = 0, worse_in_order = 0, none = 0;
  for (int i = 0; i < 24; ++i) {
    const std::int64_t p = 2 + up_to(3), v = i % 3 == 0 ? 2 : 2 + up_to(3);
    const Schedule schedule = i % 3 == 0 ? Schedule::kZeroBubbleV : Schedule::kInterleaved;
    const auto slots = program::pipeline_schedule(schedule, p, v, p * (1 + up_to(3)));
    StageChoices stage{.slots = slots[static_cast<std::size_t>(up_to(p))],
                       .fixed = up_to(100),
                       .least = up_to(20),
                       .memory = {},
                       .chunks = {}};
    for (std::int64_t c = 0; c < v; ++c) {
      std::vector<ChunkChoice> choices;
      std::int64_t net = 40 + up_to(60), time = 10 + up_to(10);
      for (std::int64_t r = 0, n = 1 + up_to(4); r <= n; ++r) {
        const std::int64_t held = schedule == Schedule::kZeroBubbleV ? up_to(10) : 0;
        const sim::PieceBytes forward{net + up_to(5), net}, backward{up_to(20), held - net},
            weight{up_to(5), -held};
        choices.push_back({.work = {forward, backward, backward, weight}, .time = time});
        net -= up_to(net / 2 + 1);
        time += 1 + up_to(6);
      }
      stage.chunks.push_back(std::move(choices));
    }
    for_each_choice(stage, [&](const std::vector<std::int64_t>& fills) {
      for (const std::int64_t bytes : {peak_bytes(stage, fills), peak_bytes(stage, fills) - 1}) {
        const auto found = fastest_within(stage, bytes);
        const auto least = least_time(stage, bytes);
        ASSERT_EQ(found.has_value(), least.has_value()) << "seed " << kChoiceSeed << " stage " << i;
        ++budgets;
        none += !found;
        if (!found) continue;
        EXPECT_LE(peak_bytes(stage, *found), bytes) << "seed " << kChoiceSeed << " stage " << i;
        EXPECT_EQ(time_of(stage, *found), *least) << "seed " << kChoiceSeed << " stage " << i;
        const auto in_order = time_in_order(stage, bytes);
        worse_in_order += !in_order || *in_order > *least;
      }
    });
  }
  EXPECT_GT(budgets, 1000);
  EXPECT_GT(none, 10);
  EXPECT_GT(worse_in_order, 100);
}

Problem choice_problem(const char* model, std::int64_t layers) {
  const DataFolders data;
  Problem p;
  p.cluster = load_cluster("dgx-a100", {}, {}, data);
  p.cluster.nodes = 2;
  p.devices = {load_device("a100-80gb", {}, data)};
  p.stack = load_stack("orrery", {}, data);
  p.scenario.model = preset_model(model);
  p.scenario.model.layers = layers;
  p.scenario.training = {.global_batch = 8, .sequence = 2048};
  return p;
}

struct Pipelined {
  Schedule schedule;
  std::int64_t vpp;
};
constexpr Pipelined kPipelines[] = {{Schedule::k1F1B, 1},         {Schedule::kGPipe, 1},
                                    {Schedule::kZeroBubbleH1, 1}, {Schedule::kInterleaved, 2},
                                    {Schedule::kZeroBubbleV, 2},  {Schedule::kDualPipeV, 2}};

// A stage's bytes for any choice are those of the program that is compiled for it.
TEST(RecomputeChoices, BytesAreTheEngines) {
  RecordProperty("seed", kChoiceSeed);
  std::mt19937 random(kChoiceSeed);
  for (const Pipelined& pipeline : kPipelines) {
    for (const std::int64_t zero : {0, 1}) {
      Problem p = choice_problem("llama-2-7b", 13);
      const Plan plan{.tp = 2,
                      .pp = 3,
                      .vpp = pipeline.vpp,
                      .dp = 2,
                      .zero = zero,
                      .micro_batches = 6,
                      .schedule = pipeline.schedule,
                      .recompute = Recompute::kFull};
      p.scenario.training.global_batch = plan.global_batch();
      const sim::Topology topology(p.cluster);
      sim::Estimator estimator(p, topology);
      const std::vector<StageChoices> stages = stage_choices(estimator, plan);
      for (int draw = 0; draw < 4; ++draw) {
        std::vector<std::int64_t> by_chunk;
        for (const std::int64_t n : layers_by_chunk(plan, 13))
          by_chunk.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(n + 1)));
        const Plan drawn = with_recomputed(plan, by_chunk, 13);
        const auto program = program::compile(p.scenario.model, drawn, p.scenario.training, p.stack);
        for (const program::RankClass& rank : program.classes) {
          std::vector<std::int64_t> own;
          for (std::int64_t c = 0; c < plan.vpp; ++c)
            own.push_back(by_chunk[static_cast<std::size_t>(
                program::global_chunk(chunk_placement(plan), plan.pp, rank.stage, c))]);
          EXPECT_EQ(peak_bytes(stages[static_cast<std::size_t>(rank.stage)], own), rank.logical_peak.value)
              << "stage " << rank.stage << " of " << short_name(drawn) << ", seed " << kChoiceSeed;
        }
      }
    }
  }
}

// Every choice for every stage of a small model, as plans. Of those that take no more than a budget, none is
// faster than the one that is found, and with two chunks a stage none recomputes for less time on any stage.
TEST(RecomputeChoices, NoPlanWithinTheBudgetIsFaster) {
  for (const Pipelined& pipeline : kPipelines) {
    Problem p = choice_problem("llama-2-7b", 6);
    Plan plan{.tp = 2,
              .pp = pipeline.vpp == 1 ? 3 : 2,
              .vpp = pipeline.vpp,
              .micro_batches = 6,
              .schedule = pipeline.schedule,
              .recompute = Recompute::kFull};
    if (pipeline.vpp == 2) plan.chunk_layers = {2, 1, 2, 1};
    p.scenario.training.global_batch = plan.global_batch();
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    const std::vector<StageChoices> stages = stage_choices(estimator, plan);
    const RecomputeChoices choices(estimator, plan);
    const std::vector<std::int64_t> layers = layers_by_chunk(plan, 6);
    std::vector<std::pair<Bytes, Time>> all;  // peak and step of every plan
    std::vector<std::int64_t> by_chunk(layers.size());
    for (;;) {
      const sim::Estimate e = estimator.estimate(with_recomputed(plan, by_chunk, 6));
      all.emplace_back(e.peak, e.step);
      std::size_t c = 0;
      while (c < layers.size() && by_chunk[c] == layers[c]) by_chunk[c++] = 0;
      if (c == layers.size()) break;
      ++by_chunk[c];
    }
    ASSERT_GT(choices.budgets().size(), 4U);
    int differ = 0;
    for (const double budget : choices.budgets()) {
      const Plan found = choices.fastest(budget);
      const sim::Estimate e = estimator.estimate(found);
      const double share = static_cast<double>(estimator.device_bytes(found, e.peak).value) /
                           static_cast<double>(e.memory.value);
      differ += !found.recompute_by_chunk.empty();
      if (share > budget) continue;  // no choice of some stage fits
      Time least{std::numeric_limits<std::int64_t>::max()};
      for (const auto& [peak, step] : all) {
        if (peak <= e.peak) least = std::min(least, step);
      }
      EXPECT_TRUE(plan.vpp > 1 || e.step == least) << short_name(found);
      for (std::size_t i = 0; i < stages.size(); ++i) {
        std::vector<std::int64_t> own;
        std::int64_t chunk = 0;
        for (std::int64_t c = 0; c < plan.vpp; ++c) {
          chunk = program::global_chunk(chunk_placement(plan), plan.pp, static_cast<std::int64_t>(i), c);
          own.push_back(recomputed_layers(found, chunk, layers[static_cast<std::size_t>(chunk)]));
        }
        EXPECT_EQ(time_of(stages[i], own), least_time(stages[i], e.peak.value)) << short_name(found);
      }
    }
    EXPECT_GT(differ, 1) << name_of(pipeline.schedule);
  }
}

}  // namespace
}  // namespace orrery::planner
