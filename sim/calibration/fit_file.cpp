// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/fit_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/calibration/score.h"

namespace orrery::sim {
namespace {

// Published over predicted of a run, predicted by the other studies' constants.
struct Ratio {
  std::string study;
  double ratio;
};

struct Study {
  double runs = 0, sum = 0;  // of logarithms of ratios
  double mean() const { return sum / runs; }
};

// How much alike runs of one study err: the share of the variance of log ratios that lies between studies, by
// analysis of variance with groups of unequal size (Donner, "A review of inference procedures for the
// intraclass correlation coefficient", 1986). Between 0 and 1.
double correlation_in_studies(const std::vector<Ratio>& ratios, const std::map<std::string, Study>& studies) {
  const auto runs = static_cast<double>(ratios.size()), groups = static_cast<double>(studies.size());
  if (groups < 2 || runs <= groups) return 1;
  Study all{.runs = runs};
  double squares = 0, between = 0, within = 0;
  for (const auto& [name, s] : studies) {
    all.sum += s.sum;
    squares += s.runs * s.runs;
  }
  for (const auto& [name, s] : studies) between += s.runs * std::pow(s.mean() - all.mean(), 2);
  for (const Ratio& r : ratios) within += std::pow(std::log(r.ratio) - studies.at(r.study).mean(), 2);
  between /= groups - 1;
  within /= runs - groups;
  const double usual_runs = (runs - squares / runs) / (groups - 1);
  const double both = between + (usual_runs - 1) * within;
  return both > 0 ? std::clamp((between - within) / both, 0.0, 1.0) : 1;
}

// The value below which `share` of the weight lies. n runs of a study weigh what they tell, as n / (1 + (n -
// 1) r) runs that err by themselves, r being the correlation in studies (Kish, "Survey Sampling", 1965).
double quantile(std::vector<Ratio> ratios, double share) {
  std::map<std::string, Study> studies;
  for (const Ratio& r : ratios) {
    Study& s = studies[r.study];
    ++s.runs;
    s.sum += std::log(r.ratio);
  }
  const double correlation = correlation_in_studies(ratios, studies);
  const auto weight = [&](const Ratio& r) { return 1 / (1 + (studies.at(r.study).runs - 1) * correlation); };
  std::sort(ratios.begin(), ratios.end(), [](const Ratio& a, const Ratio& b) { return a.ratio < b.ratio; });
  double total = 0, below = 0;
  for (const Ratio& r : ratios) total += weight(r);
  constexpr double kRounding = 1e-9;
  for (const Ratio& r : ratios) {
    below += weight(r);
    if (below >= (share - kRounding) * total) return r.ratio;
  }
  return ratios.back().ratio;
}

// What studies other than the run's had.
Knowledge knowledge(const PublishedRuns& runs, const PublishedRun& run) {
  bool stack = false, gpu = false;
  const std::string_view own = fitted_gpu(run.problem.devices.front().name);
  for (const PublishedRun& other : runs.runs) {
    if (other.study == run.study || !not_fitted(other).empty()) continue;
    stack = stack || other.problem.stack.name == run.problem.stack.name;
    gpu = gpu || (!own.empty() && fitted_gpu(other.problem.devices.front().name) == own);
  }
  return stack && gpu ? Knowledge::kBoth : stack || gpu ? Knowledge::kOne : Knowledge::kNeither;
}

constexpr double kLow = 0.1, kHigh = 0.9;

std::vector<std::filesystem::path> profiles_of(const Constant& c, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> out;
  for (const std::string& name : c.devices) out.push_back(folder / "profiles" / (name + ".json"));
  for (const std::string& name : c.stacks) out.push_back(folder / "profiles/stacks" / (name + ".json"));
  return out;
}

}  // namespace

std::vector<MeasuredRange> measured_ranges(const PublishedRuns& runs, const PublishedFit& fit) {
  std::map<Knowledge, std::vector<Ratio>> by_knowledge;
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    const PublishedRun& run = runs.runs[i];
    if (!not_fitted(run).empty()) continue;
    const Knowledge known = knowledge(runs, run);
    if (known != Knowledge::kNeither) by_knowledge[known].push_back({run.study, std::exp(-fit.left_out[i])});
    by_knowledge[Knowledge::kNeither].push_back({run.study, std::exp(-fit.unfitted[i])});
  }
  std::vector<MeasuredRange> out;
  for (const auto& [known, ratios] : by_knowledge) {
    MeasuredRange range{known, static_cast<std::int64_t>(ratios.size()), quantile(ratios, kLow),
                        quantile(ratios, kHigh)};
    std::set<std::string> studies;
    for (const Ratio& r : ratios) studies.insert(r.study);
    for (const std::string& study : studies) {
      std::vector<Ratio> own, others;
      for (const Ratio& r : ratios) (r.study == study ? own : others).push_back(r);
      if (others.empty()) continue;
      const double low = quantile(others, kLow), high = quantile(others, kHigh);
      const auto inside = std::count_if(own.begin(), own.end(),
                                        [&](const Ratio& r) { return r.ratio >= low && r.ratio <= high; });
      range.covered += static_cast<double>(inside) / static_cast<double>(ratios.size());
    }
    out.push_back(range);
  }
  return out;
}

std::vector<StudyErrors> errors_by_study(const PublishedRuns& runs, const PublishedFit& fit) {
  std::map<std::string, StudyErrors> by_study;
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    const PublishedRun& run = runs.runs[i];
    if (!not_fitted(run).empty()) continue;
    StudyErrors& s = by_study[run.study];
    s.study = run.study;
    ++s.runs;
    s.in_sample += std::abs(std::exp(fit.residuals[i]) - 1);
    s.left_out += std::abs(std::exp(fit.left_out[i]) - 1);
    s.bias_left_out += std::exp(fit.left_out[i]) - 1;
  }
  std::vector<StudyErrors> out;
  for (auto& [name, s] : by_study) {
    for (double* const sum : {&s.in_sample, &s.left_out, &s.bias_left_out})
      *sum /= static_cast<double>(s.runs);
    out.push_back(s);
  }
  return out;
}

namespace {

// Step times with the constants of a fit without the run's study; runs that were not fitted to have no say.
void predict_left_out(const PublishedRuns& runs, const PublishedFit& fit, std::vector<ValidationRow>& rows) {
  std::map<std::string, double> predicted;
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    const PublishedRun& run = runs.runs[i];
    if (not_fitted(run).empty()) predicted[run.id] = run.step_s * std::exp(fit.left_out[i]);
  }
  std::erase_if(rows, [&](const ValidationRow& r) { return !predicted.contains(r.id); });
  for (ValidationRow& r : rows) {
    if (r.quantity == "step_time") r.predicted = predicted.at(r.id);
  }
}

}  // namespace

PublishedFitFile fit_file(const PublishedRuns& runs, const PublishedFit& fit,
                          const std::vector<std::string>& data) {
  Validation left_out = validate(runs);
  predict_left_out(runs, fit, left_out.rows);
  PublishedFitFile out{.ranges = measured_ranges(runs, fit),
                       .memory = memory_spread(left_out.rows),
                       .plans = plan_spread(left_out.rows),
                       .studies = errors_by_study(runs, fit),
                       .covariance = fit.covariance};
  for (const std::string& file : data) out.data.push_back(std::filesystem::path(file).filename().string());
  std::set<std::string> stacks, devices;
  for (const PublishedRun& run : runs.runs) {
    if (!not_fitted(run).empty()) continue;
    stacks.insert(run.problem.stack.name);
    const auto siblings = devices_of_gpu(fitted_gpu(run.problem.devices.front().name));
    devices.insert(siblings.begin(), siblings.end());
  }
  out.stacks.assign(stacks.begin(), stacks.end());
  out.devices.assign(devices.begin(), devices.end());
  for (std::size_t c = 0; c < fit.constants.size(); ++c) {
    const Constant& k = fitted_constants()[c];
    const auto& [value, error] = fit.constants[c];
    out.constants.push_back({k.name(), k.unit, value, error, k.low, k.high, k.expected, k.spread});
  }
  return out;
}

void require_profiles(const std::filesystem::path& folder) {
  for (const Constant& c : fitted_constants()) {
    for (const std::filesystem::path& file : profiles_of(c, folder)) load_json(file);
  }
}

void save_fit(const PublishedFitFile& fit, const std::filesystem::path& folder) {
  std::map<std::filesystem::path, Json> profiles;
  for (std::size_t c = 0; c < fit.constants.size(); ++c) {
    const Constant& k = fitted_constants()[c];
    const FittedValue& fitted = fit.constants[c];
    for (const std::filesystem::path& file : profiles_of(k, folder)) {
      auto [at, added] = profiles.try_emplace(file);
      if (added) at->second = load_json(file);
      at->second[Json::json_pointer(k.field)] = constant_json(k, fitted.value);
      std::string field = k.field.substr(1);
      std::replace(field.begin(), field.end(), '/', '.');
      at->second["origin"][field] = fmt::format(
          "fitted to published training runs (profiles/fits/published.json), {}",
          fitted.standard_error == 0 ? std::string("at its bound")
                                     : fmt::format("standard error {:.2g}", fitted.standard_error));
    }
  }
  for (const auto& [file, json] : profiles) save_json(file, json);
  Json json = {{"schema", "orrery.fit/1"}};
  json.update(write_fields(fit));
  std::filesystem::create_directories(folder / "profiles/fits");
  save_json(folder / "profiles/fits/published.json", json);
}

}  // namespace orrery::sim
