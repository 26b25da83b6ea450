// SPDX-License-Identifier: Apache-2.0
//
// `orrery run`: what its parts share: what was asked, and what a run tells while it runs and at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/run_life.h"
#include "exec/launch.h"
#include "exec/monitor.h"
#include "exec/run.h"

namespace orrery::cli {

// What the command line says.
struct RunAsked {
  std::string plan, proxy, weights, adapter, trace, expert_load, data, metrics, tensorboard, checkpoints,
      gemm_cache, rendezvous, secret_file, link, host_link, nvme, nvme_bandwidth, life, life_trace,
      link_latency = "0 us";
  std::vector<std::string> slow, fail;
  std::optional<std::int64_t> end_token;
  std::vector<Fault> faults;  // of `fail`
  exec::Backend backend = exec::Backend::kCpu;
  exec::Algorithm collectives = exec::Algorithm::kDirect;
  std::string checkpoint_every = "100";
  std::int64_t keep_checkpoints = 3, restarts = 0, spares = 0, memory_every = 0, memory_replicas = 2;
  bool resume = false, force = false, elastic = false, async_checkpoints = false, loading = false;
  std::int64_t steps = 5, seed = 1, deadline_s = 120, warm_up = 0, validate_every = 0, validation_batches = 8;
  std::int64_t loss_scale_window = 2000;
  double learning_rate = 3e-3, decay_to = 1, weight_decay = 0, held_out = 0.05, loss_scale = 65536;
};

// Throws nothing where stderr is on the disk that is full.
void alert(std::string_view text);

// Tells the terminal and whoever watches of each step. Files that cannot be written do not end the run.
class Observer {
 public:
  Observer(const App& app, const RunAsked& o, const Scenario& s, const exec::RunOptions& run);

  // The program of the steps that come.
  void see(const program::Program& program);
  void operator()(std::int64_t step, const exec::StepReport& r);

 private:
  void print(std::int64_t step, const exec::StepReport& r) const;

  const App& app_;
  const RunAsked& o_;
  const exec::RunOptions& run_;
  double tokens_, flops_ = 0;
  Bytes peak_{0};  // of the rank with the most
  bool metrics_failed_ = false, board_failed_ = false;
  std::optional<exec::TensorBoard> board_;  // from the first step on
};

void print_ranks(const Mesh& mesh, const std::vector<std::string>& hosts);

// Where a run begins, and where it goes on after a failure.
std::string beginning(const RunAsked& o);
std::string going_on(const RunAsked& o);

// Who this process is, when a launcher started several: as many as the plan and the spares need.
std::optional<exec::Launch> launched(const RunAsked& o, const Plan& plan, const Cursor& at);
// This process's part of the job. After ranks died, `chosen` has the plan that went on.
void run_launched(const exec::Launch& me, Chosen& chosen, exec::RunOptions options, App& app,
                  const RunAsked& o, Observer& observer);

// As shells have it: 128 and the signal.
ExitCode exit_of(const exec::RunResult& r);

// What a run says and writes at its end.
struct Ended {
  const Problem& problem;
  const Plan& plan;
  bool processes;  // ranks are processes, not threads
  const exec::RunResult& result;
  const RunLife& life;
  const LifeLog& marks;
  std::int64_t samples;  // to train on
};
void report(App& app, const RunAsked& o, const Ended& run);

}  // namespace orrery::cli
