// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "cli/plan_asked.h"
#include "cli/plan_failures.h"
#include "cli/progress.h"
#include "planner/answer.h"

namespace orrery::cli {
namespace {

// Failures come in the time of a run, which follows from its tokens.
void require_run(const Problem& problem) {
  const Scenario& s = problem.scenario;
  if (s.training.tokens <= 0)
    problem.at.child("training")
        .child("tokens")
        .fail("is missing or zero, and failures come in the time of a run",
              "allowed: more than zero, like 300e9");
  if (s.reliability && s.reliability->step_time)
    problem.at.child("reliability")
        .child("step_time")
        .fail("is in place of what is planned here", "allowed: without --failures and --spot");
}

// The best plan, with failures where they were asked for.
void save_best(const Problem& problem, const planner::Answer& a,
               const std::optional<PlansWithFailures>& failing, const std::string& output) {
  Problem on = problem;
  planner::Ranked best = a.plans.front();
  if (failing && !failing->plans.empty()) {
    const FailingPlan& f = failing->plans.front();
    on.cluster.nodes = on.scenario.cluster.nodes = f.nodes;
    best.plan = f.plan;
    best.predicted = planner::evaluate(on, sim::Topology(on.cluster), f.plan).predicted;
  }
  Json file = write_fields(planner::make_plan_file(on, best.plan, best.predicted, "engine"));
  file["schema"] = "orrery.plan/1";
  save_json(output, file);
}

int threads_of(const PlanAsked& o) {
  return o.threads > 0 ? o.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void print(const Problem& problem, const planner::Answer& a, const std::optional<PlansWithFailures>& failing,
           Format format) {
  switch (format) {
    case Format::kTable:
      print_answer(problem, a);
      if (failing) print_failures(*failing);
      return;
    case Format::kJson: {
      Json out = planner::answer_json(problem, a);
      if (failing) out["failures"] = failures_json(*failing);
      print_json(out);
      return;
    }
    case Format::kCsv:
      fmt::print("{}", planner::answer_csv(a));
      return;
    case Format::kMarkdown:
      fmt::print("{}", planner::answer_markdown(problem, a));
      return;
  }
}

// Before anything is searched.
void require_file(const char* option, const std::string& file) {
  if (file == "-") Cursor{"command line", option}.fail("standard output has the answer", "allowed: a file");
  require_writable(option, file);
}

void execute(App& app, PlanAsked o) {
  if (!o.format) o.format = app.json ? Format::kJson : Format::kTable;
  const bool failures = o.failures || o.spot;
  if (app.json && o.format != Format::kJson) {
    Cursor{"command line", "/format"}.fail(fmt::format("{} is not what --json asks for", name_of(*o.format)),
                                           "allowed: json, or without --json");
  }
  if (failures && (o.format == Format::kCsv || o.format == Format::kMarkdown)) {
    Cursor{"command line", "/format"}.fail(fmt::format("{} has no place for failures", name_of(*o.format)),
                                           "allowed: table, json");
  }
  if (o.most_nodes) o.scenario.nodes = o.most_nodes;
  if (o.goal) o.scenario.set.push_back(fmt::format("goal={}", name_of(*o.goal)));
  if (o.risk) o.scenario.set.push_back(fmt::format("search.risk={}", *o.risk));
  const AskedScenario scenario = asked_scenario(o.scenario);
  if (o.scenario.clusters.size() > 1) {
    const Cursor at{"command line", "/cluster"};
    if (!o.output.empty() || !o.save_scenario.empty())
      at.fail("one plan or scenario is written, and several clusters have one each", "allowed: one cluster");
    if (failures) at.fail("failures are simulated on one cluster", "allowed: one cluster");
    if (o.most_nodes)
      at.fail("numbers of nodes are tabulated of one cluster", "allowed: one cluster, or --nodes");
    require_file("/report", o.report);
    return compare_clusters(app, o, scenario);
  }
  Problem problem = problem_of(o, scenario, app.data);
  for (const std::string& note : ignored_limits(problem.scenario)) fmt::print(stderr, "note: {}\n", note);
  require_file("/output", o.output);
  require_file("/save-scenario", o.save_scenario);
  require_file("/report", o.report);
  if (failures) require_run(problem);
  const planner::Answer a = answer_to(problem, o, "searching");
  if (!o.save_scenario.empty()) save_json(o.save_scenario, as_file(scenario));
  problem.cluster.nodes = problem.scenario.cluster.nodes = a.nodes;
  std::optional<PlansWithFailures> failing;
  if (failures && !a.plans.empty())
    failing =
        with_failures(problem, a, o.spot ? std::optional(Payment::kSpot) : std::nullopt, threads_of(o), app);
  const bool answered = !a.plans.empty() && (failing ? failing->unmet.empty() : a.unmet.empty());
  if (!o.output.empty() && answered) save_best(problem, a, failing, o.output);
  if (!o.report.empty()) save_text(o.report, planner::report_page(problem, a, app.command));
  print(problem, a, failing, *o.format);
  if (!answered) app.exit = ExitCode::kNoPlanFits;
}

}  // namespace

Problem problem_of(const PlanAsked& o, const AskedScenario& scenario, const DataFolders& data) {
  Problem problem = load_asked(o.scenario, scenario, data);
  check_goal(problem, problem.at);
  return problem;
}

planner::Answer answer_to(const Problem& problem, const PlanAsked& o, const char* doing) {
  Progress progress(doing);
  planner::PlanOptions options;
  options.top = o.top;
  options.threads = threads_of(o);
  options.sizes = o.most_nodes.has_value();
  options.progress = [&](double share) { progress(share); };
  return planner::plan(problem, options);
}

void add_plan(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "plan", "the best plans for a scenario, why, and what did not fit");
  auto o = std::make_shared<PlanAsked>();
  add_scenario_options(*command, o->scenario, true);
  command
      ->add_option("--max-nodes", o->most_nodes,
                   "as --nodes, and a table of what each number of nodes up to it would take and cost")
      ->check(CLI::Range(1, static_cast<int>(limits::kMostNodes)))
      ->excludes("--nodes");
  command->add_option("--top", o->top, "plans shown")->check(CLI::Range(1, 1000))->capture_default_str();
  add_choice<Goal>(*command, "--goal", o->goal, "in place of the scenario's");
  command
      ->add_option("--risk", o->risk,
                   "probability that the plan takes longer than the time it is ranked by, or does not fit; "
                   "1: rank by the predicted time; in place of the scenario's")
      ->check(CLI::Range(0.01, 1.0));
  command->add_option("--threads", o->threads, "search threads; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag(
      "--failures", o->failures,
      "rank the best plans by what their runs take and cost with failures, checkpoints and restarts");
  command->add_flag("--spot", o->spot, "the same, paid by the price of spot nodes, with their interruptions");
  command->add_option("-o,--output", o->output, "write the best plan, with its scenario");
  add_choice<Format>(*command, "--format", o->format,
                     "of what is printed; table unless it is said otherwise");
  command->add_option("--report", o->report,
                      "write a page of HTML with tables, charts, assumptions and sources");
  command->add_option("--save-scenario", o->save_scenario, "write the scenario that the options stand for");
  command->callback([&app, o] { execute(app, *o); });
}

Chosen load_plan_or_scenario(const std::string& file, const App& app) {
  const Json json = load_json(file);
  const Cursor at{file, ""};
  if (json.is_object() && json.contains("predicted")) {
    PlanFile f = read_fields<PlanFile>(json, at);
    const Cursor scenario = at.child("scenario");
    Chosen c{resolve(f.scenario, scenario, app.data), f.plan, scenario};
    program::check_plan(c.problem.scenario.model, c.plan, c.problem.scenario.training, at.child("plan"));
    check_stack(c.problem, c.plan, scenario, at.child("plan"));
    check_ranks(c.plan, c.problem.cluster, at.child("plan"));
    return c;
  }
  Chosen c{resolve(read_scenario(json, at), at, app.data), {}, at};
  if (c.problem.scenario.plan) {
    c.plan = *c.problem.scenario.plan;
    program::check_plan(c.problem.scenario.model, c.plan, c.problem.scenario.training, at.child("plan"));
    check_ranks(c.plan, c.problem.cluster, at.child("plan"));
    return c;
  }
  const sim::Topology topology(c.problem.cluster);
  const auto found = planner::search(
      c.problem, topology,
      {.keep = 1, .threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))});
  if (found.best.empty())
    at.fail("there is nothing to simulate or run: " + planner::why_none(c.problem, found));
  c.plan = found.best.front().plan;
  return c;
}

}  // namespace orrery::cli
