// SPDX-License-Identifier: Apache-2.0
//
// Plans beside the fastest that there are other reasons to choose. Of all that the search kept and that fit
// as surely as the scenario wants:
//
//   safest     the most probable to fit, of those that take up to 5 % longer
//   smallest   the least memory of a device, of those that take up to 10 % longer
//   simplest   the fewest mechanisms, of those that take up to 5 % longer
//
// by the estimate; of equals the faster. Each is named where it is another plan than the fastest and better
// by something that counts: 1 % of probability, a tenth of the memory, a mechanism.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/plan.h"

namespace orrery::planner {

// Of what a user has to set up and understand: axes of more than one rank, ZeRO, shard groups, chunks,
// schedules other than 1F1B, recomputation and what narrows it, offloading, uneven stages, exchanges that
// overlap or go by node. One for each.
int mechanisms(const Plan& plan);

// Of an answer with at least one plan. `simulated` gives a candidate's prediction, or nothing where the
// simulation says that the candidate does not do what the scenario asks for; its reason is then not given.
std::vector<Choice> choices(const Problem& problem, const Answer& answer,
                            const std::function<std::optional<Ranked>(const Candidate&)>& simulated);

}  // namespace orrery::planner
