// SPDX-License-Identifier: Apache-2.0
//
// The end of a step on one rank: gradients that are still to be reduced, the tied weight's exchange, the
// global gradient norm, LAMB's trust ratios, and the update. Internal to program/.
#pragma once

#include "program/state/parameters.h"

namespace orrery::program {

// Emits the optimizer's segment.
void emit_optimizer(Emitter& e, StageParameters& state, const Communication& over);

}  // namespace orrery::program
