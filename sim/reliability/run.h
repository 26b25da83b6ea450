// SPDX-License-Identifier: Apache-2.0
//
// Simulates runs of a model, event by event: failures, checkpoints, restarts, nodes that are waited for.
// Between two events a run is arithmetic, so it costs some 50 ns an event, however many steps it has.
//
//   std::vector<RunOutcome> runs = simulate_runs(model, {.seed = 1, .runs = 10'000, .threads = 2});
//   seconds(runs[0].total);
//
// The result is a function of model and seed; it does not depend on the number of threads. Throws Error
// where a run would have too many events or last too long.
//
// What happens, in this order:
//   failure   the job stops; what it did since the checkpoint that is left is lost. It notices (detection),
//             gets a node in place of a failed one (a spare, fewer replicas, or it waits), restarts, loads.
//             A failure in the meantime begins this anew. A job that waits does not fail.
//   silent    nothing stops. When it is noticed the job goes back to the last checkpoint in storage from
//             before. Beside the newest, storage keeps one of
//             each hour of the last day of work, and one of each day.
//   planned   stops, evictions of slow nodes, announced preemptions and growth begin with a checkpoint and
//             lose nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/reliability/diary.h"
#include "sim/reliability/run_model.h"

namespace orrery::sim {

// Where the time of a run went. total = work + slow + checkpoint + detection + restart + wait + maintenance,
// and work = the model's work + lost: both to the tick (is_conserved).
struct RunOutcome {
  Ticks total{0};
  Ticks work{0};                                  // at full speed, lost work included
  Ticks lost{0};                                  // of it, done again
  Ticks slow{0};                                  // beyond it: slow nodes and fewer replicas
  Ticks checkpoint{0};                            // the job stood still for checkpoints
  Ticks detection{0};                             // it was down and not noticed
  Ticks restart{0};                               // and loading
  Ticks wait{0};                                  // for a node
  Ticks maintenance{0};                           // planned
  Ticks away{0};                                  // node time of preempted nodes until others came
  std::array<std::int64_t, kProcesses> events{};  // by Process
  std::int64_t checkpoints = 0;                   // in storage
  std::int64_t planned = 0, evictions = 0;
  std::int64_t old_rollbacks = 0;  // to an hour's or a day's checkpoint, newer ones being spoiled

  std::int64_t of(Process p) const { return events[static_cast<std::size_t>(p)]; }
  // Failures that stopped the job.
  std::int64_t stops() const {
    return of(Process::kHardware) + of(Process::kSoftware) + of(Process::kSilent) + of(Process::kPreempt);
  }
  friend bool operator==(const RunOutcome&, const RunOutcome&) = default;
};

// Share of the time that brought the run forward: effective training time.
double ettr(const RunOutcome& run, const RunModel& model);
bool is_conserved(const RunOutcome& run, const RunModel& model);

// Of one run. `most_events` bounds its time. A diary keeps what it did when, and changes nothing.
RunOutcome simulate_run(const RunModel& model, std::uint64_t seed, std::uint64_t run,
                        std::int64_t most_events, Diary* diary = nullptr);

inline constexpr std::int64_t kMostRuns = 1'000'000;
inline constexpr std::int64_t kMostRunEvents = 100'000'000;  // of all runs together: some 10 s on one core
struct RunOptions {
  std::uint64_t seed = 1;
  std::int64_t runs = 10'000;
  int threads = 1;
};
std::vector<RunOutcome> simulate_runs(const RunModel& model, const RunOptions& options);

}  // namespace orrery::sim
