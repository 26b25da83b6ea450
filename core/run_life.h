// SPDX-License-Identifier: Apache-2.0
//
// What a run that was executed went through: its steps, checkpoints, failures and restarts, in seconds. A run
// keeps a log of marks; run_life() says where the time went and what each thing took, so that the simulation
// of many steps can be compared with it (sim/reliability/replay.h).
//
//   LifeLog log;                       // a mark after each step, and one for each failure
//   RunLife life = run_life(log);      // life.times.progress / life.times.counted() is its goodput
//
// The life begins with the first step: what the run needs to start is not part of it. The first step after a
// start takes longer than others, as memory is touched for the first time. Of it, the median step counts as
// step, and the rest as restart.
//
// Invariant: total = progress + lost + checkpoint + validation + detection + restart.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

// dead: the rank ends. frozen: it does nothing until the others give it up. disk: it cannot write its part of
// a checkpoint.
enum class FaultKind { kDead, kFrozen, kDisk };
constexpr auto enum_names(FaultKind) {
  return std::array{std::pair{FaultKind::kDead, "dead"}, std::pair{FaultKind::kFrozen, "frozen"},
                    std::pair{FaultKind::kDisk, "disk"}};
}
// Whether the run stops for it.
constexpr bool stops_run(FaultKind kind) {
  switch (kind) {
    case FaultKind::kDead:
    case FaultKind::kFrozen:
      return true;
    case FaultKind::kDisk:
      return false;
  }
  return false;
}

// A fault that is injected. Steps count from 1. A rank fails where it begins the step; a disk fails where the
// checkpoint after the step is written.
struct Fault {
  FaultKind kind = FaultKind::kDead;
  std::int64_t rank = 0, step = 1;
  friend bool operator==(const Fault&, const Fault&) = default;
};

// Means of what was measured; absent where it did not happen.
struct LifeConstants {
  std::optional<RunTime> step;               // median of those that are not the first after a start
  std::optional<RunTime> checkpoint;         // median; that the run waited for it
  std::optional<RunTime> settle;             // from there until the checkpoint could be read
  std::optional<RunTime> memory_checkpoint;  // median; that ranks took for one in memory
  std::optional<RunTime> restart;            // from when a failure was noticed, loading included
  std::optional<RunTime> detection_dead, detection_frozen;
};

struct LifeTimes {
  RunTime total{0};
  RunTime progress{0};  // steps that were not done again
  RunTime lost{0};      // steps that were
  RunTime checkpoint{0}, validation{0}, detection{0}, restart{0};
  RunTime counted() const { return RunTime{total.value - validation.value}; }
};

struct RunLife {
  std::string program;  // its hash
  std::int64_t ranks = 1;
  std::int64_t first_step = 0;        // steps that were done before
  std::int64_t steps = 0;             // done at its end
  std::int64_t checkpoint_every = 0;  // steps; 0: none, or by time
  std::int64_t memory_every = 0;      // steps between checkpoints in memory; 0: none
  std::int64_t memory_replicas = 1;   // ranks that hold each part of these
  std::vector<Fault> faults;          // those that happened, in order
  std::int64_t failures = 0;          // injected ones and others
  LifeTimes times;
  LifeConstants measured;
};

// --- what a run writes down -------------------------------------------------------------------------
// Times are seconds of one clock.
struct StepMark {
  std::int64_t step = 0;  // from 1
  double end_s = 0;       // after the checkpoint
  double step_s = 0;      // of the step alone
  bool saved = false;     // a checkpoint was due
  bool kept = false;      // one in memory was due
  double saving_s = 0, keeping_s = 0, validating_s = 0;
  std::optional<double> settled_s;  // of a checkpoint that could be read by now: since the run went on
};
struct FailureMark {
  double noticed_s = 0;
  std::optional<FaultKind> injected;
};
struct Attempt {
  std::vector<StepMark> steps;
  std::optional<FailureMark> failure;  // of the last, none
};
struct LifeLog {
  std::vector<Attempt> attempts;
};

// What a part of the time went to. Steps that were done again are lost.
enum class LifePart { kProgress, kLost, kCheckpoint, kValidation, kDetection, kRestart };
struct LifePeriod {
  LifePart part = LifePart::kProgress;
  double begin_s = 0, end_s = 0;  // since the life's begin
};
// One after the other, from the life's begin to its end.
std::vector<LifePeriod> life_periods(const LifeLog& log);

// Steps, failures, times and constants of the log; the rest is for who knows the run.
RunLife run_life(const LifeLog& log);

namespace limits {
inline constexpr std::size_t kMostMarks = 100'000'000;
}
namespace life_fields {
constexpr Field time(const char* name, const char* help, bool required = false) {
  return {.name = name, .help = help, .min = 0, .max = limits::kLongestRun, .required = required};
}
}  // namespace life_fields
template <class V>
void describe(V& v, StepMark& m) {
  v(Field{.name = "step", .help = "from 1"}, m.step);
  v(Field{.name = "end_s", .help = "after the checkpoint"}, m.end_s);
  v(Field{.name = "step_s", .help = "of the step alone"}, m.step_s);
  v(Field{.name = "saved", .help = "a checkpoint was due"}, m.saved);
  v(Field{.name = "kept", .help = "a checkpoint in memory was due"}, m.kept);
  v(Field{.name = "saving_s", .help = "waiting for checkpoints"}, m.saving_s);
  v(Field{.name = "keeping_s", .help = "checkpoints in memory"}, m.keeping_s);
  v(Field{.name = "validating_s", .help = "on held-out data"}, m.validating_s);
  v(Field{.name = "settled_s", .help = "of a checkpoint that can be read"}, m.settled_s);
}
template <class V>
void describe(V& v, FailureMark& m) {
  v(Field{.name = "noticed_s", .help = "when the run knew"}, m.noticed_s);
  v(Field{.name = "injected", .help = "what was injected"}, m.injected);
}
template <class V>
void describe(V& v, Attempt& a) {
  v(Field{.name = "steps", .help = "done", .most = limits::kMostMarks}, a.steps);
  v(Field{.name = "failure", .help = "that ended it"}, a.failure);
}
template <class V>
void describe(V& v, LifeLog& l) {
  v(Field{.name = "attempts", .help = "starts of the run", .most = limits::kMostMarks}, l.attempts);
}

// --- the file ---------------------------------------------------------------------------------------
inline constexpr const char* kLifeSchema = "orrery.life/1";

template <class V>
void describe(V& v, Fault& f) {
  v(Field{.name = "kind", .help = "what failed", .required = true}, f.kind);
  v(Field{.name = "rank", .help = "that it struck", .min = 0, .max = 1e9, .required = true}, f.rank);
  v(Field{.name = "step",
          .help = "at whose beginning the rank failed, or whose checkpoint was not written; from 1",
          .min = 1,
          .max = 1e12,
          .required = true},
    f.step);
}
template <class V>
void describe(V& v, LifeConstants& c) {
  using namespace life_fields;
  v(time("step", "median step"), c.step);
  v(time("checkpoint", "median time that the run waited for a checkpoint"), c.checkpoint);
  v(time("settle", "from there until the checkpoint could be read"), c.settle);
  v(time("memory_checkpoint", "median time that a checkpoint in memory took"), c.memory_checkpoint);
  v(time("restart", "from a noticed failure to the first step, loading the checkpoint included"), c.restart);
  v(time("detection_dead", "from the death of a rank until the others noticed"), c.detection_dead);
  v(time("detection_frozen", "from the freeze of a rank until the others gave it up"), c.detection_frozen);
}
template <class V>
void describe(V& v, LifeTimes& t) {
  using namespace life_fields;
  v(time("total", "from the first step to the end", true), t.total);
  v(time("progress", "steps that were not done again", true), t.progress);
  v(time("lost", "steps that were done again"), t.lost);
  v(time("checkpoint", "waiting for checkpoints"), t.checkpoint);
  v(time("validation", "on held-out data"), t.validation);
  v(time("detection", "failures that nobody had noticed"), t.detection);
  v(time("restart", "restarts"), t.restart);
}
template <class V>
void describe(V& v, RunLife& l) {
  constexpr double kMostSteps = 1e12;
  v(Field{.name = "program", .help = "its hash", .required = true}, l.program);
  v(Field{.name = "ranks", .help = "of the plan", .min = 1, .max = 1e9, .required = true}, l.ranks);
  v(Field{.name = "first_step", .help = "steps that were done before", .min = 0, .max = kMostSteps},
    l.first_step);
  v(Field{.name = "steps", .help = "done at its end", .min = 1, .max = kMostSteps, .required = true},
    l.steps);
  v(Field{.name = "checkpoint_every", .help = "steps; 0: no checkpoints, or by time", .min = 0, .max = 1e6},
    l.checkpoint_every);
  v(Field{.name = "memory_every",
          .help = "steps between checkpoints in memory; 0: none",
          .min = 0,
          .max = 1e6},
    l.memory_every);
  v(Field{.name = "memory_replicas", .help = "ranks that hold each part of these", .min = 1, .max = 1e9},
    l.memory_replicas);
  v(Field{.name = "faults", .help = "that were injected, in order", .most = 10'000}, l.faults);
  v(Field{.name = "failures", .help = "that stopped the run", .min = 0, .max = 1e6}, l.failures);
  v(Field{.name = "times", .help = "where the time went", .required = true}, l.times);
  v(Field{.name = "measured", .help = "what each thing took", .required = true}, l.measured);
}

ORRERY_FIELDS(extern, LifeLog);
ORRERY_FIELDS(extern, RunLife);

}  // namespace orrery
