// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/fair_share.h"

#include <cmath>

namespace orrery::sim {
namespace {

constexpr double kLn2 = 0.693147180559945309417;

}  // namespace

double half_to(double x) {
  constexpr double kNothing = 1100;  // 2^-1100 is below every double
  if (x >= kNothing) return 0;
  const double whole = std::floor(x);
  // e^-y, y = (x - whole) ln 2 < 0.7: twenty terms of its series.
  const double y = (x - whole) * kLn2;
  double term = 1, sum = 1;
  for (int k = 1; k <= 20; ++k) {
    term *= -y / k;
    sum += term;
  }
  return std::ldexp(sum, -static_cast<int>(whole));
}

FairShare::FairShare(std::vector<double> shares, Ticks half_life) : half_life_s_(seconds(half_life)) {
  for (const double share : shares) accounts_.push_back({.share = share});
}

void FairShare::advance(Ticks now) {
  if (at_ == now) return;
  const double d = seconds(now - at_);
  at_ = now;
  const double left = half_life_s_ > 0 ? half_to(d / half_life_s_) : 1;
  const double each =
      half_life_s_ > 0 ? half_life_s_ / kLn2 * (1 - left) : d;  // of a device held all the while
  for (Account& a : accounts_) a.used = a.used * left + static_cast<double>(a.held) * each;
}

void FairShare::hold(std::int32_t tenant, std::int64_t devices, Ticks now) {
  advance(now);
  accounts_[static_cast<std::size_t>(tenant)].held += devices;
}

double FairShare::used(std::int32_t tenant, Ticks now) {
  advance(now);
  const Account& a = accounts_[static_cast<std::size_t>(tenant)];
  return a.used / a.share;
}

double FairShare::holds(std::int32_t tenant) const {
  const Account& a = accounts_[static_cast<std::size_t>(tenant)];
  return static_cast<double>(a.held) / a.share;
}

}  // namespace orrery::sim
