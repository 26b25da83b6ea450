// SPDX-License-Identifier: Apache-2.0
//
// Training steps on this machine as a share of the ceiling that its own matrix product and triad set:
//   ceiling seconds = flops of all matrix products / measured sgemm + bytes of all other ops / measured triad
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/scenario.h"
#include "exec/run.h"
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

BENCHMARK_CAPTURE(step, gpt2_124m_b4_t64, 4, 64, 1)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(step, gpt2_124m_b1_t1024, 1, 1024, 1)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(step, gpt2_124m_b4_t64_two_ranks, 4, 64, 2)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace orrery
