// SPDX-License-Identifier: Apache-2.0
//
// How far a run is: its clock, the work that it does between checkpoints, and the checkpoints that it can go
// back to. What happens to it meanwhile is in run.cpp.
//
// Work goes in cycles, each with a checkpoint behind it: in memory where the model has these, and in storage
// behind every so many and behind the last. Cycles begin anew where the run goes back to, or where it has
// saved because it was about to stop. Whole cycles between two events are skipped at once.
#pragma once

#include "sim/reliability/run.h"

namespace orrery::sim {

struct Saved {
  Ticks position{0};               // work that it holds
  std::int64_t memory_cycles = 0;  // since the last checkpoint in storage
};

class Work {
 public:
  // `diary` may be null.
  Work(const RunModel& model, RunOutcome& out, Diary* diary);

  Ticks now() const { return now_; }
  bool finished() const { return finished_; }
  // Of the run; what is done of a cycle counts.
  Ticks position() const { return start_.position + (phase_ == Phase::kWork ? length_ - left_ : length_); }
  // Time over work, at least 1.
  void set_pace(double pace) { pace_ = pace; }

  // Works and saves until `until`, to the place to stop at, or to the end of the run.
  void advance(Ticks until);
  // Where the work comes to `position`, with the checkpoint before it done. kNoTick: nowhere.
  void stop_at(Ticks position) { stop_ = position; }
  bool at_stop() const { return phase_ == Phase::kWork && position() == stop_; }
  // Time in which there is no work. This and advance() throw Error where the run becomes longer than is
  // simulated.
  void spend(Doing doing, Ticks time);

  // The newest checkpoint of each kind that can be read now, and one that is on its way to storage.
  const Saved& stored() const { return stored_; }
  const Saved& memory() const { return memory_; }
  const std::optional<Saved>& pending() const { return pending_; }
  // A checkpoint that is readable by now counts.
  void settle();
  void abort_write() { pending_.reset(); }
  // All work so far is in storage.
  void save();
  // Does again what came behind a checkpoint.
  void go_back_to(const Saved& saved);
  // Later checkpoints are spoiled.
  void forget_after(const Saved& saved);

 private:
  enum class Phase { kWork, kMemory, kStorage };

  bool last_cycle() const { return start_.position + length_ == model_.work; }
  bool saves_to_storage() const { return start_.memory_cycles + 1 == cycles_ || last_cycle(); }
  bool is_unsaved(Ticks position) const;
  Ticks to_stop() const;
  void pass(Ticks time);
  // Counts `work`, which took `time`.
  void done(Ticks work, Ticks time);
  Doing working() const { return pace_ > 1 ? Doing::kSlowWork : Doing::kWork; }
  void begin_cycle(Saved start);
  void store(Saved saved);
  void skip_cycles(Ticks until);
  void end_phase();

  const RunModel& model_;
  RunOutcome& out_;
  Diary* diary_;
  Ticks now_{0};
  bool finished_ = false;
  double pace_ = 1;
  Ticks stop_ = kNoTick;

  Ticks cycle_;          // work between checkpoints in memory, or in storage
  std::int64_t cycles_;  // of these, between two in storage
  Saved start_;          // of the cycle
  Ticks length_{0};      // of its work
  Ticks left_{0};        // of the phase: work, or time
  Phase phase_ = Phase::kWork;

  Saved stored_, memory_;
  std::optional<Saved> pending_;
  Ticks readable_at_{0};
};

}  // namespace orrery::sim
