// SPDX-License-Identifier: Apache-2.0
//
// Listed pipeline schedules (core/schedule_order.h): text to work and back, and which lists can run.
//
// Of a stage's chunk each micro-batch has one F, and one B or one Bi and one W. The micro-batches of a chunk
// come in order in its forwards, in its backwards (B and Bi) and in its weight gradients (B and W): what is
// kept of them lies in a ring, and what is reduced waits for the last one.
// And the whole must come to an end. Stages are walked together without times: a stage does its next piece
// once it has received what that needs. Activations, those that come back in a V, and gradients pass on lines
// of their own: on a line it sends in the order in which it makes, and receives in the order in which it
// needs. First with room for all tensors: what stops then can never start. Then with as little room as an
// engine may have: a chunk keeps one tensor that is not yet sent, and receives two ahead, but no more than
// one beside its most micro-batches in flight. What stops then might start in some engines, and is refused
// too; what does not, ends in all of them.
//
//   ScheduleOrder o = order_of({.pp = 2, .micro_batches = 3});   // "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"
#include "program/schedule.h"

namespace orrery::program {

// Pieces of work in a list, of all stages.
inline constexpr std::int64_t kMostListed = 1 << 20;

// Throws InputError at the field, stage by stage, where the plan's list cannot run. O(p v m).
void check_order(const Plan& p, const Cursor& at);

// Why a list cannot be of a model whose last chunk has the embedding's weight too (Model::embeds_at_end), on
// the stage that has the first; empty if it can. Replicas sum that weight's gradient behind the first chunk's
// last one, so that the last chunk's has to be there.
std::string shared_weight_problem(const Plan& p);

// Of a list that can.
std::vector<std::vector<Slot>> slots_of(const ScheduleOrder& order);
Backwards backwards_of(const ScheduleOrder& order);

// The list of a plan's schedule.
ScheduleOrder order_of(const Plan& p);

}  // namespace orrery::program
