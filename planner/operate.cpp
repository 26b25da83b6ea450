// SPDX-License-Identifier: Apache-2.0
#include "planner/operate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <system_error>

#include "core/error.h"
#include "planner/shrink.h"
#include "program/state/units.h"
#include "sim/topology/survey.h"

namespace orrery::planner {
namespace {

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
      needs(priced(a.prices.spot_node_hour) || a.prices.spot_prices, "prices", "spot_node_hour", "spot",
            "\"$9.80\", or a file in spot_prices");
      needs(a.preemption.per_node_day.has_value(), "preemption", "per_node_day", "spot", "0.5");
      break;
    case Payment::kOwned:
      needs(priced(a.ownership.node), "ownership", "node", "owned", "\"$300000\"");
      needs(a.energy.kwh.has_value(), "energy", "kwh", "owned", "\"$0.08\"");
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
    by_replica = shrunk_steps(q.problem, topology, *q.plan, most);
  }
  job.shrunk.clear();
  for (std::size_t lost = 0; lost < by_replica.size();
       lost += static_cast<std::size_t>(job.replicas_of_a_node()))
    job.shrunk.push_back(by_replica[lost]);
}

// What is assumed of the problem's plan, and the job that it is, but for its step.
void assume(Operated& q, const std::string& rates, const DataFolders& data) {
  const Scenario& s = q.problem.scenario;
  const Cluster& c = q.problem.cluster;
  q.assumed = load_assumptions(s.reliability, rates, q.at, data);
  q.operation.assumed = q.assumed.values;
  sim::Job& job = q.operation.job;
  job.devices_per_node = c.devices_per_node;
  job.ranks = q.plan ? q.plan->ranks() : c.devices();
  job.nodes = (job.ranks + c.devices_per_node - 1) / c.devices_per_node;
  job.replicas = q.plan ? q.plan->replicas() : 1;
  job.tokens_per_step = s.training.tokens_per_step();
  job.steps = steps_of(q);
  // Of each island, and what islands exchange.
  const std::int64_t islands = q.plan ? q.plan->islands : 1;
  const std::int64_t of_outer = islands > 1 ? program::outer_bytes(s.training) : 0;
  job.checkpoint_bytes = static_cast<double>(islands) *
                         (restart_bytes(s.model, s.training) +
                          static_cast<double>(of_outer * count_trained_parameters(s.model, s.training)));
  job.node_bandwidth = static_cast<double>(std::max<std::int64_t>(c.nic_bandwidth.value, 1'000'000'000));
  q.operation.prices = {.on_demand_node_hour = c.dollars_per_hour(job.nodes) / static_cast<double>(job.nodes),
                        .storage_gb_month = dollars(s.storage_per_gb_month),
                        .device = q.problem.devices.front().name};
  if (const auto& file = q.assumed.values.prices.spot_prices) {
    const auto path = std::filesystem::path(q.at.file).parent_path() / *file;
    if (std::error_code none; !std::filesystem::is_regular_file(path, none))
      q.at.child("reliability")
          .child("prices")
          .child("spot_prices")
          .fail(fmt::format("{} is no file", shown(Json(path.string()))),
                "allowed: a file of prices, from the scenario's folder");
    q.operation.prices.spot_prices =
        std::make_shared<const sim::SpotPrices>(sim::read_spot_prices(load_text(path), path.string()));
  }
  q.operation.prices.port_price = dollars(c.fabric.port_cost);
  if (const Ownership& o = q.assumed.values.ownership; o.node && !o.switch_ports) {
    const double ports = static_cast<double>(sim::switch_ports(sim::Topology(c)));
    q.operation.prices.switch_ports = ports / static_cast<double>(c.nodes);
  }
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

}  // namespace

Operated operate(const Problem& problem, const std::optional<Plan>& plan, const Cursor& at,
                 const OperateOptions& options, const DataFolders& data) {
  Operated q;
  q.problem = problem;
  q.plan = plan;
  q.at = at;
  assume(q, options.rates, data);
  if (options.payment) q.operation.assumed.prices.payment = options.payment;
  check_together(q);
  return q;
}

bool take_stated_step(Operated& q, const sim::Topology& topology) {
  const auto& own = q.problem.scenario.reliability;
  if (!own || !own->step_time) return false;
  q.operation.job.step_s = own->step_time->value;
  q.step_source = "as the scenario says";
  set_shrunk(q, topology);
  return true;
}

void take_predicted_step(Operated& q, const sim::Topology& topology, double step_s, const char* by,
                         std::uint64_t seed) {
  q.operation.job.step_s = step_s;
  q.step_source = fmt::format("predicted by the {}", by);
  q.operation.step = {q.problem.measured.low, q.problem.measured.high, seed};
  set_shrunk(q, topology);
}

std::vector<Payment> payments(const Operated& q) {
  const ReliabilityAssumptions& a = q.operation.assumed;
  std::vector<Payment> out{a.prices.payment.value_or(Payment::kOnDemand)};
  const auto add = [&](Payment p, bool possible) {
    if (possible && std::find(out.begin(), out.end(), p) == out.end()) out.push_back(p);
  };
  add(Payment::kOnDemand, q.operation.prices.on_demand_node_hour > 0);
  add(Payment::kReserved, a.prices.reserved_node_hour && a.prices.reserved_node_hour->value > 0);
  const bool spot_priced = a.prices.spot_node_hour && a.prices.spot_node_hour->value > 0;
  add(Payment::kSpot, (spot_priced || a.prices.spot_prices) && a.preemption.per_node_day);
  add(Payment::kOwned, a.ownership.node && a.ownership.node->value > 0 && a.energy.kwh);
  return out;
}

Operated paid(const Operated& q, Payment payment) {
  Operated out = q;
  out.operation.assumed.prices.payment = payment;
  return out;
}

sim::Answered answered(const Operated& q, const sim::RunOptions& runs) {
  return blaming(q, [&] {
    require_end(q);
    return sim::answer(q.operation, runs);
  });
}

sim::Diary diary_of_median_run(const sim::Answered& a, std::uint64_t seed) {
  constexpr double kShortest = 1e-5;  // of the run
  sim::Diary out(sim::ticks(a.summary.days.p50 * sim::kSecondsPerDay * kShortest));
  sim::simulate_run(a.model.run, seed, static_cast<std::uint64_t>(a.summary.median_run), sim::kMostRunEvents,
                    &out);
  return out;
}

Advised advised(const Operated& q, const sim::RunOptions& runs) {
  return blaming(q, [&] {
    return Advised{sim::best_interval(q.operation, runs), sim::spares_to_buy(q.operation, runs),
                   sim::worth_of_an_hour(q.operation, runs), sim::sensitivities(q.operation, runs)};
  });
}

}  // namespace orrery::planner
