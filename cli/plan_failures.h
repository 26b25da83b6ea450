// SPDX-License-Identifier: Apache-2.0
//
// `orrery plan --failures`: what the runs of the best plans take and cost with failures, checkpoints and
// restarts, and which plan is then the best.
#pragma once

#include <string>
#include <vector>

#include "cli/reliability.h"
#include "planner/plan.h"

namespace orrery::cli {

struct FailingPlan {
  Plan plan;
  std::int64_t nodes = 0;
  bool simulated = false;  // its step; else estimated
  double step_s = 0, quiet_days = 0, quiet_dollars = 0;
  sim::Answered answered;
};

struct PlansWithFailures {
  std::vector<FailingPlan> plans;  // best first
  std::string payment, rates;
  std::int64_t runs = 0;
  std::string unmet;    // the goal that none meets in so many runs; empty: the best does
  std::string changed;  // how the best differs from the best without failures; empty: it is the same
};

inline constexpr double kConfidence = 0.9;  // share of runs that meet a deadline or a budget

// Of an answer with plans. The candidates are its plans, and the fastest plan of each number of nodes where
// the goal had them compared.
PlansWithFailures with_failures(const Problem& problem, const planner::Answer& answer,
                                std::optional<Payment> payment, int threads, const App& app);

Json failures_json(const PlansWithFailures& p);
void print_failures(const PlansWithFailures& p);

}  // namespace orrery::cli
