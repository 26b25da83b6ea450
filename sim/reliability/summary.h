// SPDX-License-Identifier: Apache-2.0
//
// Simulated runs as distributions.
//
//   Summary s = summary_of(model, tariff, simulate_runs(model.run, options));
//   s.days.p95;                  // 19 of 20 runs take no longer
//   s.share_within(60.0);        // of the runs, that end in 60 days
//
// A predicted step is uncertain too. StepRange says how far: the time and the dollars of each run are also
// multiplied by a factor of its own, ln-normal between the two.
#pragma once

#include <vector>

#include "sim/reliability/money.h"

namespace orrery::sim {

struct Spread {
  double mean = 0, p5 = 0, p50 = 0, p95 = 0;
  double error = 0;  // standard error of the mean
};
// Percentiles are of the sorted values, the smallest with at least so many below or equal.
Spread spread_of(std::vector<double> values);

// 80 % of measured steps lie between these multiples of the predicted one.
struct StepRange {
  double low = 1, high = 1;
  std::uint64_t seed = 1;
  bool certain() const { return low == high; }
};

struct Summary {
  std::int64_t runs = 0;
  Spread days, ettr, dollars, storage_dollars, energy_dollars, kwh, carbon_kg;
  Spread stops, checkpoints;
  // Shares of the time of all runs together, which add up to 1: progress, and what takes the rest.
  double progress = 0, lost = 0, slow = 0, checkpoint = 0, detection = 0, restart = 0, wait = 0,
         maintenance = 0;
  Spread hardware, software, silent, old_rollbacks, preempted, evictions, planned;
  // With the step's range.
  Spread days_of_step, dollars_of_step;
  std::vector<double> sorted_days, sorted_dollars;  // of these
  std::int64_t median_run = 0;                      // whose days are days.p50

  double share_within(double days) const;
};
Summary summary_of(const RunModel& model, const Tariff& tariff, const std::vector<RunOutcome>& runs,
                   const StepRange& step = {});

}  // namespace orrery::sim
