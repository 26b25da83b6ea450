// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/score.h"

#include <algorithm>
#include <cmath>

namespace orrery::sim {

ErrorSummary summarise(const std::vector<ValidationRow>& rows, const RowFilter& filter) {
  ErrorSummary s;
  std::vector<double> sizes, ratios;
  for (const ValidationRow& r : rows) {
    if (r.quantity != filter.quantity || (!filter.source.empty() && r.source != filter.source) ||
        (filter.firm && !r.assumed.empty()) || r.bytes < filter.least_bytes)
      continue;
    s.mape += std::abs(r.error());
    s.bias += r.error();
    sizes.push_back(std::abs(r.error()));
    ratios.push_back(r.published / r.predicted);
  }
  s.n = static_cast<std::int64_t>(sizes.size());
  if (s.n == 0) return s;
  s.mape /= static_cast<double>(s.n);
  s.bias /= static_cast<double>(s.n);
  std::sort(sizes.begin(), sizes.end());
  s.median = sizes[sizes.size() / 2];
  std::sort(ratios.begin(), ratios.end());
  s.low = ratios[ratios.size() / 10];
  s.high = ratios[ratios.size() * 9 / 10];
  return s;
}

namespace {

// The one thing that two runs differ in; null where they differ in none or more.
const std::string* one_difference(const ValidationRow& a, const ValidationRow& b) {
  const std::string* out = nullptr;
  bool one = true;
  const auto compare = [&](const auto& of_a, const auto& of_b) {
    for (const auto& [name, value] : of_a) {
      if (of_b.at(name) == value) continue;
      one = out == nullptr;
      out = &name;
      if (!one) return;
    }
  };
  compare(a.asked, b.asked);
  if (one) compare(a.knobs, b.knobs);
  return one ? out : nullptr;
}

bool compares(const ValidationRow& r) {
  return r.quantity == "step_time" && !r.asked.empty() && !r.suspect;
}

}  // namespace

std::map<std::string, KnobSummary> interventions(const std::vector<ValidationRow>& rows) {
  constexpr double kClear = 0.03;
  std::map<std::string, KnobSummary> out;
  std::map<std::string, std::vector<double>> errors;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ValidationRow& a = rows[i];
    if (!compares(a)) continue;
    for (std::size_t j = i + 1; j < rows.size(); ++j) {
      const ValidationRow& b = rows[j];
      if (!compares(b) || b.source != a.source) continue;
      const std::string* changed = one_difference(a, b);
      if (changed == nullptr) continue;
      const auto batches = static_cast<double>(a.sequences) / static_cast<double>(b.sequences);
      const double predicted = batches * b.predicted / a.predicted;
      const double published = batches * b.published / a.published;
      KnobSummary& k = out[*changed];
      ++k.pairs;
      errors[*changed].push_back(std::abs(predicted / published - 1));
      if (std::abs(published - 1) < kClear) continue;
      ++k.clear;
      k.right_way += (predicted > 1) == (published > 1);
    }
  }
  for (auto& [name, k] : out) {
    std::vector<double>& e = errors[name];
    for (const double x : e) k.mape += x / static_cast<double>(k.pairs);
    std::sort(e.begin(), e.end());
    k.median = e[e.size() / 2];
  }
  return out;
}

namespace {

// 1 for the least; equal values have the mean of their ranks.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<double> out;
  for (const double v : values) {
    const auto less = std::count_if(values.begin(), values.end(), [&](double x) { return x < v; });
    const auto equal = std::count(values.begin(), values.end(), v);
    out.push_back(static_cast<double>(less) + static_cast<double>(equal + 1) / 2);
  }
  return out;
}

// Pearson's correlation of ranks; zero where one side has one value throughout.
double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = static_cast<double>(a.size() + 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

// Of plans that are predicted equally fast, any may be taken: the mean of their published times counts.
double regret(const std::vector<double>& predicted, const std::vector<double>& published) {
  const double first = *std::min_element(predicted.begin(), predicted.end());
  double taken = 0, n = 0;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    if (predicted[i] > first) continue;
    taken += published[i];
    ++n;
  }
  return taken / n / *std::min_element(published.begin(), published.end()) - 1;
}

// What one plan's runs sum to, and how many there are.
struct Runs {
  double predicted = 0, published = 0, n = 0;
};
using Knobs = std::map<std::string, std::string>;

// By source and what was asked for; of each plan, a sequence's time.
std::map<std::pair<std::string, Knobs>, std::map<Knobs, Runs>> questions(
    const std::vector<ValidationRow>& rows) {
  std::map<std::pair<std::string, Knobs>, std::map<Knobs, Runs>> out;
  for (const ValidationRow& r : rows) {
    if (!compares(r)) continue;
    Runs& runs = out[{r.source, r.asked}][r.knobs];
    runs.predicted += r.predicted / static_cast<double>(r.sequences);
    runs.published += r.published / static_cast<double>(r.sequences);
    ++runs.n;
  }
  return out;
}

}  // namespace

std::vector<PlanRanking> rank_plans(const std::vector<ValidationRow>& rows, std::int64_t least) {
  std::vector<PlanRanking> out;
  for (const auto& [key, plans] : questions(rows)) {
    const auto n = static_cast<std::int64_t>(plans.size());
    if (n < least) continue;
    std::vector<double> predicted, published;
    for (const auto& [knobs, runs] : plans) {
      predicted.push_back(runs.predicted / runs.n);
      published.push_back(runs.published / runs.n);
    }
    std::string asked;
    for (const auto& [name, value] : key.second) asked += (asked.empty() ? "" : ", ") + name + " " + value;
    out.push_back({key.first, asked, n, spearman(predicted, published), regret(predicted, published)});
  }
  return out;
}

std::map<std::string, RankingSummary> by_source(const std::vector<PlanRanking>& rankings) {
  std::map<std::string, RankingSummary> out;
  for (const PlanRanking& r : rankings) {
    RankingSummary& s = out[r.source];
    ++s.questions;
    s.plans += r.plans;
    s.spearman += r.spearman;
    s.regret += r.regret;
    s.worst_regret = std::max(s.worst_regret, r.regret);
  }
  for (auto& [source, s] : out) {
    s.spearman /= static_cast<double>(s.questions);
    s.regret /= static_cast<double>(s.questions);
  }
  return out;
}

MemorySpread memory_spread(const std::vector<ValidationRow>& rows) {
  std::vector<double> logs;
  for (const ValidationRow& r : rows) {
    if (r.quantity == "memory" && r.assumed.empty()) logs.push_back(std::log(r.published / r.predicted));
  }
  MemorySpread out{.runs = static_cast<std::int64_t>(logs.size())};
  const auto n = static_cast<double>(logs.size());
  for (const double x : logs) out.mean += x / n;
  for (const double x : logs) out.deviation += (x - out.mean) * (x - out.mean) / n;
  out.deviation = std::sqrt(out.deviation);
  return out;
}

// That of a normal distribution of which as many lie within 80 %: a few plans are far off. Of each question
// the variance has one degree of freedom less than it has plans.
PlanSpread plan_spread(const std::vector<ValidationRow>& rows) {
  constexpr double kShare = 0.8;
  PlanSpread out;
  std::vector<double> off;
  for (const auto& [key, plans] : questions(rows)) {
    if (plans.size() < 2) continue;
    const auto n = static_cast<double>(plans.size());
    double mean = 0;
    for (const auto& [knobs, runs] : plans) mean += std::log(runs.published / runs.predicted) / n;
    for (const auto& [knobs, runs] : plans)
      off.push_back(std::abs(std::log(runs.published / runs.predicted) - mean) * std::sqrt(n / (n - 1)));
    ++out.questions;
    out.plans += static_cast<std::int64_t>(plans.size());
  }
  if (off.empty()) return out;
  std::sort(off.begin(), off.end());
  const auto at = static_cast<std::size_t>(std::ceil(kShare * static_cast<double>(off.size()))) - 1;
  out.deviation = off[at] / kDeviationsOf80Percent;
  return out;
}

std::optional<FitSummary> summarise_fits(const Validation& all) {
  FitSummary out{.spread = memory_spread(all.rows)};
  if (!(out.spread.deviation > 0)) return std::nullopt;
  for (const FitRow& row : all.fits) {
    const double p = out.spread.fits(row.needs, row.has);
    out.brier += std::pow(p - (row.fitted ? 1 : 0), 2) / static_cast<double>(all.fits.size());
    ++(row.fitted ? out.fitted : out.out_of_memory);
    if (row.fitted ? p > 0.5 : p < 0.5) ++(row.fitted ? out.fitted_told : out.told);
  }
  return out.out_of_memory > 0 ? std::optional(out) : std::nullopt;
}

}  // namespace orrery::sim
