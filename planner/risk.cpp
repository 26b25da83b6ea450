// SPDX-License-Identifier: Apache-2.0
#include "planner/risk.h"

#include <cmath>
#include <limits>
#include <unsupported/Eigen/SpecialFunctions>

namespace orrery::planner {

double pessimistic_time(double step_s, double fits_probability, const PredictionSpread& spread, double risk) {
  if (risk >= 1) return step_s;
  const double share = (1 - risk) / fits_probability;  // of the step times where it fits
  if (!(share < 1)) return std::numeric_limits<double>::infinity();
  return step_s * std::exp(spread.plans.deviation * Eigen::numext::ndtri(share));
}

double risk_factor(double fits_probability, const PredictionSpread& spread, double risk) {
  return pessimistic_time(1, fits_probability, spread, risk) / pessimistic_time(1, 1, spread, risk);
}

MemoryRange memory_range(std::int64_t predicted, const PredictionSpread& spread) {
  const auto bytes = static_cast<double>(predicted);
  const MemorySpread& m = spread.memory;
  return {bytes * std::exp(m.mean - kDeviationsOf80Percent * m.deviation),
          bytes * std::exp(m.mean + kDeviationsOf80Percent * m.deviation)};
}

}  // namespace orrery::planner
