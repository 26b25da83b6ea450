// SPDX-License-Identifier: Apache-2.0
//
// What would end a plan's wait for its samples, and what that costs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan_file.h"

namespace orrery::planner {

struct LoadingFix {
  std::string change;  // "5 workers in place of 2"
  double step_s = 0;   // with it, in the mean
  // Dollars of a month: 0 where it costs nothing, none where the scenario has no price of it.
  std::optional<double> usd_month;
};

// Single changes that leave steps at most 2 % longer than their compute, the cheapest first: those that cost
// nothing, those with a price, the others. Where no single one does, several together. Empty where steps do
// not wait for so long, or where nothing that a scenario says of loading would help.
std::vector<LoadingFix> loading_fixes(const Problem& problem, const Plan& plan, const LoadedStep& now);

// What nodes cost in a month while they wait; 0 without their price.
double waiting_usd_month(const Problem& problem, const LoadedStep& now);

// {"waiting_usd_month", "fixes"}
Json loading_json(const Problem& problem, const Plan& plan, const LoadedStep& now);
// A line on what loading does, and one for each fix.
std::vector<std::string> loading_lines(const Problem& problem, const Plan& plan, const LoadedStep& now);

}  // namespace orrery::planner
