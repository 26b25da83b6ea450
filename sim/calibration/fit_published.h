// SPDX-License-Identifier: Apache-2.0
//
// fitted_constants() fitted to published training runs, all at once:
//
//   minimise  sum over runs of rho(ln(predicted / published))  +  sum over constants of
//             ((value - expected) / spread kUsualError)^2,   low <= value <= high
//
// where rho(r) = 2 f^2 (sqrt(1 + (r / f)^2) - 1) with f = kUsualError (soft L1: runs that are far off count
// by their distance, not by its square), by Gauss-Newton steps with damping. Each study is then left out: the
// constants are fitted again to the others, and its runs are predicted with them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/calibration/constants.h"
#include "sim/calibration/published.h"

namespace orrery::sim {

constexpr double kUsualError = 0.06;  // of a good prediction

struct FittedConstant {
  double value = 0;
  // Of the linearised fit, with the residuals' variance; 0 where the value is at a bound.
  double standard_error = 0;
};

struct PublishedFit {
  std::vector<FittedConstant> constants;        // as fitted_constants()
  std::vector<std::vector<double>> covariance;  // of their values; rows at a bound are zero
  std::vector<double> residuals;  // ln(predicted / published) of each run; 0 of those out of memory
  // Likewise, with constants that were fitted without the run's study; of runs that are not fitted to, the
  // same.
  std::vector<double> left_out;
  std::vector<double> unfitted;  // likewise, with what is expected of every constant
};

// Why a study is not fitted to; empty when it is.
std::string not_fitted(const PublishedRun& run);

// `progress`: the fraction that is done. Throws Error when no run is fitted to.
PublishedFit fit_published(const PublishedRuns& runs, std::size_t threads,
                           const std::function<void(double)>& progress);

}  // namespace orrery::sim
