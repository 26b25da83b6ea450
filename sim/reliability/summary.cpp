// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/summary.h"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <cmath>

#include "core/published_fit.h"
#include "core/random.h"

namespace orrery::sim {
namespace {

double percentile(const std::vector<double>& sorted, double p) {
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

Spread spread_of_sorted(const std::vector<double>& values) {
  Spread out;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) out.mean += v / n;
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  if (values.size() > 1) out.error = std::sqrt(squares / (n - 1) / n);
  out.p5 = percentile(values, 0.05);
  out.p50 = percentile(values, 0.5);
  out.p95 = percentile(values, 0.95);
  return out;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return spread_of_sorted(values);
}

double Summary::share_within(double limit) const {
  const auto end = std::upper_bound(sorted_days.begin(), sorted_days.end(), limit);
  return static_cast<double>(end - sorted_days.begin()) / static_cast<double>(sorted_days.size());
}

namespace {

std::vector<double> step_factors(const StepRange& step, std::size_t runs) {
  std::vector<double> out(runs, 1.0);
  if (step.certain()) return out;
  const double middle = (std::log(step.low) + std::log(step.high)) / 2;
  const double deviation = (std::log(step.high) - middle) / kDeviationsOf80Percent;
  constexpr std::uint64_t kStream = 1000;  // none of a run's own
  const boost::math::normal normal;
  for (std::size_t i = 0; i < runs; ++i) {
    const double z = boost::math::quantile(normal, RandomStream(step.seed, i, kStream).uniform());
    out[i] = std::exp(middle + deviation * z);
  }
  return out;
}

}  // namespace

Summary summary_of(const RunModel& model, const Tariff& tariff, const std::vector<RunOutcome>& runs,
                   const StepRange& step) {
  Summary out;
  out.runs = static_cast<std::int64_t>(runs.size());
  const auto over = [&](auto value) {
    std::vector<double> values;
    values.reserve(runs.size());
    for (const RunOutcome& r : runs) values.push_back(static_cast<double>(value(r)));
    return values;
  };
  const auto spread = [&](auto value) { return spread_of(over(value)); };
  out.days = spread([](const RunOutcome& r) { return days(r.total); });
  const auto median = std::find_if(runs.begin(), runs.end(),
                                   [&](const RunOutcome& r) { return days(r.total) == out.days.p50; });
  out.median_run = median - runs.begin();
  out.ettr = spread([&](const RunOutcome& r) { return ettr(r, model); });
  std::vector<RunCost> costs;
  costs.reserve(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) costs.push_back(cost_of(runs[i], model, tariff, i));
  const auto cost = [&](auto value) {
    std::vector<double> values;
    values.reserve(costs.size());
    for (const RunCost& c : costs) values.push_back(value(c));
    return spread_of(std::move(values));
  };
  out.dollars = cost([](const RunCost& c) { return c.total(); });
  const std::vector<double> factors = step_factors(step, runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out.sorted_days.push_back(days(runs[i].total) * factors[i]);
    out.sorted_dollars.push_back(costs[i].total() * factors[i]);
  }
  std::sort(out.sorted_dollars.begin(), out.sorted_dollars.end());
  out.dollars_of_step = spread_of_sorted(out.sorted_dollars);
  std::sort(out.sorted_days.begin(), out.sorted_days.end());
  out.days_of_step = spread_of_sorted(out.sorted_days);
  out.storage_dollars = cost([](const RunCost& c) { return c.storage; });
  out.energy_dollars = cost([](const RunCost& c) { return c.energy; });
  out.kwh = cost([](const RunCost& c) { return c.kwh; });
  out.carbon_kg = cost([](const RunCost& c) { return c.carbon_kg; });
  out.stops = spread([](const RunOutcome& r) { return r.stops(); });
  out.checkpoints = spread([](const RunOutcome& r) { return r.checkpoints; });
  out.hardware = spread([](const RunOutcome& r) { return r.of(Process::kHardware); });
  out.software = spread([](const RunOutcome& r) { return r.of(Process::kSoftware); });
  out.silent = spread([](const RunOutcome& r) { return r.of(Process::kSilent); });
  out.old_rollbacks = spread([](const RunOutcome& r) { return r.old_rollbacks; });
  out.preempted = spread([](const RunOutcome& r) { return r.of(Process::kPreempt); });
  out.evictions = spread([](const RunOutcome& r) { return r.evictions; });
  out.planned = spread([](const RunOutcome& r) { return r.planned; });

  double total = 0;
  for (const RunOutcome& r : runs) total += seconds(r.total);
  const auto share = [&](auto part) {
    double sum = 0;
    for (const RunOutcome& r : runs) sum += seconds(part(r));
    return sum / total;
  };
  out.progress = share([&](const RunOutcome&) { return model.work; });
  out.lost = share([](const RunOutcome& r) { return r.lost; });
  out.slow = share([](const RunOutcome& r) { return r.slow; });
  out.checkpoint = share([](const RunOutcome& r) { return r.checkpoint; });
  out.detection = share([](const RunOutcome& r) { return r.detection; });
  out.restart = share([](const RunOutcome& r) { return r.restart; });
  out.wait = share([](const RunOutcome& r) { return r.wait; });
  out.maintenance = share([](const RunOutcome& r) { return r.maintenance; });
  return out;
}

}  // namespace orrery::sim
