// SPDX-License-Identifier: Apache-2.0
//
// What to change: the interval between checkpoints, spare nodes, and what each assumption is worth. Variants
// are simulated with the same random numbers, so that they differ by what was changed and not by chance.
#pragma once

#include <string>
#include <vector>

#include "sim/reliability/summary.h"

namespace orrery::sim {

// A question: what is assumed, of which job, at which prices.
struct Operation {
  ReliabilityAssumptions assumed;
  Job job;
  TariffInputs prices;
  StepRange step;
};
struct Answered {
  JobModel model;
  Tariff tariff;
  Summary summary;
};
Answered answer(const Operation& o, const RunOptions& options);

// Of a variant against the base: means, and the standard error of the mean difference.
struct Change {
  double days = 0, days_error = 0, dollars = 0;
};

inline constexpr double kAsGood = 0.002;  // share of the time
struct IntervalAdvice {
  double young_daly_s = 0;  // by formula, not rounded to steps
  double exact_s = 0;       // best_interval_s
  double simulated_s = 0;   // of those tried, the one with the least mean time
  double days = 0;          // that it takes, in the mean
  // Of those tried, the shortest and the longest with which the run takes at most kAsGood longer.
  double shortest_s = 0, longest_s = 0;
  std::vector<std::pair<double, double>> tried;  // interval in seconds, mean days
};
IntervalAdvice best_interval(const Operation& o, const RunOptions& options);

struct SpareNodes {
  std::int64_t nodes = 0;
  double days_mean = 0, days_p95 = 0, wait_share = 0, dollars_mean = 0;
};
// From no spare to the least number with which less than a thousandth of the time is spent waiting.
std::vector<SpareNodes> spares_to_buy(const Operation& o, const RunOptions& options);

// All failures that stop the job come so much more rarely that the mean time between them is an hour longer.
Change worth_of_an_hour(const Operation& o, const RunOptions& options);

struct Sensitivity {
  std::string field;            // "failures/detection"
  std::string halved, doubled;  // its value then
  Change half, twice;
};
// Every number that is assumed, halved and doubled within its range, where that changes anything; the
// largest change of days first.
std::vector<Sensitivity> sensitivities(const Operation& o, const RunOptions& options);

}  // namespace orrery::sim
