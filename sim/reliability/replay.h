// SPDX-License-Identifier: Apache-2.0
//
// The simulation of many steps beside runs that were executed: each run is simulated with its own faults and
// checkpoints, and with what a step, a checkpoint, a restart and a detection took in the other runs.
//
//   std::vector<RunLife> lives;                     // of files that `orrery run --life` wrote
//   Replay r = replay(lives[0], mean_of({lives[1], lives[2]}));
//   r.goodput / goodput(lives[0]);                  // predicted over measured
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/run_life.h"
#include "core/timeline.h"
#include "sim/reliability/run.h"

namespace orrery::sim {

// Share of the time, validation left out, that brought the run forward.
double goodput(const RunLife& life);

// The means of those that measured a thing.
LifeConstants mean_of(std::span<const RunLife> lives);

// What the constants lack for the run: "a frozen rank"; empty: nothing.
std::string missing(const RunLife& life, const LifeConstants& constants);

// Its faults at their steps, with these constants. Throws Error where a constant is missing.
RunModel model_of(const RunLife& life, const LifeConstants& constants);

// A row of what the run did, and a row of what it stopped for: as life_timeline() of a simulated run
// (diary.h).
Timeline life_timeline(const LifeLog& log);

}  // namespace orrery::sim
