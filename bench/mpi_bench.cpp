// SPDX-License-Identifier: Apache-2.0
//
// All-reduce between processes of one host: ours through shared memory beside MPI_Allreduce, by turns.
//   mpirun -n 2 build/bench/bin/orrery_mpi_bench
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "exec/shared_world.h"

namespace orrery {
namespace {

struct Job {
  std::unique_ptr<exec::SharedWorld> world;
  std::unique_ptr<exec::Communicator> communicator;
  exec::GroupId all = 0;
  float* ours = nullptr;
  std::vector<float> theirs;
};
Job job;
constexpr std::int64_t kMost = std::int64_t{128} << 20;

double seconds_of(auto&& work) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void AllReduceBesideMpi(benchmark::State& state) {
  const std::int64_t bytes = state.range(0), n = bytes / 4;
  const int calls = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{64} << 20) / bytes, 1, 200));
  double ours = 0, theirs = 0;
  for (auto _ : state) {
    ours += seconds_of([&] {
      for (int i = 0; i < calls; ++i) {
        job.communicator->collective(job.all, {.kind = exec::CollectiveKind::kAllReduce,
                                               .name = "bench",
                                               .input = job.ours,
                                               .output = job.ours,
                                               .elements = static_cast<std::size_t>(n)});
      }
    });
    theirs += seconds_of([&] {
      for (int i = 0; i < calls; ++i)
        MPI_Allreduce(MPI_IN_PLACE, job.theirs.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    });
    std::memset(job.ours, 0, static_cast<std::size_t>(bytes));
    std::fill_n(job.theirs.begin(), n, 0.0F);
  }
  const auto runs = static_cast<double>(state.iterations()) * calls;
  state.counters["ours_us"] = 1e6 * ours / runs;
  state.counters["mpi_us"] = 1e6 * theirs / runs;
  state.counters["mpi/ours"] = theirs / ours;
}
BENCHMARK(AllReduceBesideMpi)
    ->RangeMultiplier(8)
    ->Range(4 << 10, kMost)
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  using namespace orrery;
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::vector<std::int64_t> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  job.world = std::make_unique<exec::SharedWorld>(fmt::format("bench-{}", ::getppid()), members, rank,
                                                  std::chrono::seconds(60));
  job.communicator = job.world->communicator(rank);
  job.all = job.communicator->open(members);
  job.ours = reinterpret_cast<float*>(job.communicator->allocate(static_cast<std::size_t>(kMost)));
  job.theirs.resize(static_cast<std::size_t>(kMost) / 4);
  benchmark::Initialize(&argc, argv);
  class Silent final : public benchmark::BenchmarkReporter {
    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>&) override {}
  } silent;
  if (rank == 0)
    benchmark::RunSpecifiedBenchmarks();
  else
    benchmark::RunSpecifiedBenchmarks(&silent);
  MPI_Finalize();
}
