// SPDX-License-Identifier: Apache-2.0
//
// Plans of the same degrees are a family: they differ in details that a reader of a table takes in at once,
// so the best of a family stands for it.
#pragma once

#include <string>
#include <vector>

#include "planner/plan.h"

namespace orrery::planner {

// Moves the first of each family to the front, by their ranked time. Returns how many there are.
std::size_t best_of_families_first(std::vector<Candidate>& candidates);

// The first plan of each family, with the others as its variants. In the order of `plans`.
std::vector<Ranked> folded(std::vector<Ranked> plans);

// What a plan's short name says otherwise than another's: "mb2x64 zero2", "no sp".
std::string differences(const Plan& plan, const Plan& than);

}  // namespace orrery::planner
