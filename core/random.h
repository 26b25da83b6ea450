// SPDX-License-Identifier: Apache-2.0
//
// Random numbers of simulated runs, and of what is emulated. A stream is a function of (seed, run, process)
// alone, so runs may be computed in any order on any thread, and a change of one process leaves the draws of
// the others as they were: two variants of a run differ by what was changed and not by chance.
//
//   RandomStream failures(seed, run, 3);
//   double hours = mean_hours * failures.exponential();
//
// SplitMix64 (core/hash.h). The logarithm is our own, because those of C libraries
// differ in the last bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/hash.h"

namespace orrery {

// ln x of a finite x > 0, to 2e-16 of its size or of 1.
double natural_log(double x);

class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t run, std::uint64_t process)
      : state_(mix(mix(mix(seed) + run * kStep) + process * kStep)) {}

  // In (0, 1): multiples of 2^-53, plus half of one.
  double uniform() {
    const std::uint64_t bits = mix(state_);
    state_ += kStep;
    return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  }
  // With mean 1.
  double exponential() { return -natural_log(uniform()); }
  // With mean 0 and variance 1, nearly normal: the sum of twelve uniform numbers, less 6.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  // With mean 1; `variance` is that of its logarithm, ln(1 + v^2) of a standard deviation v.
  double log_normal(double variance) { return std::exp(std::sqrt(variance) * normal() - variance / 2); }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;  // SplitMix64's
  std::uint64_t state_;
};

}  // namespace orrery
