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

namespace {

// The mean of value(x) for the largest x of n: by the probabilities of short pieces of the axis.
template <class Value>
double mean_over_largest(std::int64_t n, Value value) {
  constexpr double kPiece = 1.0 / 256, kFarthest = 12;
  const boost::math::normal normal;
  const auto all_below = [&](double x) {
    const double above = boost::math::cdf(boost::math::complement(normal, x));
    return std::exp(static_cast<double>(n) * std::log1p(-above));
  };
  double sum = 0, before = 0;
  for (double x = -kFarthest; x <= kFarthest; x += kPiece) {
    const double below = all_below(x);
    sum += (below - before) * value(x - kPiece / 2);
    before = below;
  }
  return sum;
}

}  // namespace

double mean_of_largest(std::int64_t n) {
  return mean_over_largest(n, [](double x) { return x; });
}

StepSpread step_spread(double rank_noise, std::int64_t ranks) {
  if (rank_noise <= 0) return {};
  const auto at = [&](double p) { return std::exp(rank_noise * quantile_of_largest(p, ranks)); };
  const double mean = mean_over_largest(ranks, [&](double x) { return std::exp(rank_noise * x); });
  return {mean, at(0.05), at(0.5), at(0.95)};
}

}  // namespace orrery::sim
