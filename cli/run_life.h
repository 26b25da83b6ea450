// SPDX-License-Identifier: Apache-2.0
//
// The life of a run: faults that are injected into it, its starts, and where its time went.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/run_life.h"
#include "exec/run.h"

namespace orrery::cli {

struct RunAsked;

// "2@7", "2@7:frozen": rank 2 fails where it begins step 7. Throws InputError.
std::vector<Fault> read_faults(const std::vector<std::string>& texts, std::int64_t ranks, std::int64_t steps);

// Marks what happens as it happens. Faults that stop the run strike one after the other, one in each start of
// the run; those of disks strike in all.
class LifeKeeper {
 public:
  explicit LifeKeeper(std::vector<Fault> faults);

  // Of the present start.
  std::vector<Fault> faults() const;
  void step(std::int64_t step, const exec::StepReport& r);  // step counts from 0
  void failed();  // now the run knows; another start follows, or none
  std::int64_t failures() const { return static_cast<std::int64_t>(log_.attempts.size()) - 1; }

  const LifeLog& marks() const { return log_; }
  // What is known so far, as text, and from there on after what another process knows of it.
  std::string log() const;
  void continue_from(const std::string& log);

  RunLife life(const program::Program& program, const RunAsked& o, const exec::RunOptions& options) const;

 private:
  const Fault* stopping() const;  // of the present start; null: none

  std::vector<Fault> faults_;
  LifeLog log_;
};

void save_life(const std::string& file, const RunLife& life);

// A line: the goodput, and what the rest of the time went to.
std::string goodput_text(const RunLife& life);

}  // namespace orrery::cli
