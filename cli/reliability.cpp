// SPDX-License-Identifier: Apache-2.0
//
// orrery reliability: what a run really takes, from failures to dollars, as distributions.
#include "cli/reliability.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>

#include "cli/progress.h"
#include "planner/evaluate.h"
#include "planner/shrink.h"

namespace orrery::cli {
namespace {

struct Asked {
  std::vector<std::string> files;
  std::string rates, deadline;
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

std::int64_t steps_of(const Operated& q) {
  const Scenario& s = q.problem.scenario;
  if (s.reliability && s.reliability->steps) return *s.reliability->steps;
  if (s.training.tokens <= 0)
    q.at.child("training")
        .child("tokens")
        .fail("is missing or zero, and the time of a run needs it",
              "allowed: more than zero, like 300e9; or reliability/steps");
  const double steps = std::ceil(s.training.tokens / s.training.tokens_per_step());
  constexpr double kMostSteps = 1e12;
  if (steps > kMostSteps)
    q.at.child("training")
        .child("tokens")
        .fail(fmt::format("{:.3g} tokens are {:.3g} steps", s.training.tokens, steps),
              fmt::format("allowed: {:.0e} steps", kMostSteps));
  return static_cast<std::int64_t>(steps);
}

// Fields that do not fit each other. Each alone is in its range.
void check_together(const Operated& q) {
  const ReliabilityAssumptions& a = q.operation.assumed;
  const sim::Job& job = q.operation.job;
  const Cursor at = q.at.child("reliability");
  const Stragglers& s = a.stragglers;
  if (s.slow_low && s.slow_high && *s.slow_low > *s.slow_high)
    at.child("stragglers")
        .child("slow_low")
        .fail(fmt::format("{} is more than slow_high, {}", *s.slow_low, *s.slow_high),
              fmt::format("allowed: 1 to {}", *s.slow_high));
  const auto needs = [&](bool there, const char* group, const char* field, const char* payment,
                         const char* example) {
    if (!there)
      at.child(group).child(field).fail(
          fmt::format("is missing or zero, and the payment \"{}\" needs it", payment),
          fmt::format("allowed: more than zero, like {}", example));
  };
  const auto priced = [](const std::optional<Dollars>& d) { return d && d->value > 0; };
  switch (a.prices.payment.value_or(Payment::kOnDemand)) {
    case Payment::kOnDemand:
      break;
    case Payment::kReserved:
      needs(priced(a.prices.reserved_node_hour), "prices", "reserved_node_hour", "reserved", "\"$12.00\"");
      break;
    case Payment::kSpot:
      needs(priced(a.prices.spot_node_hour), "prices", "spot_node_hour", "spot", "\"$9.80\"");
      needs(a.preemption.per_node_day.has_value(), "preemption", "per_node_day", "spot", "0.5");
      break;
  }
  if (a.checkpoint.kind == CheckpointKind::kMemory && a.checkpoint.replicas.value_or(1) > job.nodes)
    at.child("checkpoint")
        .child("replicas")
        .fail(fmt::format("{} nodes of a job of {} hold each part", *a.checkpoint.replicas, job.nodes),
              fmt::format("allowed: 1 to {}", job.nodes));
  if (!a.spares.fewest_replicas) return;
  const Cursor fewest = at.child("spares").child("fewest_replicas");
  if (!a.spares.nodes && a.prices.payment != Payment::kSpot && !a.preemption.per_node_day)
    fewest.fail("the cluster always has a free node, so the job never shrinks",
                "allowed: with spares/nodes or preemption/per_node_day");
  if (*a.spares.fewest_replicas > job.replicas)
    fewest.fail(
        fmt::format("{} replicas are more than the job's {}", *a.spares.fewest_replicas, job.replicas),
        fmt::format("allowed: 1 to {}", job.replicas));
  if (job.nodes % job.replicas != 0 && job.replicas % job.nodes != 0)
    fewest.fail(fmt::format("{} replicas lie across {} nodes, so that one node has parts of several",
                            job.replicas, job.nodes),
                "allowed: plans whose replicas have whole nodes, or whose nodes have whole replicas");
}

// By how much steps are longer without replicas: as stated, or as planned.
void set_shrunk(Operated& q, const sim::Topology& topology) {
  const Spares& spares = q.operation.assumed.spares;
  sim::Job& job = q.operation.job;
  if (!spares.fewest_replicas) return;
  const std::int64_t most = job.replicas - *spares.fewest_replicas;
  const Cursor at = q.at.child("reliability").child("spares").child("shrunk");
  std::vector<double> by_replica{1};
  if (spares.shrunk) {
    if (static_cast<std::int64_t>(spares.shrunk->size()) != most)
      at.fail(fmt::format("{} factors for {} replicas that may be lost", spares.shrunk->size(), most),
              fmt::format("allowed: {}", most));
    by_replica.insert(by_replica.end(), spares.shrunk->begin(), spares.shrunk->end());
  } else {
    if (!q.plan)
      at.fail("is missing, and without a plan the planner has no answer",
              fmt::format("allowed: {} factors", most));
    by_replica = planner::shrunk_steps(q.problem, topology, *q.plan, most);
  }
  job.shrunk.clear();
  for (std::size_t lost = 0; lost < by_replica.size();
       lost += static_cast<std::size_t>(job.replicas_of_a_node()))
    job.shrunk.push_back(by_replica[lost]);
}

// What is assumed of the problem's plan, and the job that it is, but for its step.
void assume(Operated& q, const std::string& rates, const App& app) {
  const Scenario& s = q.problem.scenario;
  const Cluster& c = q.problem.cluster;
  q.assumed = load_assumptions(s.reliability, rates, q.at, app.data);
  q.operation.assumed = q.assumed.values;
  sim::Job& job = q.operation.job;
  job.devices_per_node = c.devices_per_node;
  job.ranks = q.plan ? q.plan->ranks() : c.devices();
  job.nodes = (job.ranks + c.devices_per_node - 1) / c.devices_per_node;
  job.replicas = q.plan ? q.plan->dp : 1;
  job.tokens_per_step = s.training.tokens_per_step();
  job.steps = steps_of(q);
  const BytesPerParameter recipe = bytes_per_parameter(s.training.precision);
  job.checkpoint_bytes = static_cast<double>(count_parameters(s.model)) *
                         static_cast<double>(recipe.parameter + recipe.optimizer());
  job.node_bandwidth = static_cast<double>(std::max<std::int64_t>(c.nic_bandwidth.value, 1'000'000'000));
  q.operation.prices = {.on_demand_node_hour = c.dollars_per_hour(job.nodes) / static_cast<double>(job.nodes),
                        .storage_gb_month = dollars(s.storage_per_gb_month),
                        .device = q.problem.devices.front().name};
}

// The step as the estimate or the engine predicts it, which is not sure of it.
void take_step(Operated& q, double step_s, const char* by, std::int64_t seed) {
  q.operation.job.step_s = step_s;
  q.step_source = fmt::format("predicted by the {}", by);
  q.operation.step = {q.problem.measured.low, q.problem.measured.high, static_cast<std::uint64_t>(seed)};
}

Operated load(const std::string& file, const Asked& o, const App& app, Progress& progress) {
  Operated q;
  if (std::optional<Problem> problem = stated(file, app)) {
    q.problem = std::move(*problem);
    q.at = q.problem.at;
  } else {
    Chosen chosen = load_plan_or_scenario(file, app);
    q.problem = std::move(chosen.problem);
    q.plan = std::move(chosen.plan);
    q.at = chosen.scenario;
  }
  assume(q, o.rates, app);
  check_together(q);
  const sim::Topology topology(q.problem.cluster);
  if (const auto& given = q.problem.scenario.reliability; given && given->step_time) {
    q.operation.job.step_s = given->step_time->value;
    q.step_source = "as the scenario says";
  } else {
    progress("simulating a step", 0);
    take_step(q, planner::evaluate(q.problem, topology, *q.plan).predicted.step_time_s, "engine", o.seed);
  }
  set_shrunk(q, topology);
  return q;
}

// Runs that do not end are the scenario's fault.
template <class Work>
auto blaming(const Operated& q, const Work& work) {
  try {
    return work();
  } catch (const InputError&) {
    throw;
  } catch (const Error& e) {
    q.at.child("reliability")
        .fail(e.what(), "allowed: rarer failures, shorter restarts, fewer steps or fewer runs");
  }
}

void require_end(const Operated& q) {
  const sim::JobModel model = sim::model_of(q.operation.assumed, q.operation.job);
  const double expected = model.expected_run_s();
  if (!(expected < limits::kLongestRun))
    throw Error(
        fmt::format("a stop every {}, a restart of {} and a checkpoint every {} leave a run of {} no end: {}",
                    format(RunTime{model.mtbf_s}), format(RunTime{model.restart_hardware_s}),
                    format(RunTime{model.interval_s}), format(RunTime{seconds(model.run.work)}),
                    std::isfinite(expected) ? format(RunTime{expected}) + " are expected"
                                            : std::string("it loses its work faster than it gets on")));
}

// The scenario's own payment, and the others whose prices it gives.
std::vector<Payment> payments(const Operated& q) {
  const ReliabilityAssumptions& a = q.operation.assumed;
  std::vector<Payment> out{a.prices.payment.value_or(Payment::kOnDemand)};
  const auto add = [&](Payment p, bool possible) {
    if (possible && std::find(out.begin(), out.end(), p) == out.end()) out.push_back(p);
  };
  add(Payment::kOnDemand, q.operation.prices.on_demand_node_hour > 0);
  add(Payment::kReserved, a.prices.reserved_node_hour && a.prices.reserved_node_hour->value > 0);
  add(Payment::kSpot,
      a.prices.spot_node_hour && a.prices.spot_node_hour->value > 0 && a.preemption.per_node_day);
  return out;
}

double deadline_days(const Asked& o, const std::vector<Operated>& questions) {
  if (o.deadline.empty()) return questions.front().problem.scenario.deadline.value / sim::kSecondsPerDay;
  const auto given = parse_run_time(o.deadline);
  if (!given || given->value <= 0 || given->value > limits::kLongestRun)
    Cursor{"command line", "/deadline"}.fail(shown(Json(o.deadline)) + " is not a time of a run",
                                             "allowed: text like \"60 days\", up to 9999 days");
  return given->value / sim::kSecondsPerDay;
}

void execute(const App& app, const Asked& o) {
  if (is_life(o.files.front())) return compare_lives(app, o.files);
  constexpr std::size_t kMostScenarios = 16;
  if (o.files.size() > kMostScenarios)
    Cursor{"command line", "/scenario"}.fail(fmt::format("{} scenarios are compared", o.files.size()),
                                             fmt::format("allowed: 1 to {}", kMostScenarios));
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
    for (const Payment payment : payments(q)) {
      sim::Operation operation = q.operation;
      operation.assumed.prices.payment = payment;
      Operated paid = q;
      paid.operation = operation;
      r.ways.push_back({i, payment, answered(paid, runs)});
    }
  }
  if (!o.no_advice) {
    (*progress)("trying changes", 0);
    const sim::RunOptions fewer{runs.seed, o.advice_runs, threads};
    const sim::Operation& operation = r.questions.front().operation;
    r.advised = blaming(r.questions.front(), [&] {
      return Advised{sim::best_interval(operation, fewer), sim::spares_to_buy(operation, fewer),
                     sim::worth_of_an_hour(operation, fewer), sim::sensitivities(operation, fewer)};
    });
  }
  progress.reset();
  if (app.json)
    print_json(reliability_json(r));
  else
    print_reliability(r);
}

}  // namespace

Operated operate(const Problem& problem, const Plan& plan, double step_s, const char* by,
                 std::optional<Payment> payment, const App& app) {
  Operated q;
  q.problem = problem;
  q.plan = plan;
  q.at = problem.at;
  assume(q, "", app);
  if (payment) q.operation.assumed.prices.payment = payment;
  check_together(q);
  take_step(q, step_s, by, 1);
  set_shrunk(q, sim::Topology(problem.cluster));
  return q;
}

sim::Answered answered(const Operated& q, const sim::RunOptions& runs) {
  return blaming(q, [&] {
    require_end(q);
    return sim::answer(q.operation, runs);
  });
}

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
  auto o = std::make_shared<Asked>();
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
