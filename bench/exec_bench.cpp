// SPDX-License-Identifier: Apache-2.0
//
// Training steps on this machine as a share of the ceiling that its own matrix product and triad set:
//   ceiling seconds = flops of all matrix products / measured sgemm + bytes of all other ops / measured triad
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "core/scenario.h"
#include "exec/run.h"
#include "exec/shared_world.h"
#include "kernels/cpu/fast.h"

namespace orrery {
namespace {

double best_seconds(int repeats, auto&& work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// FLOP/s of a square product, one core.
double sgemm_rate() {
  constexpr std::int64_t n = 2048;
  const std::vector<float> a(n * n, 0.5F), b(n * n, 0.25F);
  std::vector<float> c(n * n);
  const double s = best_seconds(5, [&] { kernels::gemm({n, n, n}, a.data(), b.data(), nullptr, c.data()); });
  return 2.0 * n * n * n / s;
}

// Bytes a second of a[i] += b[i] over arrays that no cache holds: two read, one written.
double triad_rate() {
  constexpr std::int64_t n = 64 << 20;
  const std::vector<float> x(n, 1.0F);
  std::vector<float> y(n, 1.0F);
  const double s = best_seconds(5, [&] { kernels::pointwise().add(n, x.data(), y.data()); });
  return 3.0 * 4 * n / s;
}

struct Work {
  double flops = 0, bytes = 0;
};
Work work_of(const program::Program& p) {
  Work w;
  for (const program::RankClass& c : p.classes) {
    for (const program::Step& step : c.steps) {
      for (const program::Op& op : c.segments[static_cast<std::size_t>(step.segment)].ops) {
        w.flops += op.flops;
        if (op.flops == 0) w.bytes += static_cast<double>(op.traffic.value);
      }
    }
  }
  return w;
}

void step(benchmark::State& state, std::int64_t batch, std::int64_t sequence, std::int64_t dp) {
  Model model = preset_model("gpt2-124m");
  Training training;
  training.global_batch = batch * dp;
  training.sequence = sequence;
  training.precision = Precision::kFp32;
  training.math = orrery::Math::kFp32;
  Plan plan;
  plan.micro_batch = batch;
  plan.micro_batches = 1;
  plan.dp = dp;
  plan.zero = dp > 1 ? 1 : 0;
  const auto program = program::compile(model, plan, training, load_stack("orrery", {}, DataFolders{}));
  const double sgemm = sgemm_rate(), triad = triad_rate();
  const Work w = work_of(program);
  const double ceiling = w.flops / sgemm + w.bytes / triad;
  double best = 1e30;
  for (auto _ : state) {
    const auto r = exec::run(program, {.steps = 6});
    for (std::size_t i = 1; i < r.steps.size(); ++i) best = std::min(best, r.steps[i].seconds);
  }
  state.counters["sgemm_GFLOPS"] = sgemm / 1e9;
  state.counters["triad_GBps"] = triad / 1e9;
  state.counters["ceiling_s"] = ceiling;
  state.counters["step_s"] = best;
  state.counters["share_of_ceiling"] = ceiling / best;
  state.SetLabel(std::string(kernels::blas_name()) + ", " + kernels::pointwise().isa);
}

// What measuring every op costs: steps of a small model on two ranks, with it and without it by turns.
void timing(benchmark::State& state) {
  const Training training{
      .global_batch = 16, .sequence = 64, .precision = Precision::kFp32, .math = orrery::Math::kFp32};
  const Plan plan{.dp = 2, .zero = 1, .micro_batch = 1, .micro_batches = 8};
  const auto program =
      program::compile(preset_model("tiny-llama"), plan, training, load_stack("orrery", {}, DataFolders{}));
  std::array<std::vector<double>, 2> seconds;
  for (auto _ : state) {
    for (int turn = 0; turn < 20; ++turn) {
      const bool timed = turn % 2 == 0;
      const auto r = exec::run(program, {.steps = 60, .timeline = timed});
      for (std::size_t i = 5; i < r.steps.size(); ++i) seconds[timed].push_back(r.steps[i].seconds);
    }
  }
  const auto median = [](std::vector<double>& v) {
    const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
    std::nth_element(v.begin(), middle, v.end());
    return *middle;
  };
  state.counters["ops_per_step"] = static_cast<double>(program.ops_per_step());
  state.counters["without_s"] = median(seconds[0]);
  state.counters["with_s"] = median(seconds[1]);
  state.counters["ratio"] = median(seconds[1]) / median(seconds[0]);
}

// All-reduce of two thread ranks as a share of what their cores need to sum the same arrays side by side:
// each half of the elements, two read and two written.
void thread_all_reduce(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  std::vector<std::vector<float>> data(2, std::vector<float>(n, 1.0F));
  constexpr int kRepeats = 50;
  const auto both = [&](auto&& work) {
    return best_seconds(5, [&] {
      std::jthread other([&] { work(std::size_t{1}); });
      work(std::size_t{0});
    });
  };
  const double sum = both([&](std::size_t r) {
    float* __restrict a = data[0].data() + r * n / 2;
    float* __restrict b = data[1].data() + r * n / 2;
    for (int i = 0; i < kRepeats; ++i) {
      for (std::size_t j = 0; j < n / 2; ++j) a[j] = b[j] = a[j] + b[j];
      benchmark::ClobberMemory();
    }
  });
  double reduce = 0;
  for (auto _ : state) {
    exec::SharedWorld world(2, std::chrono::seconds(60));
    std::unique_ptr<exec::Communicator> ranks[] = {world.communicator(0), world.communicator(1)};
    const std::vector<std::int64_t> members{0, 1};
    for (auto& r : ranks) r->open(members);
    reduce = both([&](std::size_t r) {
      for (int i = 0; i < kRepeats; ++i)
        ranks[r]->collective(0, {exec::CollectiveKind::kAllReduce, "sum", data[r].data(), data[r].data(), n});
    });
  }
  const double bytes = static_cast<double>(state.range(0)) * kRepeats;
  state.counters["bus_GBps"] = bytes / reduce / 1e9;  // 2 (n - 1) / n = 1 for two ranks
  state.counters["microseconds"] = reduce / kRepeats * 1e6;
  state.counters["share_of_ceiling"] = sum / reduce;
}
BENCHMARK(thread_all_reduce)
    ->Iterations(1)
    ->Arg(4 << 10)
    ->Arg(256 << 10)
    ->Arg(2 << 20)
    ->Arg(16 << 20)
    ->Arg(128 << 20);

BENCHMARK(timing)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(step, gpt2_124m_b4_t64, 4, 64, 1)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(step, gpt2_124m_b1_t1024, 1, 1024, 1)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(step, gpt2_124m_b4_t64_two_ranks, 4, 64, 2)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace orrery
