// SPDX-License-Identifier: Apache-2.0
//
// The whole run of one rank: steps, validation, checkpoints and what it reports. Ranks know of each other
// only through the communicator, so they may be threads or processes. Internal to exec/.
#pragma once

#include <memory>

#include "exec/exchange.h"
#include "exec/fault.h"
#include "exec/memory_checkpoint.h"
#include "exec/rank.h"
#include "exec/run.h"
#include "exec/watch.h"

namespace orrery::exec {

class Job {
 public:
  // `data` must outlive it, and so must `memory`, which is null where no checkpoints are in memory.
  Job(const program::Program& program, const RunOptions& options, const Dataset& data, std::int64_t rank,
      const ExecutorFactory& make, Communicator& communicator, Abort& abort, RankIs is,
      MemoryCheckpoints* memory);

  // Until the last step is done, or a signal asks to stop. Returns the run's result on rank 0; elsewhere only
  // the first step and the signal.
  // It goes on from `stored`, or from a newer checkpoint in memory.
  RunResult run(const std::optional<RestoredState>& stored);

  UnitShard& gradients() { return rank_.gradients; }
  UnitShard& parameters() { return rank_.parameters; }

 private:
  void meet(std::int64_t first_step);
  std::string algorithms();  // of this rank
  void compare_algorithms(const RestoredState* restored);
  CheckpointIndex index_of(std::int64_t done);
  void keep(std::int64_t done, StepReport& report);
  StepReport combine(bool validated);
  int stopped_by() const;
  bool is_due(std::int64_t every, std::int64_t done) const;
  bool saves_after(std::int64_t done, int stopped_by) const;
  void save(std::int64_t done, int stopped_by, StepReport& report);
  void begin_saving(std::int64_t done, StepReport& report);
  void end_saving(StepReport& report);
  Timeline measured();
  void collect(RunResult& result);
  void count_experts(RunResult& result);
  void odd_documents(std::vector<std::string>& alerts) const;

  // What a rank says of a step.
  struct Record {
    Rank::StepResult result;
    double validation_loss = 0, seconds = 0;
    int stop = 0;          // the signal that asks it to
    bool save = false;     // of rank 0: the time for a checkpoint has come
    bool written = false;  // it has written what it writes beside steps
  };

  const program::Program& program_;
  const RunOptions& options_;
  Exchange exchange_;
  Abort& abort_;
  RankIs is_;
  Clock::duration clock_offset_;
  std::unique_ptr<Communicator> link_;  // null: not emulated
  MemoryCheckpoints* memory_;
  std::optional<Exchange> passing_;  // of checkpoints in memory: over the link that is emulated
  Rank rank_;
  const Dataset& data_;
  Clock::time_point saved_;         // the last checkpoint, or the start
  Clock::time_point released_;      // steps went on beside the checkpoint that is being written
  std::unique_ptr<Saving> saving_;  // the checkpoint that is being written
  CheckpointIndex index_;           // its index, so far
  Record record_;
  std::vector<Record> records_;
  std::vector<std::string> algorithms_;  // by rank, when the run began
  std::unique_ptr<Watch> watch_;         // on rank 0
  std::vector<std::string> alerts_;      // on rank 0
};

}  // namespace orrery::exec
