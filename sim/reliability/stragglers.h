// SPDX-License-Identifier: Apache-2.0
//
// Ranks that meet in every step take as long as the slowest of them. Where ln of a rank's step varies with a
// standard deviation s, the step of n ranks is e^(s max(z_1 .. z_n)) times the step without variation, z
// standard normal. A value x is the largest of n with probability F(x)^n, so the quantile p of the largest is
// the quantile p^(1/n) of one.
//
//   mean_of_largest(65'536);                    // 4.28
//   step_spread(0.04, 65'536).p95;              // 1.212
#pragma once

#include <cstdint>

namespace orrery::sim {

// The largest of n standard normal numbers: in the mean, and so that it is below with probability p.
double mean_of_largest(std::int64_t n);
double quantile_of_largest(double p, std::int64_t n);

// Of a step, over the step of ranks that do not vary.
struct StepSpread {
  double mean = 1, p5 = 1, p50 = 1, p95 = 1;
};
StepSpread step_spread(double rank_noise, std::int64_t ranks);

}  // namespace orrery::sim
