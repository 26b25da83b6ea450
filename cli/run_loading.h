// SPDX-License-Identifier: Apache-2.0
//
// `orrery run --loading`: data comes as the scenario's `loading` has it, and what was predicted of it stands
// beside what was measured.
#pragma once

#include <string>

#include "cli/run.h"

namespace orrery::cli {

// What each rank's loader does; without --loading, one worker that is a step ahead. Throws InputError where
// the scenario says nothing of loading, steps are too few to compare, or a step's samples take longer or more
// memory or threads than a run has.
exec::LoaderOptions loader_options(const RunAsked& o, const Chosen& chosen);

// Workers make steps side by side, so that these come in bursts of as many: of a whole number of bursts, the
// first one left out. Seconds of a step, in the mean.
struct ComparedLoading {
  LoadedStep predicted;
  double measured_s = 0, waited_s = 0;
};
ComparedLoading compare_loading(const Ended& run);
std::string text_of(const ComparedLoading& c);
Json to_json(const ComparedLoading& c);

}  // namespace orrery::cli
