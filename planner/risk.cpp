// SPDX-License-Identifier: Apache-2.0
#include "planner/risk.h"

#include <cmath>
#include <limits>
#include <unsupported/Eigen/SpecialFunctions>

namespace orrery::planner {

Outlook outlook(double step_s, double needs, double has, const PredictionSpread& spread, double risk) {
  Outlook out{.fits = spread.memory.fits(needs, has), .pessimistic_s = step_s};
  if (risk >= 1) return out;
  const double share = (1 - risk) / out.fits;  // of its step times, where it fits
  out.pessimistic_s = share < 1 ? step_s * std::exp(spread.plans * Eigen::numext::ndtri(share))
                                : std::numeric_limits<double>::infinity();
  return out;
}

}  // namespace orrery::planner
