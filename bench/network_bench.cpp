// SPDX-License-Identifier: Apache-2.0
//
// Collectives played on networks, 1 GiB a rank, 50 GB/s and 0.5 us a link, two links a hop, and training
// steps. Rings are played by SimGrid beside ours where it is installed. Otherwise the ratios are to published
// times of other simulators for the same inputs on one core of a machine like this one: SimGrid 3.32 and
// ASTRA-sim 518bd51 (20 Nov 2026).
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>

#include "planner/evaluate.h"
#include "sim/collective/on_network.h"

namespace {

using namespace orrery;
using program::Algorithm;

// k leaves of k hosts under k spines, routed by destination.
Cluster square_tree(std::int64_t k) {
  Cluster c;
  c.name = "hosts";
  c.nodes = k * k;
  c.devices_per_node = c.nics = 1;
  c.intra_bandwidth = c.nic_bandwidth = Bandwidth{50'000'000'000};
  c.intra_efficiency = c.nic_efficiency = 1;
  c.nic_latency = Time{1'000'000};
  c.collective_latency = Time{0};
  c.fabric = {.routing = Routing::kMinimal, .leaf_nodes = k};
  return c;
}

using Clock = std::chrono::steady_clock;

// How many of ours fit into the peer's time; nothing where it has none.
void compare(benchmark::State& state, Clock::time_point begin, double peer_s) {
  const double all = std::chrono::duration<double>(Clock::now() - begin).count();
  if (peer_s > 0) state.counters["times_faster"] = peer_s * static_cast<double>(state.iterations()) / all;
}

struct Peer {
  double took_s, simulated_s;
};
// The same ring by SimGrid; nothing where it was not built.
std::optional<Peer> simgrid_ring(std::int64_t k, const std::vector<std::int64_t>& hosts) {
  const std::string program = ORRERY_SIMGRID_RING;
  if (program.empty()) return std::nullopt;
  const std::string input =
      std::filesystem::temp_directory_path() / fmt::format("orrery-ring-{}", ::getpid());
  std::ofstream(input) << fmt::format("{} {} {}\n", k, 1 << 30, fmt::join(hosts, " "));
  const Clock::time_point begin = Clock::now();
  FILE* pipe = popen(fmt::format("{} < {} 2> /dev/null", program, input).c_str(), "r");
  Peer peer{};
  const bool read = pipe != nullptr && std::fscanf(pipe, "%lf", &peer.simulated_s) == 1;
  if (pipe != nullptr) pclose(pipe);
  peer.took_s = std::chrono::duration<double>(Clock::now() - begin).count();
  std::filesystem::remove(input);
  return read ? std::optional(peer) : std::nullopt;
}

void play(benchmark::State& state, CollectiveKind kind, Algorithm algorithm, bool shuffle, double peer_s) {
  constexpr std::int64_t kLeaves = 32;
  const sim::Topology topology(square_tree(kLeaves));
  std::vector<std::int64_t> devices(kLeaves * kLeaves);
  std::iota(devices.begin(), devices.end(), 0);
  if (shuffle) devices = sim::shuffled(std::move(devices), 1);
  if (algorithm == Algorithm::kRing) {
    static std::map<bool, std::optional<Peer>> known;  // benchmarks are called several times
    const auto [found, added] = known.try_emplace(shuffle);
    if (added) found->second = simgrid_ring(kLeaves, devices);
    if (found->second) {
      peer_s = found->second->took_s;
      state.counters["simgrid_s"] = peer_s;
      state.counters["simgrid_simulated_ms"] = 1e3 * found->second->simulated_s;
    }
  }
  sim::NetworkRun run;
  const Clock::time_point begin = Clock::now();
  for (auto _ : state) run = sim::run_on_network(topology, {kind, algorithm, Bytes{1 << 30}}, devices);
  compare(state, begin, peer_s);
  state.counters["simulated_ms"] = 1e3 * seconds(run.time);
  state.counters["flows"] = static_cast<double>(run.flows);
  state.counters["classes"] = static_cast<double>(run.most_classes);
}

BENCHMARK_CAPTURE(play, ring_1024_simgrid_8s4, CollectiveKind::kAllReduce, Algorithm::kRing, false, 8.4)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(play, shuffled_ring_1024_simgrid_31s4, CollectiveKind::kAllReduce, Algorithm::kRing, true,
                  31.4)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(play, all_to_all_1024_simgrid_over_280s, CollectiveKind::kAllToAll, Algorithm::kDirect,
                  false, 280.0)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(play, tree_1024, CollectiveKind::kAllReduce, Algorithm::kTree, false, 0.0)
    ->Unit(benchmark::kMillisecond);

// One training step: network, program, shared links, engine. `problem` has its plan.
void step(benchmark::State& state, const Problem& problem, double peer_s,
          const planner::EvaluateOptions& options = {}) {
  planner::Evaluation evaluated;
  const Clock::time_point begin = Clock::now();
  for (auto _ : state) {
    const sim::Topology topology(problem.cluster);
    evaluated = planner::evaluate(problem, topology, *problem.scenario.plan, options);
  }
  compare(state, begin, peer_s);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["devices"] = static_cast<double>(problem.cluster.devices());
  state.counters["step_s"] = seconds(evaluated.simulation.step);
  state.counters["places"] = static_cast<double>(evaluated.simulation.places.size());
  state.counters["ops"] = static_cast<double>(evaluated.simulation.ops);
  state.counters["peak_MiB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

// Llama-3-405B on 16,384 H100s under three levels of switches, and a like plan on 102,400.
Problem llama405b() {
  return load_problem(ORRERY_ROOT "/scenarios/llama3-405b-16k-h100.json", DataFolders());
}
void Llama405bFolded(benchmark::State& state) {
  Problem p = llama405b();
  const std::int64_t times = state.range(0);
  p.scenario.training.global_batch = p.scenario.training.global_batch * times / 100;
  p.scenario.plan->dp = p.scenario.plan->dp * times / 100;
  p.cluster.nodes = p.cluster.nodes * times / 100;
  step(state, p, 0);
}
BENCHMARK(Llama405bFolded)->Arg(100)->Arg(625)->Unit(benchmark::kMillisecond);

// Every rank on its own: the same step.
void Llama405bUnfolded(benchmark::State& state) {
  step(state, llama405b(), 0, {.place = {.fold = sim::Fold::kRanks}});
}
BENCHMARK(Llama405bUnfolded)->Unit(benchmark::kSecond)->Iterations(1);

// 32 layers, TP 8, DP 128: two all-reduces of 64 MiB forward and two backward a layer and 192 MiB of
// gradients for each half of a layer. ASTRA-sim: 141 s, without contention between the axes.
void GptTrace1024(benchmark::State& state) {
  const Json scenario = parse_json(R"({
      "model": {"preset": "gpt3-175b", "layers": 32, "hidden": 8192, "heads": 64, "max_positions": 4096},
      "cluster": {"topology": "dgx-a100", "nodes": 128}, "stack": "megatron-core",
      "training": {"global_batch": 128, "sequence": 4096, "precision": "mixed", "math": "bf16"},
      "plan": {"tp": 8, "pp": 1, "dp": 128, "micro_batch": 1, "micro_batches": 1, "recompute": "full"}})",
                                   "trace");
  step(state, resolve(read_scenario(scenario, {"trace", ""}), {"trace", ""}, DataFolders()), 141);
}
BENCHMARK(GptTrace1024)->Unit(benchmark::kMillisecond);

}  // namespace
