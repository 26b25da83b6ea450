// SPDX-License-Identifier: Apache-2.0
//
// What rows of predicted and published values say together: errors, changes of a knob, which of several plans
// is fastest, which plans fit.
#pragma once

#include "core/published_fit.h"
#include "sim/calibration/validate.h"

namespace orrery::sim {

struct ErrorSummary {
  std::int64_t n = 0;
  double mape = 0, bias = 0, median = 0;  // of |error|, error, |error|
  double low = 0, high = 0;               // 10th and 90th percentile of published over predicted
};
struct RowFilter {
  std::string quantity;
  std::string source;            // empty: all
  bool firm = false;             // only rows that leave nothing open
  std::int64_t least_bytes = 0;  // of a collective
};
ErrorSummary summarise(const std::vector<ValidationRow>& rows, const RowFilter& filter);

// Pairs of runs of one source that differ in one thing, asked for or chosen; times are of a sequence:
// predicted against published change, (predicted b / predicted a) / (published b / published a) - 1.
struct KnobSummary {
  std::int64_t pairs = 0;
  double mape = 0, median = 0;  // of |error of the change|
  // Pairs whose published step changes by 3 % or more, and of them those that are predicted to change the
  // same way.
  std::int64_t clear = 0, right_way = 0;
};
std::map<std::string, KnobSummary> interventions(const std::vector<ValidationRow>& rows);

// Plans that one source measured for one question (model, GPUs, network, software, batch, sequence, number
// format). Runs of one plan are averaged; suspect ones are left out. Times are of a sequence.
struct PlanRanking {
  std::string source, asked;
  std::int64_t plans = 0;
  double spearman = 0;  // of predicted and published times; ties have their mean rank
  double regret = 0;    // published time of the plan predicted fastest over the fastest's, less one
};
// One for each question that has at least so many plans.
std::vector<PlanRanking> rank_plans(const std::vector<ValidationRow>& rows, std::int64_t least = 2);

// How the plans of each question err against each other.
PlanSpread plan_spread(const std::vector<ValidationRow>& rows);

struct RankingSummary {
  std::int64_t questions = 0, plans = 0;
  double spearman = 0, regret = 0, worst_regret = 0;  // means over questions, and the worst
};
std::map<std::string, RankingSummary> by_source(const std::vector<PlanRanking>& rankings);

// How well it is told which plans fit, where ln(needed / predicted) is normal with the mean and the standard
// deviation that the memory rows have.
struct FitSummary {
  std::int64_t out_of_memory = 0, told = 0;  // and of them, with a probability of fitting below a half
  std::int64_t fitted = 0, fitted_told = 0;  // and of them, with one above it
  MemorySpread spread;
  double brier = 0;  // mean squared error of the probability
};
// Rows that leave something open have no say.
MemorySpread memory_spread(const std::vector<ValidationRow>& rows);

// None where no row has its memory measured, or none ran out of it.
std::optional<FitSummary> summarise_fits(const Validation& all);

}  // namespace orrery::sim
