// SPDX-License-Identifier: Apache-2.0
//
// The exchange between islands that follows every so many steps, on one rank (core/outer.h). Internal to
// program/.
#pragma once

#include "program/state/parameters.h"

namespace orrery::program {

// Emits its segment: the differences of all units one behind the other, their sum over islands, and the
// update of each unit. Emits nothing, and says so, where the stage trains nothing.
bool emit_outer(Emitter& e, const StageParameters& state, const Communication& over);

}  // namespace orrery::program
