// SPDX-License-Identifier: Apache-2.0
#include "planner/plan.h"

#include <algorithm>
#include <cmath>

namespace orrery::planner {
namespace {

// Plans that differ only in a placement that changes nothing have the same numbers; show one.
std::vector<Candidate> without_twins(const std::vector<Candidate>& all) {
  std::vector<Candidate> out;
  for (const Candidate& c : all) {
    const bool twin = std::any_of(out.begin(), out.end(), [&](const Candidate& o) {
      Plan a = o.plan;
      a.rank_order = c.plan.rank_order;
      return a == c.plan && o.estimate == c.estimate;
    });
    if (!twin) out.push_back(c);
  }
  return out;
}

std::string needs(const Candidate& c, Bytes capacity) {
  return fmt::format("needs {} on stage {}, has {}", format(c.device), c.estimate.fullest_stage,
                     format(capacity));
}

std::string axis_words(const Breakdown& b, double step) {
  const std::pair<const char*, double> parts[] = {{"exposed tensor-parallel communication", b.exposed_tp_s},
                                                  {"exposed data-parallel communication", b.exposed_dp_s},
                                                  {"pipeline bubble and transfers", b.exposed_pp_s},
                                                  {"recomputation", b.recompute_s},
                                                  {"launching ops from the host", b.host_s}};
  const auto* worst = std::max_element(std::begin(parts), std::end(parts),
                                       [](const auto& x, const auto& y) { return x.second < y.second; });
  if (worst->second < 0.05 * step) return "compute-bound: nothing else takes 5 % of the step";
  return fmt::format("after compute, the most time goes to {} ({:.1f} % of the step)", worst->first,
                     100 * worst->second / step);
}

void explain(Answer& a) {
  if (a.plans.empty()) return;
  const Ranked& best = a.plans.front();
  const Breakdown& b = best.predicted.breakdown;
  const double step = best.predicted.step_time_s;
  a.why.push_back(fmt::format("{}: {}", short_name(best.plan), axis_words(b, step)));
  for (const Ranked& other : a.plans) {
    if (other.plan.tp == best.plan.tp && other.plan.pp == best.plan.pp &&
        other.plan.recompute == best.plan.recompute)
      continue;
    const Breakdown& o = other.predicted.breakdown;
    a.why.push_back(fmt::format(
        "{} is {:.1f} % slower: recomputation {:+.1f}, tp {:+.1f}, dp {:+.1f}, pipeline {:+.1f} % of the "
        "step",
        short_name(other.plan), 100 * (other.predicted.step_time_s / step - 1),
        100 * (o.recompute_s - b.recompute_s) / step, 100 * (o.exposed_tp_s - b.exposed_tp_s) / step,
        100 * (o.exposed_dp_s - b.exposed_dp_s) / step, 100 * (o.exposed_pp_s - b.exposed_pp_s) / step));
    break;
  }
  if (!a.rejected.empty()) {
    const Rejected& r = a.rejected.front();
    if (r.step_time_s < step) {
      a.why.push_back(fmt::format("{} would be {:.1f} % faster but {}", short_name(r.plan),
                                  100 * (1 - r.step_time_s / step), r.reason));
    }
  }
}

// The best time of the kept plans on changed hardware; placement and layout stay what they were.
Sensitivity on_changed(const Problem& problem, const std::vector<Candidate>& kept, double base_s,
                       const char* change, const std::function<void(Problem&)>& apply) {
  Problem changed = problem;
  apply(changed);
  const sim::Topology topology(changed.cluster);
  sim::Estimator estimator(changed, topology);
  Sensitivity s;
  s.change = change;
  for (const Candidate& c : kept) {
    const double t = seconds(estimator.estimate(c.plan).step);
    if (s.step_time_s == 0 || t < s.step_time_s) {
      s.step_time_s = t;
      s.plan = c.plan;
    }
  }
  s.speedup = base_s / s.step_time_s;
  return s;
}

void measure_sensitivity(const Problem& problem, Answer& a) {
  const auto& kept = a.search.best;
  const double base = seconds(kept.front().estimate.step);
  const auto twice = [](Bandwidth& b) { b = b * 2; };
  a.sensitivity.push_back(on_changed(problem, kept, base, "2x NIC bandwidth",
                                     [&](Problem& p) { twice(p.cluster.nic_bandwidth); }));
  a.sensitivity.push_back(on_changed(problem, kept, base, "2x NVLink bandwidth", [&](Problem& p) {
    twice(p.cluster.intra_bandwidth);
    for (Cable& c : p.cluster.inside) twice(c.bandwidth);
  }));
  a.sensitivity.push_back(on_changed(problem, kept, base, "2x memory bandwidth",
                                     [&](Problem& p) { twice(p.device.memory_bandwidth); }));
  // Twice the memory lets in the fastest of those that did not fit.
  Sensitivity memory{"2x device memory", base, 1, kept.front().plan};
  for (const Candidate& c : a.search.too_big) {
    const double t = seconds(c.estimate.step);
    if (c.device <= a.search.capacity * 2 && t < memory.step_time_s) {
      memory.step_time_s = t;
      memory.plan = c.plan;
    }
  }
  memory.speedup = base / memory.step_time_s;
  a.sensitivity.push_back(memory);
  // Twice the nodes: a narrower search around the best plan.
  Problem larger = problem;
  larger.cluster.nodes *= 2;
  larger.scenario.search.tp = {kept.front().plan.tp};
  larger.scenario.search.sequence_parallel = {kept.front().plan.sequence_parallel};
  larger.scenario.search.schedule = {kept.front().plan.schedule};
  larger.scenario.search.recompute = {kept.front().plan.recompute};
  larger.scenario.search.recompute_layers = {kept.front().plan.recompute_layers};
  larger.scenario.search.rank_order = {kept.front().plan.rank_order};
  larger.scenario.search.vpp = {};
  larger.scenario.search.dp = {};
  try {
    const sim::Topology topology(larger.cluster);
    const SearchResult more = search(larger, topology, {.keep = 1});
    if (more.best.empty()) return;
    const double t = seconds(more.best.front().estimate.step);
    a.sensitivity.push_back({"2x nodes", t, base / t, more.best.front().plan});
  } catch (
      const Error&) {  // a graph joins the nodes that its cables name, and the largest network has no double
  }
}

bool acceptable(const Problem& problem, const Predicted& p) {
  const Scenario& s = problem.scenario;
  if (s.goal == Goal::kCostByDeadline && s.deadline.value > 0 && p.days * 86400 > seconds(s.deadline))
    return false;
  return s.goal != Goal::kTimeInBudget || s.budget.value == 0 || p.cost_usd <= dollars(s.budget);
}

double objective(Goal goal, const Predicted& p) {
  return goal == Goal::kCost || goal == Goal::kCostByDeadline ? p.cost_per_step_usd : p.step_time_s;
}

Ranked simulate(const Problem& problem, const sim::Topology& topology, const Plan& plan,
                const sim::Estimate& estimate) {
  Ranked r;
  r.plan = plan;
  r.estimate = estimate;
  r.predicted = evaluate(problem, topology, plan).predicted;
  return r;
}

Answer plan_on(const Problem& problem, const PlanOptions& options) {
  const sim::Topology topology(problem.cluster);
  Answer a;
  SearchOptions so;
  so.keep = std::max<std::size_t>(24, 2 * options.top);
  so.threads = options.threads;
  so.progress = options.progress;
  a.search = search(problem, topology, so);

  const auto candidates = without_twins(a.search.best);
  double best = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& c = candidates[i];
    const double estimate = seconds(c.estimate.step);
    // No further plan could win even if the estimate were too slow by the largest gap seen.
    if (i >= options.top && estimate * (1 - a.largest_gap) > best) break;
    Ranked r = simulate(problem, topology, c.plan, c.estimate);
    ++a.simulated;
    a.largest_gap = std::max(a.largest_gap, std::abs(estimate / r.predicted.step_time_s - 1));
    if (best == 0 || r.predicted.step_time_s < best) best = r.predicted.step_time_s;
    if (acceptable(problem, r.predicted)) a.plans.push_back(std::move(r));
  }
  std::stable_sort(a.plans.begin(), a.plans.end(), [&](const Ranked& x, const Ranked& y) {
    return objective(problem.scenario.goal, x.predicted) < objective(problem.scenario.goal, y.predicted);
  });
  if (a.plans.size() > options.top) a.plans.resize(options.top);

  for (const Candidate& c : without_twins(a.search.too_big)) {
    if (a.rejected.size() >= options.top) break;
    a.rejected.push_back({c.plan, needs(c, a.search.capacity), seconds(c.estimate.step)});
  }
  if (a.search.best.empty() && a.search.smallest_too_big) {
    const Candidate& c = *a.search.smallest_too_big;
    a.rejected.insert(a.rejected.begin(),
                      {c.plan, needs(c, a.search.capacity) + ", the least of all", seconds(c.estimate.step)});
  }
  for (const Candidate& c : a.search.pareto) a.pareto.push_back(c.plan);

  sim::Estimator estimator(problem, topology);
  const auto beside = [&](const Plan& p, const std::string& note) {
    Ranked r = simulate(problem, topology, p, estimator.estimate(p));
    r.note = note;
    a.alongside.push_back(std::move(r));
  };
  if (problem.scenario.plan) {
    const std::string why_not = plan_problem(problem, *problem.scenario.plan);
    if (why_not.empty())
      beside(*problem.scenario.plan, "the scenario's plan");
    else
      a.rejected.push_back({*problem.scenario.plan, "the scenario's plan: " + why_not, 0});
  }
  for (const Heuristic& h : heuristics(problem)) {
    if (h.problem.empty())
      beside(h.plan, h.name);
    else
      a.rejected.push_back({h.plan, fmt::format("{}: {}", h.name, h.problem), 0});
  }
  if (!a.search.best.empty()) measure_sensitivity(problem, a);
  explain(a);
  return a;
}

// The sizes to plan for: those listed, or where size is part of the goal doublings up to the one given. On
// one size the cheapest plan is the fastest.
std::vector<std::int64_t> sizes(const Problem& problem) {
  std::vector<std::int64_t> out = problem.scenario.search.nodes;
  if (out.empty() && problem.scenario.goal != Goal::kTime) {
    for (std::int64_t n = 1; n < problem.cluster.nodes; n *= 2) out.push_back(n);
    out.push_back(problem.cluster.nodes);
  }
  if (out.empty() || problem.scenario.goal == Goal::kSmallest) out.push_back(problem.cluster.nodes);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

Answer plan(const Problem& problem, const PlanOptions& options) {
  const Goal goal = problem.scenario.goal;
  Answer best;
  for (const std::int64_t nodes : sizes(problem)) {
    Problem sized = problem;
    sized.cluster.nodes = nodes;
    Answer a = plan_on(sized, options);
    a.nodes = nodes;
    if (goal == Goal::kSmallest && !a.plans.empty()) return a;
    const bool better =
        best.plans.empty() || (!a.plans.empty() && objective(goal, a.plans.front().predicted) <
                                                       objective(goal, best.plans.front().predicted));
    if (better) best = std::move(a);
  }
  return best;
}

std::optional<Advice> learning_rate_advice(const Problem& problem) {
  const Training& training = problem.scenario.training;
  if (training.lamb || training.precision == Precision::kSgd) return std::nullopt;
  // 6e-4 at 125M and 0.5M tokens to 0.6e-4 at 175B and 3.2M tokens: exponents -0.32 and 0.26 in N.
  const double n = static_cast<double>(count_parameters(problem.scenario.model));
  const double tokens = training.tokens_per_step();
  const double reference_batch = 0.5e6 * std::pow(n / 125e6, 0.256);
  Advice a;
  a.learning_rate = 6e-4 * std::pow(125e6 / n, 0.32) * std::sqrt(tokens / reference_batch);
  a.learning_rate = std::min(a.learning_rate, 6e-4 * std::pow(125e6 / n, 0.32) * 4);
  a.warm_up_tokens = 375e6;
  a.warm_up_steps = static_cast<std::int64_t>(std::ceil(a.warm_up_tokens / tokens));
  return a;
}

}  // namespace orrery::planner
