// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/advice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "core/reliability_profile.h"

namespace orrery::sim {
namespace {

struct Simulated {
  JobModel model;
  Tariff tariff;
  std::vector<RunOutcome> runs;
};

Simulated simulated(const Operation& o, const RunOptions& options) {
  Simulated out;
  out.model = model_of(o.assumed, o.job);
  out.tariff = tariff_of(o.assumed, o.job, out.model, o.prices);
  out.tariff.seed = options.seed;
  out.runs = simulate_runs(out.model.run, options);
  return out;
}

Change change_of(const Simulated& base, const Simulated& variant) {
  std::vector<double> difference, paid;
  for (std::size_t i = 0; i < base.runs.size(); ++i) {
    difference.push_back(days(variant.runs[i].total) - days(base.runs[i].total));
    paid.push_back(cost_of(variant.runs[i], variant.model.run, variant.tariff, i).total() -
                   cost_of(base.runs[i], base.model.run, base.tariff, i).total());
  }
  const Spread d = spread_of(std::move(difference));
  return {d.mean, d.error, spread_of(std::move(paid)).mean};
}

// Nothing where the variant's runs do not end, or last longer than is simulated.
std::optional<Simulated> if_it_ends(const Operation& variant, const RunOptions& options) {
  try {
    return simulated(variant, options);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Whether a variant changes neither a run nor its price.
bool is_same(const Simulated& base, const Operation& variant) {
  try {
    const JobModel model = model_of(variant.assumed, variant.job);
    Tariff tariff = tariff_of(variant.assumed, variant.job, model, variant.prices);
    tariff.seed = base.tariff.seed;
    return model.run == base.model.run && tariff == base.tariff;
  } catch (const Error&) {
    return false;
  }
}

Change change_of(const Simulated& base, const std::optional<Simulated>& variant) {
  constexpr double kForever = std::numeric_limits<double>::infinity();
  return variant ? change_of(base, *variant) : Change{kForever, 0, kForever};
}

// `value` times `factor`, within the field's range.
template <class T>
T scaled_value(const T& value, double factor, const Field& field) {
  if constexpr (UnitQuantity<T>) {
    const double v = std::clamp(static_cast<double>(value.value) * factor, field.min, field.max);
    return T{static_cast<typename T::Rep>(v)};
  } else {
    return static_cast<T>(std::clamp(static_cast<double>(value) * factor, field.min, field.max));
  }
}
template <class T>
std::string value_text(const T& value) {
  if constexpr (UnitQuantity<T>)
    return format(value);
  else if constexpr (std::same_as<T, double>)
    return fmt::format("{:.3g}", value);
  else
    return fmt::format("{}", value);
}

// The assumptions with one number, the `which`-th, times `factor`; its name and new value.
struct Scaled {
  ReliabilityAssumptions assumed;
  std::string field, value;
};
Scaled scaled(const ReliabilityAssumptions& a, std::size_t which, double factor) {
  Scaled out{a, {}, {}};
  std::size_t number = 0;
  for_each_number(out.assumed, [&](const std::string& path, const Field& field, auto& value) {
    if (number++ != which) return;
    value = scaled_value(value, factor, field);
    out.field = path;
    out.value = value_text(value);
  });
  return out;
}

double rate_of_stops(const RunModel& m) {
  double sum = 0;
  for (const Process p : {Process::kHardware, Process::kSoftware, Process::kPreempt})
    sum += m.rate(p).of(m.nodes);
  return sum;
}

}  // namespace

Answered answer(const Operation& o, const RunOptions& options) {
  Simulated s = simulated(o, options);
  Summary summary = summary_of(s.model.run, s.tariff, s.runs, o.step);
  return {std::move(s.model), std::move(s.tariff), std::move(summary)};
}

IntervalAdvice best_interval(const Operation& o, const RunOptions& options) {
  const JobModel base = model_of(o.assumed, o.job);
  IntervalAdvice out;
  const double work = seconds(base.run.work), least = std::max(base.step_s, base.settle_s);
  out.young_daly_s = std::min(young_daly_interval(base.stall_s, base.mtbf_s), work);
  out.exact_s = best_interval_s(work, base.stall_s, least, base.kinds());
  // Around the exact one, a factor of 1.4 apart, in steps of the run.
  for (int i = -5; i <= 5; ++i) {
    const double wanted = std::clamp(out.exact_s * std::pow(2.0, i / 2.0), least, work);
    Operation variant = o;
    Checkpoints& c = variant.assumed.checkpoint;
    if (base.run.in_memory()) {
      c.memory_interval = RunTime{wanted};
      c.interval = RunTime{std::max(base.interval_s, wanted)};
    } else {
      c.interval = RunTime{wanted};
    }
    const std::optional<Simulated> s = if_it_ends(variant, options);
    if (!s) continue;
    const double interval_s = base.run.in_memory() ? s->model.memory_interval_s : s->model.interval_s;
    if (!out.tried.empty() && interval_s <= out.tried.back().first) continue;
    double mean = 0;
    for (const RunOutcome& r : s->runs) mean += days(r.total) / static_cast<double>(s->runs.size());
    out.tried.emplace_back(interval_s, mean);
  }
  if (out.tried.empty()) return out;
  std::tie(out.simulated_s, out.days) = *std::min_element(
      out.tried.begin(), out.tried.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  out.shortest_s = out.longest_s = out.simulated_s;
  for (const auto& [interval_s, mean] : out.tried) {
    if (mean > (1 + kAsGood) * out.days) continue;
    out.shortest_s = std::min(out.shortest_s, interval_s);
    out.longest_s = std::max(out.longest_s, interval_s);
  }
  return out;
}

std::vector<SpareNodes> spares_to_buy(const Operation& o, const RunOptions& options) {
  const JobModel base = model_of(o.assumed, o.job);
  // Nodes that are away at once, in the mean: rate times mean time away. They are Poisson distributed.
  const double away = base.run.rate(Process::kHardware).of(base.run.nodes) * seconds(base.run.repair) +
                      base.run.rate(Process::kPreempt).of(base.run.nodes) * seconds(base.run.refill) +
                      (base.run.evicts_slow ? base.run.rate(Process::kSlow).of(base.run.nodes) : 0) *
                          seconds(base.run.repair);
  std::vector<SpareNodes> out;
  constexpr double kEnough = 0.001;
  constexpr int kMostDeviations = 8;
  for (int deviations = -1; deviations <= kMostDeviations; ++deviations) {
    const auto n = static_cast<std::int64_t>(
        std::clamp(std::ceil(away + deviations * std::sqrt(away)), 0.0, limits::kMostNodes));
    if (!out.empty() && n <= out.back().nodes) continue;
    Operation variant = o;
    variant.assumed.spares.nodes = n;
    const std::optional<Simulated> runs = if_it_ends(variant, options);
    if (!runs) continue;
    const Summary s = summary_of(runs->model.run, runs->tariff, runs->runs);
    out.push_back({n, s.days.mean, s.days.p95, s.wait, s.dollars.mean});
    if (s.wait < kEnough) break;
  }
  return out;
}

Change worth_of_an_hour(const Operation& o, const RunOptions& options) {
  const Simulated base = simulated(o, options);
  const double mtbf = seconds_between(rate_of_stops(base.model.run));
  if (std::isinf(mtbf)) return {};
  constexpr double kHour = 3600;
  Operation variant = o;
  for (std::optional<double>* rate :
       {&variant.assumed.failures.hardware_per_node_day, &variant.assumed.failures.software_per_node_day,
        &variant.assumed.failures.software_per_job_day, &variant.assumed.preemption.per_node_day}) {
    if (*rate) **rate *= mtbf / (mtbf + kHour);
  }
  return change_of(base, if_it_ends(variant, options));
}

std::vector<Sensitivity> sensitivities(const Operation& o, const RunOptions& options) {
  const Simulated base = simulated(o, options);
  std::size_t numbers = 0;
  ReliabilityAssumptions counted = o.assumed;
  for_each_number(counted, [&](const std::string&, const Field&, auto&) { ++numbers; });
  std::vector<Sensitivity> out;
  for (std::size_t i = 0; i < numbers; ++i) {
    Sensitivity s;
    const auto of = [&](double factor, std::string& text) -> Change {
      Scaled variant = scaled(o.assumed, i, factor);
      s.field = variant.field;
      text = variant.value;
      const Operation changed{std::move(variant.assumed), o.job, o.prices, o.step};
      return is_same(base, changed) ? Change{} : change_of(base, if_it_ends(changed, options));
    };
    s.half = of(0.5, s.halved);
    s.twice = of(2, s.doubled);
    const auto changes = [](const Change& c) { return c.days != 0 || c.dollars != 0; };
    if (changes(s.half) || changes(s.twice)) out.push_back(std::move(s));
  }
  const auto size = [](const Sensitivity& s) {
    return std::max(std::abs(s.half.days), std::abs(s.twice.days));
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Sensitivity& a, const Sensitivity& b) { return size(a) > size(b); });
  return out;
}

}  // namespace orrery::sim
