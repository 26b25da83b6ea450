// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/closed_forms.h"

#include <cmath>
#include <limits>

namespace orrery::sim {

double seconds_between(double events_per_s) {
  return events_per_s > 0 ? 1 / events_per_s : std::numeric_limits<double>::infinity();
}

double young_daly_interval(double write_s, double mtbf_s) {
  return std::isinf(mtbf_s) ? mtbf_s : std::sqrt(2 * write_s * mtbf_s);
}

double expected_ettr(const EttrTerms& t) {
  return (1 - t.failures_per_s * (t.restart_s + t.interval_s / 2)) / (1 + t.write_s / t.interval_s);
}

double allowed_loss_per_failure(double ettr, double failures_per_s) {
  return (1 - ettr) / failures_per_s;
}

namespace {

// From a failure until the job works again.
double recovery_s(double rate, const std::vector<FailureKind>& kinds) {
  double interrupted = 0, completed = 0;
  for (const FailureKind& k : kinds) {
    const double share = k.per_s / rate;
    interrupted -= share * std::expm1(-rate * k.restart_s);
    completed += share * std::exp(-rate * k.restart_s);
  }
  return interrupted / (rate * completed);
}

}  // namespace

double expected_run_s(double work_s, double interval_s, double stall_s,
                      const std::vector<FailureKind>& kinds) {
  double rate = 0;
  for (const FailureKind& k : kinds) rate += k.per_s;
  const double whole = std::floor(work_s / interval_s), rest = work_s - whole * interval_s;
  if (rate == 0) return work_s + stall_s * (whole + (rest > 0 ? 1 : 0));
  const double per_failure = 1 / rate + recovery_s(rate, kinds);
  double segments = whole * std::expm1(rate * (interval_s + stall_s));
  if (rest > 0) segments += std::expm1(rate * (rest + stall_s));
  return per_failure * segments;
}

double best_interval_s(double work_s, double stall_s, double least_s, const std::vector<FailureKind>& kinds) {
  // The time of whole segments, (e^(r (x + stall)) - 1) / x, has one minimum.
  const auto overhead = [&](double x) { return expected_run_s(x, x, stall_s, kinds) / x; };
  double low = std::log(std::min(least_s, work_s)), high = std::log(work_s);
  constexpr double kGolden = 0.6180339887498949;
  for (int i = 0; i < 80 && high - low > 1e-9; ++i) {
    const double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    if (overhead(std::exp(a)) <= overhead(std::exp(b)))
      high = b;
    else
      low = a;
  }
  return std::exp((low + high) / 2);
}

}  // namespace orrery::sim
