// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "cli/commands.h"
#include "cli/progress.h"
#include "core/text.h"
#include "sim/calibration/fit_file.h"

namespace orrery::cli {
namespace {

void print_studies(const PublishedFitFile& file) {
  fmt::print("\n{:<46} {:>5} {:>10} {:>9} {:>9}\n", "mean errors of step time in %, by study", "runs",
             "in-sample", "left out", "bias");
  for (const StudyErrors& s : file.studies)
    fmt::print("  {:<44} {:>5} {:>10.1f} {:>9.1f} {:>+9.1f}\n", printable(s.study), s.runs, 100 * s.in_sample,
               100 * s.left_out, 100 * s.bias_left_out);
}

void print_all(const char* name, std::vector<double> in_sample, std::vector<double> left_out) {
  if (in_sample.empty()) return;
  const auto n = static_cast<double>(in_sample.size());
  double fitted = 0, apart = 0, bias = 0;
  for (const double e : in_sample) fitted += std::abs(e) / n;
  for (double& e : left_out) {
    bias += e / n;
    e = std::abs(e);
    apart += e / n;
  }
  std::sort(left_out.begin(), left_out.end());
  fmt::print("  {:<44} {:>5} {:>10.1f} {:>9.1f} {:>+9.1f}   median left out {:.1f}\n", name, in_sample.size(),
             100 * fitted, 100 * apart, 100 * bias, 100 * left_out[left_out.size() / 2]);
}

void print_fit(const sim::PublishedRuns& runs, const sim::PublishedFit& fit, const PublishedFitFile& file) {
  fmt::print("{:<44} {:>9} {:>15} {:>12}  {}\n", "constant", "value", "standard error", "bounds", "expected");
  for (std::size_t c = 0; c < fit.constants.size(); ++c) {
    const sim::Constant& k = sim::fitted_constants()[c];
    const auto& [value, error] = fit.constants[c];
    fmt::print("  {:<42} {:>9.3g} {:>15} {:>5.3g} to {:<4.3g} {:.3g}\n", k.name(), value,
               error == 0 ? std::string("at its bound") : fmt::format("{:.2g}", error), k.low, k.high,
               k.expected);
  }
  print_studies(file);
  std::vector<double> all[2], firm[2];
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    if (!sim::not_fitted(runs.runs[i]).empty()) continue;
    const double errors[] = {std::exp(fit.residuals[i]) - 1, std::exp(fit.left_out[i]) - 1};
    for (const int k : {0, 1}) {
      all[k].push_back(errors[k]);
      if (runs.runs[i].assumed.empty()) firm[k].push_back(errors[k]);
    }
  }
  print_all("all", all[0], all[1]);
  print_all("of them, that leave nothing open", firm[0], firm[1]);
  fmt::print("\nhow sure, with the run's study left out:\n");
  for (const MeasuredRange& r : file.ranges)
    fmt::print("  {}; {:.0f} % of them are in the range of the other studies\n", words_of(r),
               100 * r.covered);
}

Json fit_json(const sim::PublishedRuns& runs, const sim::PublishedFit& fit, const PublishedFitFile& file) {
  Json out = {{"schema", "orrery.fit/1"}};
  out.update(write_fields(file));
  out["runs"] = Json::array();
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    const sim::PublishedRun& run = runs.runs[i];
    if (!run.ran()) continue;
    out["runs"].push_back({{"id", run.id},
                           {"study", run.study},
                           {"fitted", sim::not_fitted(run).empty()},
                           {"stack", run.problem.stack.name},
                           {"gpu", run.problem.device_names()},
                           {"assumed", run.assumed},
                           {"error", std::exp(fit.residuals[i]) - 1},
                           {"error_left_out", std::exp(fit.left_out[i]) - 1}});
  }
  return out;
}

}  // namespace

void calibrate_published(const App& app, const std::vector<std::string>& files, const std::string& folder) {
  if (!folder.empty()) sim::require_profiles(folder);
  sim::PublishedRuns runs;
  for (const std::string& file : files) {
    sim::PublishedRuns of_file = sim::read_published(file, app.data);
    runs.read += of_file.read;
    std::move(of_file.runs.begin(), of_file.runs.end(), std::back_inserter(runs.runs));
    for (const auto& [reason, n] : of_file.skipped) runs.skipped[reason] += n;
  }
  const sim::PublishedFit fit = [&] {
    Progress progress("fitting, and leaving each study out");
    return sim::fit_published(runs, std::max(1U, std::thread::hardware_concurrency()), std::ref(progress));
  }();
  const PublishedFitFile file = sim::fit_file(runs, fit, files);
  if (!folder.empty()) sim::save_fit(file, folder);
  if (app.json) return print_json(fit_json(runs, fit, file));
  fmt::print("{} rows read, {} predicted\n\n", runs.read, runs.runs.size());
  print_fit(runs, fit, file);
}

}  // namespace orrery::cli
