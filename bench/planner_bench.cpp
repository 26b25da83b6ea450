// SPDX-License-Identifier: Apache-2.0
//
// Speed of the planner and the engine. Counters are rates; compare them with Calculon's 75-250 plans a
// second and core, and its 392 s for the GPT-3 175B grid on 4,096 A100 (reproduced on one 2.3 GHz core).
#include <benchmark/benchmark.h>

#include "planner/evaluate.h"
#include "planner/search.h"
#include "planner/space.h"

namespace {

using namespace orrery;

Problem load(const char* scenario) {
  return load_problem(std::string(ORRERY_ROOT "/scenarios/") + scenario + ".json", DataFolders());
}

// The published grid: 97,020 combinations on one core, best plan found.
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

// Every valid plan of the grid costed, nothing pruned, caches cold at the start.
void CostedPlans(benchmark::State& state) {
  const Problem p = load("gpt3-175b-4096-a100");
  const sim::Topology topology(p.cluster);
  std::int64_t plans = 0;
  for (auto _ : state) {
    const auto r = planner::search(p, topology, {.keep = 10, .threads = 1, .bound = false});
    plans += r.counts.costed;
  }
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
  const sim::CostModel cost(p.device, p.stack, p.cluster, links, p.scenario.training);
  const sim::Durations durations = sim::price(program, cost);
  std::int64_t ops = 0;
  for (auto _ : state) ops += sim::simulate(program, durations, cost.engine_options(false)).ops;
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
