// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "core/error.h"
#include "sim/drawn_time.h"
#include "sim/reliability/diary.h"

namespace orrery::sim {
namespace {

using LifeConstant = std::optional<RunTime> LifeConstants::*;
constexpr std::initializer_list<LifeConstant> kConstants{&LifeConstants::step,
                                                         &LifeConstants::checkpoint,
                                                         &LifeConstants::settle,
                                                         &LifeConstants::memory_checkpoint,
                                                         &LifeConstants::restart,
                                                         &LifeConstants::detection_dead,
                                                         &LifeConstants::detection_frozen};

// Null where the fault does not stop the run.
LifeConstant detection_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kDead:
      return &LifeConstants::detection_dead;
    case FaultKind::kFrozen:
      return &LifeConstants::detection_frozen;
    case FaultKind::kDisk:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

double goodput(const RunLife& life) {
  return life.times.progress.value / life.times.counted().value;
}

LifeConstants mean_of(std::span<const RunLife> lives) {
  LifeConstants out;
  for (const LifeConstant constant : kConstants) {
    double sum = 0;
    int count = 0;
    for (const RunLife& life : lives) {
      if (const auto& value = life.measured.*constant) {
        sum += value->value;
        ++count;
      }
    }
    if (count > 0) out.*constant = RunTime{sum / count};
  }
  return out;
}

std::string missing(const RunLife& life, const LifeConstants& c) {
  if (!c.step) return "a step";
  if (life.checkpoint_every > 0 && !c.checkpoint) return "a checkpoint";
  if (life.memory_every > 0 && !c.memory_checkpoint) return "a checkpoint in memory";
  for (const Fault& f : life.faults) {
    const LifeConstant detection = detection_of(f.kind);
    if (detection == nullptr) continue;
    if (!(c.*detection)) return fmt::format("a {} rank", name_of(f.kind));
    if (!c.restart) return "a restart";
  }
  return {};
}

RunModel model_of(const RunLife& life, const LifeConstants& c) {
  if (const std::string lack = missing(life, c); !lack.empty())
    throw Error(fmt::format("no other run measured {}", lack));
  const Ticks step = std::max(Ticks{1}, ticks(*c.step));
  RunModel out;
  const std::int64_t steps = life.steps - life.first_step;
  out.work = step * steps;
  out.interval = step * (life.checkpoint_every > 0 ? life.checkpoint_every : steps);
  if (life.checkpoint_every > 0) out.stall = ticks(*c.checkpoint);
  if (life.memory_every > 0) {
    if (life.checkpoint_every == 0)  // storage gets none: the interval ends behind the run
      out.interval = step * ((steps + life.memory_every - 1) / life.memory_every * life.memory_every);
    out.memory_interval = step * life.memory_every;
    out.memory_stall = ticks(*c.memory_checkpoint);
    out.replicas = life.memory_replicas;
  }
  out.settle = std::min(out.interval, ticks(c.settle.value_or(RunTime{0})));
  out.restart_software = ticks(c.restart.value_or(RunTime{0}));
  for (const Fault& f : life.faults) {
    if (const LifeConstant detection = detection_of(f.kind))
      out.injected.push_back({.position = step * (f.step - 1 - life.first_step),
                              .detection = ticks(*(c.*detection)),
                              .loses_memory = f.kind == FaultKind::kDead && life.memory_replicas == 1});
    else
      out.unsaved.push_back(step * (f.step - life.first_step));
  }
  std::sort(out.unsaved.begin(), out.unsaved.end());
  return out;
}

namespace {

const char* words_of(LifePart part) {
  switch (part) {
    case LifePart::kProgress:
      return words_of(Doing::kWork);
    case LifePart::kLost:
      return words_of(Doing::kLost);
    case LifePart::kCheckpoint:
      return words_of(Doing::kCheckpoint);
    case LifePart::kValidation:
      return "validation";
    case LifePart::kDetection:
      return words_of(Doing::kDetection);
    case LifePart::kRestart:
      break;
  }
  return words_of(Doing::kRestart);
}

// Injected, or by itself.
const char* words_of(const std::optional<FaultKind>& injected) {
  if (!injected) return "the run failed";
  return *injected == FaultKind::kFrozen ? "a rank froze" : "a rank died";
}

}  // namespace

Timeline life_timeline(const LifeLog& log) {
  Timeline t;
  t.source = "measured: life of a run";
  t.rank_labels.emplace_back("run");
  t.streams = {"job", "stops"};
  t.segments = {"life"};
  std::vector<LifePeriod> periods;
  for (const LifePeriod& p : life_periods(log)) {
    // Where no checkpoint was due, ranks ask each other so for some microseconds.
    constexpr double kShown = 1e-3;  // s
    if (p.part == LifePart::kCheckpoint && p.end_s - p.begin_s < kShown && !periods.empty())
      periods.back().end_s = p.end_s;
    else
      periods.push_back(p);
  }
  const DrawnTime drawn(ticks(periods.empty() ? 0 : periods.back().end_s), t.source);
  const auto slice = [&](const std::string& name, std::int32_t stream, double begin_s, double end_s) {
    const auto known = std::find(t.names.begin(), t.names.end(), name);
    const auto number = static_cast<std::int32_t>(known - t.names.begin());
    if (known == t.names.end()) t.names.push_back(name);
    const Time start = drawn(ticks(begin_s)), end = drawn(ticks(end_s));
    if (!t.slices.empty() && t.slices.back().name == number && t.slices.back().end == start)
      t.slices.back().end = end;  // steps that follow each other
    else
      t.slices.push_back(
          {.name = number, .stream = stream, .ready = start, .start = start, .active = start, .end = end});
  };
  for (const LifePeriod& p : periods) slice(words_of(p.part), 0, p.begin_s, p.end_s);
  // From a failure until the run works again.
  auto attempt = log.attempts.begin();
  for (std::size_t i = 0; i < periods.size(); ++i) {
    const bool down = periods[i].part == LifePart::kDetection || periods[i].part == LifePart::kRestart;
    if (!down) continue;
    const double begin_s = periods[i].begin_s;
    while (i + 1 < periods.size() &&
           (periods[i + 1].part == LifePart::kDetection || periods[i + 1].part == LifePart::kRestart))
      ++i;
    while (attempt != log.attempts.end() && (attempt->steps.empty() || !attempt->failure)) ++attempt;
    if (attempt == log.attempts.end()) break;
    slice(words_of((attempt++)->failure->injected), 1, begin_s, periods[i].end_s);
  }
  return t;
}

}  // namespace orrery::sim
