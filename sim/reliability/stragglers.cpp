// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/stragglers.h"

#include <boost/math/distributions/normal.hpp>
#include <cmath>

namespace orrery::sim {

double quantile_of_largest(double p, std::int64_t n) {
  // 1 - p^(1/n), which is tiny.
  const double above = -std::expm1(std::log(p) / static_cast<double>(n));
  return boost::math::quantile(boost::math::complement(boost::math::normal(), above));
}

double mean_of_largest(std::int64_t n) {
  // The integral of 1 - F^n over positive numbers less that of F^n over negative ones, by trapezoids: both
  // are smooth and end in zeros.
  constexpr double kStep = 1.0 / 64, kFarthest = 12;
  const boost::math::normal normal;
  double sum = 0;
  for (double x = -kFarthest; x <= kFarthest; x += kStep) {
    const double above = boost::math::cdf(boost::math::complement(normal, x));
    const double all_below = std::exp(static_cast<double>(n) * std::log1p(-above));
    sum += kStep * ((x > 0 ? 1 : x < 0 ? 0 : 0.5) - all_below);
  }
  return sum;
}

StepSpread step_spread(double rank_noise, std::int64_t ranks) {
  if (rank_noise <= 0) return {};
  const auto at = [&](double p) { return 1 + rank_noise * quantile_of_largest(p, ranks); };
  return {1 + rank_noise * mean_of_largest(ranks), at(0.05), at(0.5), at(0.95)};
}

}  // namespace orrery::sim
