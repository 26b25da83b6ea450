// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "core/error.h"

namespace orrery::sim {
namespace {

using Constant = std::optional<RunTime> LifeConstants::*;
constexpr std::initializer_list<Constant> kConstants{
    &LifeConstants::step,    &LifeConstants::checkpoint,     &LifeConstants::settle,
    &LifeConstants::restart, &LifeConstants::detection_dead, &LifeConstants::detection_frozen};

// Null where the fault does not stop the run.
Constant detection_of(FaultKind kind) {
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
  for (const Constant constant : kConstants) {
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
  for (const Fault& f : life.faults) {
    const Constant detection = detection_of(f.kind);
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
  out.work = step * (life.steps - life.first_step);
  out.interval = life.checkpoint_every > 0 ? step * life.checkpoint_every : out.work;
  if (life.checkpoint_every > 0) out.stall = ticks(*c.checkpoint);
  out.settle = std::min(out.interval, ticks(c.settle.value_or(RunTime{0})));
  out.restart_software = ticks(c.restart.value_or(RunTime{0}));
  for (const Fault& f : life.faults) {
    if (const Constant detection = detection_of(f.kind))
      out.injected.push_back({step * (f.step - 1 - life.first_step), ticks(*(c.*detection))});
    else
      out.unsaved.push_back(step * (f.step - life.first_step));
  }
  std::sort(out.unsaved.begin(), out.unsaved.end());
  return out;
}

}  // namespace orrery::sim
