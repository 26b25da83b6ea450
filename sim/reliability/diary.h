// SPDX-License-Identifier: Apache-2.0
//
// What one simulated run did when, for people to look at.
//
//   Diary diary;
//   RunOutcome out = simulate_run(model, seed, run, most_events, &diary);
//   for (const Period& p : diary.periods()) ...
//   Timeline t = life_timeline(diary);   // which the window opens
//
// Periods follow each other without a gap from 0 to the end of the run. Work that a stop lost is marked where
// it was done. A diary may leave out short checkpoints, whose time it counts with the work before them: a run
// has millions where each step is saved in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/timeline.h"
#include "sim/reliability/clock.h"

namespace orrery::sim {

// What a job stops for.
enum class Stop { kHardware, kSoftware, kSilent, kPreempt, kPlanned, kEvict, kResize };
const char* words_of(Stop stop);  // "a node failed"

enum class Doing { kWork, kSlowWork, kLost, kCheckpoint, kDetection, kRestart, kWait, kMaintenance };
inline constexpr std::size_t kDoings = static_cast<std::size_t>(Doing::kMaintenance) + 1;
const char* words_of(Doing doing);

struct Period {
  Doing doing = Doing::kWork;
  Ticks begin{0}, end{0};
  Ticks from{0}, to{0};  // positions in the work; equal where nothing is done
  friend bool operator==(const Period&, const Period&) = default;
};

// From a stop until the job works again.
struct Outage {
  Stop stop = Stop::kHardware;
  Ticks begin{0}, end{0};
  Ticks lost{0};  // work
};

class Diary {
 public:
  static constexpr std::size_t kMostPeriods = 1'000'000;

  explicit Diary(Ticks shortest_checkpoint = {}) : shortest_checkpoint_(shortest_checkpoint) {}

  const std::vector<Period>& periods() const { return periods_; }
  const std::vector<Outage>& outages() const { return outages_; }

  // What follows is called by the simulation.
  bool leaves_out(Ticks checkpoint) const { return checkpoint < shortest_checkpoint_; }
  // Throws Error where there are more than kMostPeriods.
  void add(Period period);
  // The last stop loses the work from `kept` to `reached`.
  void lose(Ticks reached, Ticks kept);
  // A stop during an outage ends it and begins another.
  void stop(Stop stop, Ticks now);
  void go_on(Ticks now);

 private:
  std::vector<Period> periods_;
  std::vector<Outage> outages_;
  Ticks shortest_checkpoint_;
  bool stopped_ = false;
};

// A row of what the job did and a row of its stops. Runs of more than 23 days are drawn smaller, which the
// timeline's source says.
Timeline life_timeline(const Diary& diary);

}  // namespace orrery::sim
