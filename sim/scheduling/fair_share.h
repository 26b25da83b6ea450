// SPDX-License-Identifier: Apache-2.0
//
// What each tenant has used of a cluster, where use fades: after a half-life h, device time counts half.
//
//   u(t + d) = u(t) 2^(-d / h) + devices * h / ln 2 * (1 - 2^(-d / h))      devices held all the while
//   u(t + d) = u(t) + devices * d                                           h = 0: nothing fades
//
// This is the decay of Slurm's multifactor plugin (PriorityDecayHalfLife), continuous in time.
// Device-seconds.
#pragma once

#include <vector>

#include "sim/reliability/clock.h"

namespace orrery::sim {

// 2^-x of a finite x >= 0, to 1e-15 of 1; our own, because those of C libraries differ in the last bit.
double half_to(double x);

class FairShare {
 public:
  FairShare(std::vector<double> shares, Ticks half_life);
  // A tenant gets more devices, or gives some back.
  void hold(std::int32_t tenant, std::int64_t devices, Ticks now);
  // Use over share.
  double used(std::int32_t tenant, Ticks now);
  // Devices held now over share.
  double holds(std::int32_t tenant) const;

 private:
  struct Account {
    double share = 1, used = 0;
    std::int64_t held = 0;
  };
  void advance(Ticks now);
  std::vector<Account> accounts_;  // as of at_
  Ticks at_{0};
  double half_life_s_;
};

}  // namespace orrery::sim
