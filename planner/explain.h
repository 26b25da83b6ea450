// SPDX-License-Identifier: Apache-2.0
//
// Why an answer is what it is, in sentences.
#pragma once

#include "planner/plan.h"

namespace orrery::planner {

// Adds to Answer::why: where the time goes, what the choice risks, what the next plan does otherwise, what
// was faster and did not fit, and which batch would use devices that this one leaves idle.
void explain(const Problem& problem, Answer& answer);

}  // namespace orrery::planner
