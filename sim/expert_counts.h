// SPDX-License-Identifier: Apache-2.0
//
// How one drawn step's tokens fall on experts, for people to look at beside a predicted timeline. The
// timeline takes the fullest ranks' loads in the mean over many draws (expert_loads.h); these are the tokens
// of one, so an expert that is full here takes no longer beside it than others.
#pragma once

#include "core/timeline.h"
#include "program/program.h"

namespace orrery::sim {

// Of each group of ranks that a process of the timeline stands for; none where the training says nothing of
// loads. Precondition: the timeline is of this program.
ExpertCounts drawn_counts(const program::Program& program, const Timeline& timeline);

}  // namespace orrery::sim
