// SPDX-License-Identifier: Apache-2.0
//
// Speed of the planner and the engine, as rates and as ratios to Calculon (commit caa4b11, run on one 2.3 GHz
// core of a machine like this one): 248 plans a second, 392 s for its 97,120 combinations of GPT-3 175B on
// 4,096 A100.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "planner/evaluate.h"
#include "planner/search.h"
#include "planner/space.h"

namespace {

using namespace orrery;

Problem load(const char* scenario) {
  return load_problem(std::string(ORRERY_ROOT "/scenarios/") + scenario + ".json", DataFolders());
}

// The published grid on one core, best plan found.
void GptGrid(benchmark::State& state) {
  const Problem p = load("gpt3-175b-4096-a100");
  planner::SearchResult r;
  for (auto _ : state) {
    const sim::Topology topology(p.cluster);
    r = planner::search(p, topology, {.keep = 10, .threads = 1});
    benchmark::DoNotOptimize(r.best.data());
  }
  state.counters["combinations"] = static_cast<double>(r.counts.considered);
  state.counters["costed"] = static_cast<double>(r.counts.costed);
  state.counters["best_step_s"] = seconds(r.best.front().estimate.step);
  state.counters["calculon_392s_ratio"] = 392.0 / r.counts.seconds;
}
BENCHMARK(GptGrid)->Unit(benchmark::kMillisecond)->Iterations(3);

// The same problem with every ZeRO stage, shard group, placement and stride of recomputation that the stack
// runs, and with listed numbers of replicas.
void LargeSpace(benchmark::State& state) {
  Problem p = load("gpt3-175b-4096-a100");
  Search& s = p.scenario.search;
  s.tp = s.zero = s.shard_group = s.recompute_layers = {};
  s.rank_order = {};
  s.dp = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 3072};
  s.schedule = {Schedule::k1F1B, Schedule::kInterleaved, Schedule::kGPipe, Schedule::kZeroBubbleH1};
  planner::SearchResult r;
  for (auto _ : state) {
    const sim::Topology topology(p.cluster);
    r = planner::search(p, topology, {.keep = 10, .threads = 2});
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["combinations"] = static_cast<double>(r.counts.considered);
  state.counters["plans"] = static_cast<double>(r.counts.considered - r.counts.invalid);
  state.counters["costed"] = static_cast<double>(r.counts.costed);
  state.counters["best_step_s"] = seconds(r.best.front().estimate.step);
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}
BENCHMARK(LargeSpace)->Unit(benchmark::kSecond)->Iterations(1)->UseRealTime();

// Calculon's best plans for the grid, with (7.23 s) and without (9.04 s) its overlap modes, and ours: all by
// our engine.
void CalculonsPlans(benchmark::State& state) {
  const Problem p = load("gpt3-175b-4096-a100");
  const sim::Topology topology(p.cluster);
  const Plan overlapped{.tp = 8,
                        .pp = 4,
                        .vpp = 12,
                        .dp = 128,
                        .sequence_parallel = true,
                        .zero = 1,
                        .micro_batch = 2,
                        .micro_batches = 12,
                        .schedule = Schedule::kInterleaved};
  const Plan plain{.tp = 4,
                   .pp = 16,
                   .vpp = 6,
                   .dp = 64,
                   .sequence_parallel = true,
                   .micro_batch = 1,
                   .micro_batches = 48,
                   .schedule = Schedule::kInterleaved,
                   .recompute = Recompute::kSelective};
  for (auto _ : state) {
    const Plan ours = planner::search(p, topology, {.keep = 1}).best.front().plan;
    const auto show = [&](const std::string& name, const Plan& plan) {
      const Predicted x = planner::evaluate(p, topology, plan).predicted;
      state.counters[name + "_s"] = x.step_time_s;
      state.counters[name + "_mfu"] = x.mfu;
      state.counters[name + "_GiB"] = static_cast<double>(x.peak_memory_bytes) / (1LL << 30);
    };
    show("ours", ours);
    show("calculon", overlapped);
    show("calculon_no_overlap", plain);
    state.SetLabel("ours: " + short_name(ours));
  }
}
BENCHMARK(CalculonsPlans)->Unit(benchmark::kMillisecond)->Iterations(1);

// Every valid plan of the grid costed, nothing pruned, caches cold at the start.
void CostedPlans(benchmark::State& state) {
  const Problem p = load("gpt3-175b-4096-a100");
  const sim::Topology topology(p.cluster);
  std::int64_t plans = 0;
  for (auto _ : state) {
    const auto r = planner::search(p, topology, {.keep = 10, .threads = 1, .bound = false});
    plans += r.counts.costed;
  }
  state.counters["costed"] = static_cast<double>(plans);
  state.counters["plans/s"] = benchmark::Counter(static_cast<double>(plans), benchmark::Counter::kIsRate);
}
BENCHMARK(CostedPlans)->Unit(benchmark::kMillisecond)->Iterations(1);

// GPT-3 175B at TP8 PP8 DP16 with 96 micro-batches, op by op.
void EngineStep(benchmark::State& state) {
  const Problem p = load("gpt3-175b-4096-a100");
  Plan plan{.tp = 8, .pp = 8, .dp = 16, .sequence_parallel = true, .zero = 1, .micro_batches = 96};
  const auto program = program::compile(p.scenario.model, plan, p.scenario.training, p.stack);
  const sim::Topology topology(p.cluster);
  const sim::PlanLinks links = sim::plan_links(topology, plan);
  const sim::CostModel cost(p.devices, p.stack, p.cluster, links, p.scenario.training);
  const sim::Layout layout = sim::by_stage(program, sim::price(program, cost), cost.pace(sim::only(0)));
  std::int64_t ops = 0;
  for (auto _ : state) ops += sim::simulate(program, layout, {.record = false}).ops;
  state.counters["ops/s"] = benchmark::Counter(static_cast<double>(ops), benchmark::Counter::kIsRate);
}
BENCHMARK(EngineStep)->Unit(benchmark::kMillisecond);

void Compile(benchmark::State& state) {
  const Problem p = load("llama3-70b-p4d");
  for (auto _ : state) {
    auto program = program::compile(p.scenario.model, *p.scenario.plan, p.scenario.training, p.stack);
    benchmark::DoNotOptimize(program.classes.data());
  }
}
BENCHMARK(Compile)->Unit(benchmark::kMillisecond);

}  // namespace
