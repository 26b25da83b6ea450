// SPDX-License-Identifier: Apache-2.0
//
// orrery reliability: what a run really takes, from failures to dollars, as distributions.
#include "cli/reliability.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "cli/progress.h"
#include "planner/evaluate.h"

namespace orrery::cli {
namespace {

struct ReliabilityAsked {
  std::vector<std::string> files;
  std::string rates, deadline, trace;
  std::int64_t runs = 10'000, advice_runs = 1000, seed = 1;
  double confidence = 0.9;
  int threads = 0;
  bool no_advice = false;
};

// A scenario that says its step time needs no plan.
std::optional<Problem> stated(const std::string& file, const App& app) {
  const Json json = load_json(file);
  if (!json.is_object() || json.contains("predicted")) return std::nullopt;
  const Cursor at{file, ""};
  Scenario s = read_scenario(json, at);
  if (!s.reliability || !s.reliability->step_time || s.plan) return std::nullopt;
  return resolve(std::move(s), at, app.data);
}

Operated load(const std::string& file, const ReliabilityAsked& o, const App& app, Progress& progress) {
  Operated q;
  const planner::OperateOptions options{.rates = o.rates};
  if (const std::optional<Problem> problem = stated(file, app)) {
    q = planner::operate(*problem, {}, problem->at, options, app.data);
  } else {
    const Chosen chosen = load_plan_or_scenario(file, app);
    q = planner::operate(chosen.problem, chosen.plan, chosen.scenario, options, app.data);
  }
  const sim::Topology topology(q.problem.cluster);
  if (planner::take_stated_step(q, topology)) return q;
  progress("simulating a step", 0);
  const double step_s = planner::evaluate(q.problem, topology, *q.plan).predicted.step_time_s;
  planner::take_predicted_step(q, topology, step_s, "engine", static_cast<std::uint64_t>(o.seed));
  return q;
}

double deadline_days(const ReliabilityAsked& o, const std::vector<Operated>& questions) {
  if (o.deadline.empty()) return questions.front().problem.scenario.deadline.value / sim::kSecondsPerDay;
  const auto given = parse_run_time(o.deadline);
  if (!given || given->value <= 0 || given->value > limits::kLongestRun)
    Cursor{"command line", "/deadline"}.fail(shown(Json(o.deadline)) + " is not a time of a run",
                                             "allowed: text like \"60 days\", up to 9999 days");
  return given->value / sim::kSecondsPerDay;
}

// Of the runs of each variant that advice was asked to compare, those that all variants together have the
// time for.
std::int64_t affordable_runs(std::int64_t asked, double stops) {
  constexpr double kVariants = 100;     // about as many as planner::advised() simulates
  constexpr std::int64_t kFewest = 20;  // less would be chance
  const auto most =
      static_cast<std::int64_t>(static_cast<double>(sim::kMostRunEvents) / kVariants / std::max(1.0, stops));
  return most < kFewest ? 0 : std::min(asked, most);
}

void execute(const App& app, const ReliabilityAsked& o) {
  const Cursor trace{"command line", "/trace"};
  if (is_life(o.files.front())) {
    if (!o.trace.empty())
      trace.fail("is of simulated runs, and a life was executed", "allowed: a scenario or a plan");
    return compare_lives(app, o.files);
  }
  constexpr std::size_t kMostScenarios = 16;
  if (o.files.size() > kMostScenarios)
    Cursor{"command line", "/scenario"}.fail(fmt::format("{} scenarios are compared", o.files.size()),
                                             fmt::format("allowed: 1 to {}", kMostScenarios));
  if (!o.trace.empty()) {
    if (o.files.size() > 1)
      trace.fail(fmt::format("is of one scenario, and {} are given", o.files.size()),
                 "allowed: one scenario");
    require_writable("/trace", o.trace);
  }
  ReliabilityReport r;
  r.confidence = o.confidence;
  r.seed = o.seed;
  const int threads =
      o.threads > 0 ? o.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const sim::RunOptions runs{static_cast<std::uint64_t>(o.seed), o.runs, threads};
  std::optional<Progress> progress(std::in_place, "planning");
  for (const std::string& file : o.files) r.questions.push_back(load(file, o, app, *progress));
  r.deadline_days = deadline_days(o, r.questions);
  (*progress)("simulating runs", 0);
  for (std::size_t i = 0; i < r.questions.size(); ++i) {
    const Operated& q = r.questions[i];
    for (const Payment payment : planner::payments(q))
      r.ways.push_back({i, payment, planner::answered(planner::paid(q, payment), runs)});
  }
  std::string note;
  if (!o.no_advice) {
    (*progress)("trying changes", 0);
    const double stops = r.ways.front().answered.summary.stops.mean;
    const std::int64_t advice_runs = affordable_runs(o.advice_runs, stops);
    if (advice_runs > 0) r.advised = planner::advised(r.questions.front(), {runs.seed, advice_runs, threads});
    if (advice_runs < o.advice_runs)
      note = advice_runs == 0
                 ? fmt::format("no advice: a run stops {:.0f} times, and its variants would take minutes\n",
                               stops)
                 : fmt::format("advice compares {} runs of each variant, not {}: a run stops {:.0f} times\n",
                               advice_runs, o.advice_runs, stops);
  }
  progress.reset();
  fmt::print(stderr, "{}", note);
  if (app.json)
    print_json(reliability_json(r));
  else
    print_reliability(r);
  if (!o.trace.empty())
    save_timeline(o.trace,
                  sim::life_timeline(planner::diary_of_median_run(r.ways.front().answered, runs.seed)));
}

}  // namespace

Choices choices(const ReliabilityReport& r) {
  Choices out;
  const auto less = [&](std::size_t a, const std::optional<std::size_t>& b) {
    return !b || r.ways[a].answered.summary.dollars.mean < r.ways[*b].answered.summary.dollars.mean;
  };
  for (std::size_t i = 0; i < r.ways.size(); ++i) {
    const sim::Summary& s = r.ways[i].answered.summary;
    if (s.days.mean < r.ways[out.fastest].answered.summary.days.mean) out.fastest = i;
    if (r.ways[i].answered.tariff.node_hour <= 0) continue;
    if (less(i, out.cheapest)) out.cheapest = i;
    const bool in_time = r.deadline_days > 0 && s.share_within(r.deadline_days) >= r.confidence;
    if (in_time && less(i, out.cheapest_in_time)) out.cheapest_in_time = i;
  }
  return out;
}

void add_reliability(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "reliability",
                 "what a run takes with failures, checkpoints and restarts: days and dollars");
  auto o = std::make_shared<ReliabilityAsked>();
  command
      ->add_option("scenario", o->files,
                   "scenario or plan files, of which several are compared; or what `orrery run --life` wrote")
      ->required()
      ->expected(1, 1000);
  command->add_option("--rates", o->rates, "a profile of published rates, in place of the scenario's");
  command->add_option("--runs", o->runs, "simulated runs")
      ->check(CLI::Range(std::int64_t{20}, sim::kMostRuns))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "of the random numbers")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--deadline", o->deadline, "like \"60 days\"; in place of the scenario's");
  command->add_option("--trace", o->trace,
                      "writes what the median run did, with the scenario's own payment: a timeline, which "
                      "orrery-gui opens");
  command->add_option("--confidence", o->confidence, "share of runs that end by the deadline")
      ->check(CLI::Range(0.01, 0.999))
      ->capture_default_str();
  command->add_option("--advice-runs", o->advice_runs, "simulated runs of each variant that advice compares")
      ->check(CLI::Range(std::int64_t{20}, std::int64_t{100'000}))
      ->capture_default_str();
  command->add_flag("--no-advice", o->no_advice, "leave out what to change");
  command->add_option("--threads", o->threads, "0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
