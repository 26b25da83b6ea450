// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "cli/names.h"
#include "core/text.h"

namespace orrery::cli {
namespace {

constexpr std::int64_t kRuns = 1000;    // of each plan
constexpr std::size_t kMostSizes = 12;  // numbers of nodes beside the answer's
constexpr double kNever = std::numeric_limits<double>::infinity();

Problem sized(const Problem& problem, std::int64_t nodes) {
  Problem out = problem;
  out.cluster.nodes = nodes;
  return out;
}

// The answer's plans, then the fastest of other numbers of nodes, evenly chosen.
std::vector<FailingPlan> candidates(const planner::Answer& a) {
  std::vector<FailingPlan> out;
  for (const planner::Ranked& r : a.plans) {
    if (!r.fits()) continue;
    out.push_back(
        {r.plan, a.nodes, true, r.predicted.step_time_s, r.predicted.days, r.predicted.cost_usd, {}});
  }
  const std::size_t n = std::min(a.sizes.size(), kMostSizes);
  for (std::size_t i = 0; i < n; ++i) {
    const planner::Size& z = a.sizes[n == 1 ? 0 : i * (a.sizes.size() - 1) / (n - 1)];
    if (z.nodes != a.nodes && !z.risky)
      out.push_back({z.plan, z.nodes, false, z.step_time_s, z.days, z.cost_usd, {}});
  }
  return out;
}

bool meets(const Scenario& s, const FailingPlan& p) {
  const sim::Summary& of = p.answered.summary;
  switch (s.goal) {
    case Goal::kTime:
    case Goal::kCost:
    case Goal::kSmallest:
      return true;
    case Goal::kCostByDeadline:
      return of.share_within(s.deadline.value / sim::kSecondsPerDay) >= kConfidence;
    case Goal::kTimeInBudget:
      return of.dollars_of_step.p95 <= dollars(s.budget);
  }
  return true;
}

// Smaller is better: whether the goal is missed, then what it asks for.
std::tuple<bool, double> merit(const Scenario& s, const FailingPlan& p) {
  const bool misses = !meets(s, p);
  const sim::Summary& of = p.answered.summary;
  const double cost = p.answered.tariff.node_hour > 0 ? of.dollars.mean : kNever;
  switch (s.goal) {
    case Goal::kTime:
      return {misses, of.days.mean};
    case Goal::kCost:
      return {misses, cost};
    case Goal::kSmallest:
      return {misses, static_cast<double>(p.nodes)};
    case Goal::kCostByDeadline:
      return {misses, misses ? of.days.mean : cost};
    case Goal::kTimeInBudget:
      return {misses, misses ? cost : of.days.mean};
  }
  return {misses, of.days.mean};
}

bool is_as_good(const std::tuple<bool, double>& a, const std::tuple<bool, double>& best) {
  constexpr double kAsGood = 1.005;  // what 1,000 runs tell apart
  return std::get<0>(a) == std::get<0>(best) && std::get<1>(a) <= kAsGood * std::get<1>(best);
}

std::string nodes_text(std::int64_t nodes) {
  return fmt::format("{} {}", nodes, nodes == 1 ? "node" : "nodes");
}

std::string change(const FailingPlan& was, const FailingPlan& is) {
  const auto text = [](const FailingPlan& p) {
    const sim::Summary& s = p.answered.summary;
    return fmt::format("{} on {} takes {:.2f} days and ${:.0f} in the mean", short_name(p.plan),
                       nodes_text(p.nodes), s.days.mean, s.dollars.mean);
  };
  return fmt::format("the best plan is another than without failures: {}; {}", text(is), text(was));
}

std::string missed(const Scenario& s, const FailingPlan& best) {
  if (meets(s, best)) return {};
  if (s.goal == Goal::kTimeInBudget)
    return fmt::format("no plan keeps to the budget of {} in 95 % of runs", format(s.budget));
  return fmt::format("no plan meets the deadline of {} in {:.0f} % of runs", format(s.deadline),
                     100 * kConfidence);
}

Json spread_json(const sim::Spread& s) {
  return {{"mean", s.mean}, {"p5", s.p5}, {"p50", s.p50}, {"p95", s.p95}};
}

}  // namespace

PlansWithFailures with_failures(const Problem& problem, const planner::Answer& answer,
                                std::optional<Payment> payment, int threads, const App& app) {
  PlansWithFailures out;
  out.runs = kRuns;
  out.plans = candidates(answer);
  if (out.plans.empty()) return out;
  for (FailingPlan& p : out.plans) {
    const Problem on = sized(problem, p.nodes);
    Operated q = planner::operate(on, p.plan, on.at, {.payment = payment}, app.data);
    planner::take_predicted_step(q, sim::Topology(on.cluster), p.step_s, p.simulated ? "engine" : "estimate",
                                 1);
    p.answered = planner::answered(q, {.seed = 1, .runs = kRuns, .threads = threads});
    out.payment = name_of(q.operation.assumed.prices.payment.value_or(Payment::kOnDemand));
    out.rates = q.assumed.profile;
  }
  const FailingPlan first = out.plans.front();
  const Scenario& s = problem.scenario;
  std::stable_sort(out.plans.begin(), out.plans.end(),
                   [&](const FailingPlan& a, const FailingPlan& b) { return merit(s, a) < merit(s, b); });
  // One that is as good stays the best.
  const auto stays = std::find_if(out.plans.begin(), out.plans.end(), [&](const FailingPlan& p) {
    return p.plan == first.plan && p.nodes == first.nodes;
  });
  if (is_as_good(merit(s, *stays), merit(s, out.plans.front())))
    std::rotate(out.plans.begin(), stays, stays + 1);
  else
    out.changed = change(first, out.plans.front());
  out.unmet = missed(s, out.plans.front());
  return out;
}

Json failures_json(const PlansWithFailures& p) {
  Json out = {{"payment", p.payment}, {"rates", p.rates},     {"runs", p.runs},
              {"unmet", p.unmet},     {"changed", p.changed}, {"plans", Json::array()}};
  for (const FailingPlan& f : p.plans) {
    const sim::Summary& s = f.answered.summary;
    const bool priced = f.answered.tariff.node_hour > 0;
    out["plans"].push_back({{"plan", write_fields(f.plan)},
                            {"name", short_name(f.plan)},
                            {"nodes", f.nodes},
                            {"step_s", f.step_s},
                            {"simulated", f.simulated},
                            {"days_without_failures", f.quiet_days},
                            {"days", spread_json(s.days)},
                            {"days_of_step", spread_json(s.days_of_step)},
                            {"ettr", spread_json(s.ettr)},
                            {"cost_usd", priced ? spread_json(s.dollars) : Json()},
                            {"cost_usd_of_step", priced ? spread_json(s.dollars_of_step) : Json()}});
  }
  return out;
}

void print_failures(const PlansWithFailures& p) {
  if (p.plans.empty()) return;
  const std::size_t width = width_of_names(p.plans);
  fmt::print(
      "\nwith failures, checkpoints and restarts: {}, rates {}, {} simulated runs of each plan\n{:>3} {:<{}} "
      "{:>6} {:>7} {:>8} {:>8} {:>8} {:>6} {:>10} {:>10}\n",
      p.payment, printable(p.rates), p.runs, "", "plan", width, "nodes", "quiet", "days p5", "p50", "p95",
      "ETTR%", "USD mean", "p95");
  for (std::size_t i = 0; i < p.plans.size(); ++i) {
    const FailingPlan& f = p.plans[i];
    const sim::Summary& s = f.answered.summary;
    const auto usd = [&](double v) {
      return f.answered.tariff.node_hour > 0 ? fmt::format("{:.0f}", v) : std::string("-");
    };
    fmt::print("{:>3} {:<{}} {:>6} {:>7.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>6.1f} {:>10} {:>10}\n", i + 1,
               short_name(f.plan), width, f.nodes, f.quiet_days, s.days.p5, s.days.p50, s.days.p95,
               100 * s.ettr.mean, usd(s.dollars.mean), usd(s.dollars.p95));
  }
  fmt::print("  quiet: days without failures\n");
  for (const std::string& text : {p.unmet, p.changed}) {
    if (!text.empty()) fmt::print("  {}\n", text);
  }
  fmt::print(
      "  `orrery reliability` of the plan says where the time goes, what is assumed and what would help\n");
}

}  // namespace orrery::cli
