// SPDX-License-Identifier: Apache-2.0
//
// When the layers of a program worked on experts, in a timeline of it, and which ranks have a layer's experts
// between them: what counts of tokens (ExpertCounts) refer to.
#pragma once

#include <vector>

#include "core/timeline.h"
#include "program/program.h"

namespace orrery::program {

// Of a layer with experts on one process, in one micro-batch: from the choice of experts until the sum of
// what they gave, in the forward pass.
struct ExpertSpan {
  std::int32_t process = 0, micro_batch = 0;
  std::int32_t layer = 0;     // its block
  std::int32_t of_block = 0;  // which of the block's layers with experts
  Time start, end;
};
// By process, in order of start. Precondition: the timeline is of this program.
std::vector<ExpertSpan> expert_spans(const Program& program, const Timeline& timeline);

// Numbers of tokens that one group of a stage's ranks has in a micro-batch: the experts of its layers.
std::int64_t experts_chosen_from(const RankClass& rank);
// Micro-batches, from the first on, whose numbers ExpertCounts keeps, of all groups of the plan.
std::int64_t counted_micro_batches(const Program& program);

// The first ranks of the parts of the experts that this rank shares with others (ExpertCounts::groups). Ranks
// of one group get the same list.
std::vector<std::int64_t> expert_group(const Program& program, std::int64_t rank);

}  // namespace orrery::program
