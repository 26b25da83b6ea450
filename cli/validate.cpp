// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "cli/commands.h"
#include "cli/progress.h"
#include "core/text.h"
#include "sim/calibration/report.h"
#include "sim/calibration/score.h"

namespace orrery::cli {
namespace {

struct ValidateAsked {
  std::vector<std::string> files;
  std::string report;
  bool rows = false;
};

constexpr const char* kQuantities[] = {"step_time", "memory", "time", "ttft", "tpot"};

constexpr std::int64_t kLarge = 64 << 20;  // of a message

Json error_json(const sim::ErrorSummary& s) {
  return {{"n", s.n},           {"mape", s.mape},        {"bias", s.bias},
          {"median", s.median}, {"measured_low", s.low}, {"measured_high", s.high}};
}

Json summary_json(const std::vector<sim::ValidationRow>& rows, const std::string& source, bool firm) {
  Json out = Json::object();
  for (const char* q : kQuantities) {
    const sim::RowFilter filter{q, source, firm};
    if (const auto s = sim::summarise(rows, filter); s.n > 0) out[q] = error_json(s);
    const auto large = sim::summarise(rows, {q, source, firm, kLarge});
    if (large.n > 0) out[q]["large_messages"] = error_json(large);
  }
  return out;
}

Json row_json(const sim::ValidationRow& r) {
  return {
      {"id", r.id},         {"quantity", r.quantity}, {"predicted", r.predicted}, {"published", r.published},
      {"error", r.error()}, {"assumed", r.assumed}};
}

void print_line(const std::string& name, const sim::ErrorSummary& s) {
  if (s.n > 0)
    fmt::print("  {:<56} {:>6} {:>8.1f} {:>8.1f} {:>8.1f}   {:>4.2f} to {:<4.2f}\n", name, s.n, 100 * s.mape,
               100 * s.bias, 100 * s.median, s.low, s.high);
}

void print_interventions(const std::vector<sim::ValidationRow>& rows) {
  const auto by_knob = sim::interventions(rows);
  if (by_knob.empty()) return;
  fmt::print("\n{:<58} {:>6} {:>8} {:>17}   {}\n",
             "two runs that differ in one knob, errors of the change in %", "pairs", "mean", "median",
             "right way, of changes of 3 % or more");
  for (const auto& [knob, k] : by_knob)
    fmt::print("  {:<56} {:>6} {:>8.1f} {:>17.1f}   {} of {}\n", knob, k.pairs, 100 * k.mape, 100 * k.median,
               k.right_way, k.clear);
}

void print_rankings(const std::vector<sim::ValidationRow>& rows) {
  const auto of_sources = sim::by_source(sim::rank_plans(rows));
  if (of_sources.empty()) return;
  fmt::print("\n{:<58} {:>9} {:>6} {:>9} {:>13} {:>8}\n", "plans that one source measured for one question",
             "questions", "plans", "Spearman", "regret in %", "worst");
  for (const auto& [source, s] : of_sources)
    fmt::print("  {:<56} {:>9} {:>6} {:>9.2f} {:>13.1f} {:>8.1f}\n", printable(source), s.questions, s.plans,
               s.spearman, 100 * s.regret, 100 * s.worst_regret);
}

void print_fits(const sim::Validation& all) {
  const auto f = sim::summarise_fits(all);
  if (!f) return;
  fmt::print(
      "\nwhich plans fit: {} of {} runs that ran out of memory have a probability of fitting below 0.5, "
      "{} of {} that ran one above it\n"
      "  (memory is {:.2f} times what is predicted, standard deviation of the logarithm {:.2f}); Brier score "
      "{:.3f}\n",
      f->told, f->out_of_memory, f->fitted_told, f->fitted, std::exp(f->spread.mean), f->spread.deviation,
      f->brier);
}

sim::Validation read(const App& app, const std::vector<std::string>& files) {
  Progress progress("predicting");
  sim::Validation all;
  for (const std::string& file : files) {
    all.add(sim::validate_file(file, app.data));
    progress(static_cast<double>(&file - files.data() + 1) / static_cast<double>(files.size()));
  }
  return all;
}

void execute(App& app, const ValidateAsked& o) {
  const sim::Validation all = read(app, o.files);
  if (!o.report.empty()) sim::write_report(all, load_published_fit(app.data), o.report);
  std::int64_t skipped = 0;
  for (const auto& [reason, n] : all.skipped) skipped += n;
  if (app.json) {
    Json out = {{"schema", "orrery.validation/1"}};
    out["summary"] = summary_json(all.rows, {}, false);
    out["summary"]["rows"] = all.read;
    out["summary"]["scored"] = all.read - skipped;
    out["summary"]["skipped"] = all.skipped;
    out["summary"]["without_assumptions"] = summary_json(all.rows, {}, true);
    for (const std::string& s : all.sources()) out["by_source"][s] = summary_json(all.rows, s, false);
    out["interventions"] = Json::object();
    for (const auto& [knob, k] : sim::interventions(all.rows)) {
      out["interventions"][knob] = {{"pairs", k.pairs},
                                    {"mape", k.mape},
                                    {"median", k.median},
                                    {"clear", k.clear},
                                    {"right_way", k.right_way}};
    }
    out["rankings"] = Json::array();
    for (const sim::PlanRanking& r : sim::rank_plans(all.rows))
      out["rankings"].push_back({{"source", r.source},
                                 {"asked", r.asked},
                                 {"plans", r.plans},
                                 {"spearman", r.spearman},
                                 {"regret", r.regret}});
    if (const auto f = sim::summarise_fits(all)) {
      out["fits"] = {{"out_of_memory", f->out_of_memory},
                     {"told", f->told},
                     {"fitted", f->fitted},
                     {"fitted_told", f->fitted_told},
                     {"spread", write_fields(f->spread)},
                     {"brier", f->brier}};
      for (const sim::FitRow& r : all.fits)
        out["fits"]["rows"].push_back({{"id", r.id},
                                       {"needs_bytes", r.needs},
                                       {"has_bytes", r.has},
                                       {"fitted", r.fitted},
                                       {"probability", f->spread.fits(r.needs, r.has)}});
    }
    out["rows"] = out["conflicting"] = Json::array();
    for (const auto& r : all.rows) out["rows"].push_back(row_json(r));
    for (const auto& r : all.conflicting) out["conflicting"].push_back(row_json(r));
    return print_json(out);
  }
  const auto print_row = [](const sim::ValidationRow& r) {
    fmt::print("{:<66} {:<10} {:>12.5g} {:>12.5g} {:>+7.1f} %{}\n", printable(r.id), r.quantity, r.predicted,
               r.published, 100 * r.error(),
               r.assumed.empty() ? "" : printable(fmt::format("  assumed: {}", fmt::join(r.assumed, ", "))));
  };
  if (o.rows) std::for_each(all.rows.begin(), all.rows.end(), print_row);
  fmt::print("{} rows read, {} predicted\n", all.read, all.read - skipped);
  for (const char* q : kQuantities) {
    const auto total = sim::summarise(all.rows, {q});
    if (total.n == 0) continue;
    fmt::print("\n{:<58} {:>6} {:>8} {:>8} {:>8}   {}\n", std::string(q) + ", errors in %", "rows", "mean",
               "bias", "median", "80 % of published over predicted");
    for (const std::string& s : all.sources()) print_line(printable(s), sim::summarise(all.rows, {q, s}));
    print_line("all", total);
    print_line("all rows that leave nothing open", sim::summarise(all.rows, {q, {}, true}));
    print_line("all messages of 64 MiB or more", sim::summarise(all.rows, {q, {}, false, kLarge}));
  }
  print_fits(all);
  print_interventions(all.rows);
  print_rankings(all.rows);
  if (!all.conflicting.empty()) fmt::print("\nnot scored: published runs of the group disagree\n");
  std::for_each(all.conflicting.begin(), all.conflicting.end(), print_row);
  if (!all.skipped.empty()) fmt::print("\nnot scored\n");
  for (const auto& [reason, n] : all.skipped) fmt::print("  {:>6}  {}\n", n, printable(reason));
}

}  // namespace

void add_validate(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "validate", "predicted against published measurements");
  auto o = std::make_shared<ValidateAsked>();
  command
      ->add_option("files", o->files, "data sets: training runs, runs of serving, collectives, kernel tables")
      ->required();
  command->add_option("--report", o->report, "write report.md and its plots into this folder");
  command->add_flag("--rows", o->rows, "print every row");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
