// SPDX-License-Identifier: Apache-2.0
//
// A trace of 100,000 jobs of 200 tenants on 1,000 nodes of 8 devices, with EASY backfill 500 jobs deep. Sizes
// are those of machine-learning clusters: half of the jobs have one device, one in 20 has 64 or more. The
// target is 10 s: `of_target` is the time over it. `load` is the work that is submitted over what the cluster
// can do in the same time: at 1.2 the queue grows all the while, to some 10,000 jobs.
#include <benchmark/benchmark.h>

#include <cmath>

#include "core/random.h"
#include "sim/scheduling/schedule.h"

namespace {

using namespace orrery;

constexpr std::int64_t kJobs = 100'000, kNodes = 1000, kPerNode = 8;

sim::JobQueue trace(double load) {
  RandomStream r(1, 0, 0);
  sim::JobQueue queue;
  for (int t = 0; t < 200; ++t) queue.tenants.push_back({"", 1 + t % 3 * 1.0, std::nullopt});
  double device_s = 0;
  for (std::int64_t i = 0; i < kJobs; ++i) {
    sim::ClusterJob j;
    j.tenant = static_cast<std::int32_t>(r.uniform() * 200);
    const double size = r.uniform();
    j.devices = size < 0.5 ? 1 : size < 0.75 ? 8 : size < 0.95 ? 16 : 64 << static_cast<int>(3 * r.uniform());
    const double work = 60 + 20'000 * r.exponential();
    j.work = sim::ticks(work);
    j.requested = sim::ticks(work * (1 + 3 * r.uniform()));
    j.priority = static_cast<std::int64_t>(r.uniform() * 3);
    j.checkpoint_every = sim::ticks(1800.0);
    j.checkpoint_cost = sim::ticks(10.0);
    device_s += work * static_cast<double>(j.devices);
    queue.jobs.push_back(j);
  }
  const double span = device_s / static_cast<double>(kNodes * kPerNode) / load;
  for (sim::ClusterJob& j : queue.jobs) j.submit = sim::ticks(span * r.uniform());
  return queue;
}

void schedule(benchmark::State& state) {
  const sim::JobQueue queue = trace(static_cast<double>(state.range(0)) / 10);
  const sim::ClusterNodes nodes = sim::plain_nodes(kNodes, kPerNode, 16);
  SchedulingPolicy policy;
  policy.order = static_cast<QueueOrder>(state.range(1));
  if (state.range(2) != 0) policy.preemption = PreemptionRule::kLowerPriority;
  for (auto _ : state) benchmark::DoNotOptimize(sim::run_schedule(queue, policy, nodes));
  constexpr double kTarget = 10;
  state.counters["of_target"] = benchmark::Counter(
      kTarget, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(schedule)
    ->ArgNames({"load_in_tenths", "order", "preemption"})
    ->Args({8, 0, 0})
    ->Args({12, 0, 0})
    ->Args({12, 1, 1})
    ->Args({12, 2, 0})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
