// SPDX-License-Identifier: Apache-2.0
#include "planner/risk.h"

#include <cmath>
#include <limits>
#include <unsupported/Eigen/SpecialFunctions>

namespace orrery::planner {

double outlook(double step_s, double fits_probability, const PredictionSpread& spread, double risk) {
  if (risk >= 1) return step_s;
  if (fits_probability <= 1 - risk) return std::numeric_limits<double>::infinity();
  const double share = (1 - risk) / fits_probability;  // of the step times where it fits
  return step_s * std::exp(spread.plans.deviation * Eigen::numext::ndtri(share));
}

}  // namespace orrery::planner
