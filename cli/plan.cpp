// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <limits>
#include <thread>
#include <tuple>

#include "cli/commands.h"
#include "cli/names.h"
#include "cli/plan_failures.h"
#include "cli/progress.h"
#include "cli/scenario_options.h"
#include "core/text.h"
#include "planner/loading.h"
#include "planner/plan.h"

namespace orrery::cli {
namespace {

struct PlanAsked {
  ScenarioAsked scenario;
  std::optional<std::int64_t> most_nodes;
  std::string output, save_scenario;
  std::optional<Goal> goal;
  std::optional<double> risk;
  std::size_t top = 5;
  int threads = 0;
  bool failures = false, spot = false;
};

Json ranked_json(const planner::Ranked& r) {
  Json j = write_fields(r.plan);
  j["name"] = short_name(r.plan);
  if (!r.note.empty()) j["note"] = r.note;
  j["global_batch"] = r.plan.global_batch();
  j["estimate"] = {{"step_time_s", seconds(r.estimate.step)}, {"peak_bytes", r.estimate.peak.value}};
  j["predicted"] = write_fields(r.predicted);
  j["pessimistic_s"] = r.risky() ? Json() : Json(r.pessimistic_s);
  return j;
}

Json to_json(const Problem& problem, const planner::Answer& a) {
  const auto& c = a.search.counts;
  Json out = {{"schema", "orrery.answer/1"},
              {"scenario", problem.scenario.name},
              {"device", problem.device_names()},
              {"cluster", problem.cluster.name}};
  out["search"] = {{"considered", c.considered}, {"invalid", c.invalid}, {"too_large", c.too_large},
                   {"bounded", c.bounded},       {"costed", c.costed},   {"simulated", a.simulated.size()},
                   {"feasible", c.feasible},     {"seconds", c.seconds}, {"largest_gap", a.largest_gap}};
  out["not_run_by_stack"] = stack_limits(problem.stack, problem.scenario.model, problem.scenario.training);
  out["capacity_bytes"] = a.search.capacity.value;
  out["nodes"] = a.nodes;
  out["unmet"] = a.unmet;
  out["trade_off"] = a.trade_off;
  out["sizes"] = Json::array();
  for (const auto& z : a.sizes)
    out["sizes"].push_back({{"nodes", z.nodes},
                            {"plan", short_name(z.plan)},
                            {"step_time_s", z.step_time_s},
                            {"days", z.days},
                            {"cost_usd", z.cost_usd}});
  for (const char* list : {"plans", "choices", "alongside", "rejected", "sensitivity", "pareto"})
    out[list] = Json::array();
  for (const auto& r : a.plans) out["plans"].push_back(ranked_json(r));
  for (const planner::Choice& choice : a.choices) {
    Json j = ranked_json(choice.plan);
    for (const planner::Reason reason : choice.reasons) j["reasons"].push_back(name_of(reason));
    out["choices"].push_back(std::move(j));
  }
  for (const auto& r : a.alongside) out["alongside"].push_back(ranked_json(r));
  for (const auto& r : a.rejected)
    out["rejected"].push_back(
        {{"name", short_name(r.plan)}, {"reason", r.reason}, {"step_time_s", r.step_time_s}});
  for (const auto& s : a.sensitivity) {
    out["sensitivity"].push_back({{"change", s.change},
                                  {"step_time_s", s.step_time_s},
                                  {"speedup", s.speedup},
                                  {"plan", short_name(s.plan)}});
  }
  for (const Plan& p : a.pareto) out["pareto"].push_back(short_name(p));
  out["why"] = a.why;
  if (!a.plans.empty() && a.plans[0].predicted.loading)
    out["loading"] = planner::loading_json(problem, a.plans[0].plan, *a.plans[0].predicted.loading);
  if (const auto advice = planner::learning_rate_advice(problem))
    out["advice"] = {{"learning_rate", advice->learning_rate}, {"warm_up_steps", advice->warm_up_steps}};
  return out;
}

double gib(std::int64_t b) {
  return static_cast<double>(b) / kGiB;
}

void print_row(const std::string& mark, const planner::Ranked& r, std::size_t width) {
  const Predicted& p = r.predicted;
  const std::string days = p.days > 0 ? fmt::format("{:.2f}", p.days) : "-";
  const std::string cost = p.cost_usd > 0 ? fmt::format("{:.0f}", p.cost_usd) : "-";
  fmt::print("{:>3} {:<{}} {:>9.3f} {:>10.0f} {:>5.1f} {:>5.1f} {:>8.1f} {:>5.0f} {:>8} {:>10}\n", mark,
             short_name(r.plan), width, p.step_time_s, p.tokens_per_s, 100 * p.mfu, 100 * p.hfu,
             gib(p.peak_memory_bytes), 100 * p.fits_probability, days, cost);
}

void print_header(std::size_t width) {
  fmt::print("{:>3} {:<{}} {:>9} {:>10} {:>5} {:>5} {:>8} {:>5} {:>8} {:>10}\n", "", "plan", width, "step s",
             "tokens/s", "MFU%", "HFU%", "GiB", "fits%", "days", "USD");
}

// "^ safest (fits with 100 %) and smallest (46.1 GiB), +2.3 % time against the best".
void print_choices(const planner::Answer& a, std::size_t width) {
  for (const planner::Choice& c : a.choices) {
    const Predicted& p = c.plan.predicted;
    print_row("", c.plan, width);
    std::vector<std::string> why;
    for (const planner::Reason reason : c.reasons) {
      switch (reason) {
        case planner::Reason::kSafest:
          why.push_back(fmt::format("safest (fits with {:.0f} %)", 100 * p.fits_probability));
          break;
        case planner::Reason::kSmallest:
          why.push_back(fmt::format("smallest ({:.1f} GiB)", gib(p.peak_memory_bytes)));
          break;
        case planner::Reason::kSimplest:
          why.emplace_back("simplest");
          break;
      }
    }
    fmt::print("      ^ {}, {:+.1f} % time against the best\n", fmt::join(why, " and "),
               100 * (p.step_time_s / a.plans[0].predicted.step_time_s - 1));
  }
}

void print_memory(const Predicted& p) {
  fmt::print("\nmemory by stage, GiB{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "param", "grad",
             "optim", "activ", "work", "comm", "overhead", "total");
  for (const StageMemory& m : p.memory) {
    fmt::print("  stage {:<12}{:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n",
               m.stage, gib(m.parameter), gib(m.gradient), gib(m.optimizer), gib(m.activation),
               gib(m.workspace), gib(m.communication), gib(m.overhead), gib(m.total));
    if (m.host > 0) fmt::print("    and in its host's memory {:.2f} of each device\n", gib(m.host));
    if (m.drives > 0) fmt::print("    and on its host's drives {:.2f} of each device\n", gib(m.drives));
  }
}

void print_breakdown(const Predicted& p) {
  const Breakdown& b = p.breakdown;
  std::vector<std::pair<const char*, double>> parts{{"forward", b.forward_s},
                                                    {"backward", b.backward_s},
                                                    {"recompute", b.recompute_s},
                                                    {"optimizer", b.optimizer_s}};
  for (std::size_t i = 0; i < kWaitedAxes.size(); ++i) {
    if (kWaitedAxes[i].of != WaitedAxis::Of::kHost || b.exposed_s[i] > 0)
      parts.emplace_back(kWaitedAxes[i].label, b.exposed_s[i]);
  }
  parts.emplace_back("host", b.host_s);
  if (p.loading) parts.emplace_back("loading", b.loading_s);
  if (p.islands) parts.emplace_back("islands", b.islands_s);
  fmt::print("\nstep of the busiest stage\n");
  for (const auto& [name, value] : parts) {
    const double share = value / p.step_time_s;
    fmt::print("  {:<12} {:>10} {:>6.1f} % {}\n", name, format(from_seconds(value)), 100 * share,
               std::string(static_cast<std::size_t>(share * 50 + 0.5), '='));
  }
}

// At most so many, evenly chosen, the first and the last among them.
void print_sizes(const planner::Answer& a) {
  if (a.sizes.empty()) return;
  constexpr std::size_t kShown = 12;
  const std::size_t shown = std::min(a.sizes.size(), kShown);
  const std::size_t width = width_of_names(a.sizes);
  fmt::print("\nfastest plan by number of nodes, estimated\n{:>7} {:<{}} {:>9} {:>8} {:>10}\n", "nodes",
             "plan", width, "step s", "days", "USD");
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& z = a.sizes[shown == 1 ? 0 : i * (a.sizes.size() - 1) / (shown - 1)];
    fmt::print("{:>7} {:<{}} {:>9.3f} {:>8} {:>10}\n", z.nodes, short_name(z.plan), width, z.step_time_s,
               z.days > 0 ? fmt::format("{:.2f}", z.days) : "-",
               z.cost_usd > 0 ? fmt::format("{:.0f}", z.cost_usd) : "-");
  }
}

void print_text(const Problem& problem, const planner::Answer& a) {
  const auto& c = a.search.counts;
  const Scenario& s = problem.scenario;
  fmt::print("{}: {} on {} x {} ({}), batch {} x {} tokens, stack {}\n",
             printable(s.name.empty() ? s.model.name : s.name), printable(s.model.name),
             problem.cluster.nodes, printable(problem.cluster.name), printable(problem.counted_devices()),
             s.training.global_batch, s.training.sequence, printable(problem.stack.name));
  if (s.training.adapter) fmt::print("{}\n", planner::words_of_adapter(s));
  if (const auto limits = stack_limits(problem.stack, s.model, s.training); !limits.empty())
    fmt::print("not searched: {} has {}\n", printable(problem.stack.name), fmt::join(limits, "; "));
  fmt::print(
      "{} combinations: {} no plans, {} proved slower or too large, {} costed; of those {} too large, {} "
      "fit; {} "
      "simulated "
      "(estimate within {:.2f} %)\n\n",
      c.considered, c.invalid, c.bounded, c.costed, c.too_large, c.feasible, a.simulated.size(),
      100 * a.largest_gap);
  if (a.plans.empty()) fmt::print("{}\n", planner::why_none(problem, a.search));
  if (!a.unmet.empty()) fmt::print("{}\n\n", a.unmet);
  if (!a.trade_off.empty()) fmt::print("not only the cheapest: {}\n\n", a.trade_off);
  std::size_t width = width_of_names(a.alongside, width_of_names(a.plans));
  for (const planner::Choice& choice : a.choices)
    width = std::max(width, short_name(choice.plan.plan).size());
  print_header(width);
  for (std::size_t i = 0; i < a.plans.size(); ++i) print_row(std::to_string(i + 1), a.plans[i], width);
  if (!a.plans.empty()) {
    const Predicted& best = a.plans[0].predicted;
    fmt::print("      how sure: {}: {:.3g} to {:.3g} s\n", words_of(problem.measured), best.step_time_low_s,
               best.step_time_high_s);
  }
  print_choices(a, width);
  for (const auto& r : a.alongside) {
    print_row("", r, width);
    const bool fits = r.fits();
    const std::string against =
        a.plans.empty() ? ""
                        : fmt::format(", {:+.1f} % time against the best",
                                      100 * (r.predicted.step_time_s / a.plans[0].predicted.step_time_s - 1));
    fmt::print("      ^ {}{}{}\n", r.note,
               fits ? ""
                    : fmt::format(", does not fit: needs {:.1f} GiB, has {}",
                                  gib(r.predicted.peak_memory_bytes), format(r.capacity)),
               against);
  }
  if (!a.plans.empty()) {
    print_memory(a.plans[0].predicted);
    if (const auto& layers = a.plans[0].plan.chunk_layers; !layers.empty())
      fmt::print("  layers of each chunk: {}\n", fmt::join(layers, " "));
    if (const auto& layers = a.plans[0].plan.recompute_by_chunk; !layers.empty())
      fmt::print("  recomputed layers of each chunk: {}\n", fmt::join(layers, " "));
    print_breakdown(a.plans[0].predicted);
    if (const auto& loading = a.plans[0].predicted.loading) {
      fmt::print("\n");
      for (const std::string& line : planner::loading_lines(problem, a.plans[0].plan, *loading))
        fmt::print("{}\n", line);
    }
    fmt::print("\nwhy\n");
    for (const std::string& w : a.why) fmt::print("  {}\n", w);
  }
  print_sizes(a);
  if (!a.rejected.empty()) fmt::print("\nrejected\n");
  const std::size_t of_rejected = width_of_names(a.rejected);
  for (const auto& r : a.rejected) fmt::print("  {:<{}} {}\n", short_name(r.plan), of_rejected, r.reason);
  if (!a.sensitivity.empty()) fmt::print("\nwhat would help\n");
  for (const auto& x : a.sensitivity)
    fmt::print("  {:<22} {:>6.2f}x  {}\n", x.change, x.speedup, short_name(x.plan));
  if (const auto advice = planner::learning_rate_advice(problem)) {
    fmt::print("\nlearning rate {:.1e} after {} warm-up steps (GPT-3's table, square root of the batch)\n",
               advice->learning_rate, advice->warm_up_steps);
  }
  if (s.storage_per_gb_month.value > 0) {
    const double gb = restart_bytes(s.model, s.training) / 1e9;
    fmt::print("a checkpoint that can restart (no gradients): {:.0f} GB, ${:.2f} a month each\n", gb,
               gb * dollars(s.storage_per_gb_month));
  }
}

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

// The scenario on a cluster, under the options that are about answers.
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

// --- several clusters --------------------------------------------------------------------------------

struct OnCluster {
  std::string asked;
  std::string refused;  // why nothing was planned there; empty: it was
  Problem problem;
  planner::Answer answer;
  bool has_plan() const { return !answer.plans.empty(); }
  bool answered() const { return has_plan() && answer.unmet.empty(); }
  const planner::Ranked& best() const { return answer.plans.front(); }
  // Why there is no plan, or which limit the plan does not keep to.
  std::string lacks() const {
    if (!refused.empty()) return refused;
    return has_plan() ? answer.unmet : planner::why_none(problem, answer.search);
  }
  double dollars_per_hour() const { return problem.cluster.dollars_per_hour(answer.nodes); }
};

// What the goal wants least of.
double wanted_less(const OnCluster& c) {
  const double time = c.best().pessimistic_s;
  switch (c.problem.scenario.goal) {
    case Goal::kCost:
    case Goal::kCostByDeadline:
      return c.dollars_per_hour() > 0 ? c.dollars_per_hour() * time : std::numeric_limits<double>::max();
    case Goal::kSmallest:
      return static_cast<double>(c.problem.cluster.devices());
    case Goal::kTime:
    case Goal::kTimeInBudget:
      break;
  }
  return time;
}

Json to_json(const std::vector<OnCluster>& all) {
  Json out = {{"schema", "orrery.clusters/1"}, {"clusters", Json::array()}};
  for (const OnCluster& c : all) {
    Json j = {{"cluster", c.asked}, {"lacks", c.lacks()}};
    if (c.refused.empty()) {
      j["nodes"] = c.answer.nodes;
      j["devices"] = c.problem.cluster.devices();
      j["device"] = c.problem.device_names();
      j["dollars_per_hour"] = c.dollars_per_hour();
    }
    j["plan"] = c.has_plan() ? ranked_json(c.best()) : Json();
    out["clusters"].push_back(std::move(j));
  }
  return out;
}

// The best plan of each.
void print_clusters(const std::vector<OnCluster>& all) {
  const auto planned =
      std::find_if(all.begin(), all.end(), [](const OnCluster& c) { return c.refused.empty(); });
  const Scenario& s = planned->problem.scenario;
  fmt::print("{}, batch {} x {} tokens, stack {}\n\n", printable(s.name.empty() ? s.model.name : s.name),
             s.training.global_batch, s.training.sequence, printable(planned->problem.stack.name));
  const std::array titles{"cluster", "nodes", "devices", "plan", "step s",
                          "MFU%",    "GiB",   "fits%",   "days", "USD"};
  constexpr std::array kTexts{true, false, false, true, false, false, false, false, false, false};
  std::vector<std::array<std::string, titles.size()>> rows{{}};
  std::copy(titles.begin(), titles.end(), rows[0].begin());
  for (const OnCluster& c : all) {
    auto& row = rows.emplace_back();
    row[0] = printable(c.asked);
    if (!c.refused.empty()) continue;
    row[1] = std::to_string(c.answer.nodes);
    row[2] = std::to_string(c.problem.cluster.devices());
    if (!c.has_plan()) continue;
    const Predicted& p = c.best().predicted;
    const double days = p.days / p.step_time_s;  // of a second of a step
    row[3] = short_name(c.best().plan);
    row[4] = fmt::format("{:.3f}", p.step_time_s);
    row[5] = fmt::format("{:.1f}", 100 * p.mfu);
    row[6] = fmt::format("{:.1f}", gib(p.peak_memory_bytes));
    row[7] = fmt::format("{:.0f}", 100 * p.fits_probability);
    row[8] = p.days > 0 ? fmt::format("{:.1f} ({:.1f} to {:.1f})", p.days, days * p.step_time_low_s,
                                      days * p.step_time_high_s)
                        : "-";
    row[9] = p.cost_usd > 0 ? fmt::format("{:.0f}", p.cost_usd) : "-";
  }
  std::array<std::size_t, titles.size()> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      line += kTexts[i] ? fmt::format("{:<{}}  ", rows[r][i], widths[i])
                        : fmt::format("{:>{}}  ", rows[r][i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
    if (r > 0 && !all[r - 1].lacks().empty()) fmt::print("  {}\n", printable(all[r - 1].lacks()));
  }
  for (const OnCluster& c : all) {
    if (c.has_plan() && c.dollars_per_hour() == 0 && s.training.tokens > 0)
      fmt::print("{} has no price\n", printable(c.asked));
  }
}

// A cluster that cannot do what is asked has a row that says so; one that is not there is a mistake.
void compare_clusters(App& app, const PlanAsked& o, const AskedScenario& scenario) {
  std::vector<OnCluster> all;
  std::optional<InputError> first;
  for (const std::string& name : o.scenario.clusters) {
    OnCluster& c = all.emplace_back(OnCluster{.asked = name});
    try {
      c.problem = problem_of(o, on_cluster(scenario, name), app.data);
    } catch (const InputError& e) {
      if (e.where().starts_with("/cluster/topology")) throw;
      c.refused = e.what();
      if (!first) first = e;
    }
  }
  if (std::all_of(all.begin(), all.end(), [](const OnCluster& c) { return !c.refused.empty(); }))
    throw *first;
  for (OnCluster& c : all) {
    if (!c.refused.empty()) continue;
    const std::string doing = "searching " + printable(c.asked);
    c.answer = answer_to(c.problem, o, doing.c_str());
    c.problem.cluster.nodes = c.problem.scenario.cluster.nodes = c.answer.nodes;
  }
  for (const OnCluster& c : all) {
    if (!c.refused.empty()) continue;
    for (const std::string& note : ignored_limits(c.problem.scenario)) fmt::print(stderr, "note: {}\n", note);
    break;
  }
  const auto order = [](const OnCluster& c) {
    return std::tuple(!c.answered(), c.has_plan() && c.best().risky(), c.answered() ? wanted_less(c) : 0);
  };
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  if (app.json)
    print_json(to_json(all));
  else
    print_clusters(all);
  if (!all.front().answered()) app.exit = ExitCode::kNoPlanFits;
}

void execute(App& app, PlanAsked o) {
  if (o.most_nodes) o.scenario.nodes = o.most_nodes;
  if (o.goal) o.scenario.set.push_back(fmt::format("goal={}", name_of(*o.goal)));
  if (o.risk) o.scenario.set.push_back(fmt::format("search.risk={}", *o.risk));
  const AskedScenario scenario = asked_scenario(o.scenario);
  const bool failures = o.failures || o.spot;
  if (o.scenario.clusters.size() > 1) {
    const Cursor at{"command line", "/cluster"};
    if (!o.output.empty() || !o.save_scenario.empty())
      at.fail("one plan or scenario is written, and several clusters have one each", "allowed: one cluster");
    if (failures) at.fail("failures are simulated on one cluster", "allowed: one cluster");
    if (o.most_nodes)
      at.fail("numbers of nodes are tabulated of one cluster", "allowed: one cluster, or --nodes");
    return compare_clusters(app, o, scenario);
  }
  Problem problem = problem_of(o, scenario, app.data);
  for (const std::string& note : ignored_limits(problem.scenario)) fmt::print(stderr, "note: {}\n", note);
  require_writable("/output", o.output);
  if (o.save_scenario == "-")
    Cursor{"command line", "/save-scenario"}.fail("standard output has the answer",
                                                  "allowed: a file; or orrery new");
  require_writable("/save-scenario", o.save_scenario);
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
  if (app.json) {
    Json out = to_json(problem, a);
    if (failing) out["failures"] = failures_json(*failing);
    print_json(out);
  } else {
    print_text(problem, a);
    if (failing) print_failures(*failing);
  }
  if (!answered) app.exit = ExitCode::kNoPlanFits;
}

}  // namespace

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
