// SPDX-License-Identifier: Apache-2.0
#include "planner/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/risk.h"

namespace orrery::planner {
namespace {

std::string axis_words(const Breakdown& b, double step) {
  std::vector<std::pair<const char*, double>> parts;
  for (std::size_t i = 0; i < kWaitedAxes.size(); ++i)
    parts.emplace_back(kWaitedAxes[i].words, b.exposed_s[i]);
  parts.emplace_back("recomputation", b.recompute_s);
  parts.emplace_back("the host, which launches ops and hands work over", b.host_s);
  parts.emplace_back("waiting for samples", b.loading_s);
  parts.emplace_back("exchanges between islands", b.islands_s);
  parts.emplace_back("waiting for long documents", b.documents_s);
  const auto worst = std::max_element(parts.begin(), parts.end(),
                                      [](const auto& x, const auto& y) { return x.second < y.second; });
  if (worst->second < 0.05 * step) return "compute-bound: nothing else takes 5 % of the step";
  return fmt::format("after compute, the most time goes to {} ({:.1f} % of the step)", worst->first,
                     100 * worst->second / step);
}

// Against each other, 80 % of two plans' predictions err by less than this ratio.
double told_apart(const Problem& problem) {
  return std::exp(kDeviationsOf80Percent * std::sqrt(2.0) * problem.spread.plans.deviation);
}

// What is known of the choice: what it risks, and which plans predictions cannot tell from it.
void explain_risk(const Problem& problem, Answer& a) {
  const Ranked& best = a.plans.front();
  if (best.risky())
    a.why.push_back(
        fmt::format("no plan fits with a probability above {:.0f} % (risk {}): this one does with {:.1f} %",
                    100 * (1 - problem.scenario.search.risk), problem.scenario.search.risk,
                    100 * best.predicted.fits_probability));
  const double ratio = told_apart(problem);
  std::vector<std::string> alike;
  for (std::size_t i = 1; i < a.plans.size(); ++i) {
    if (a.plans[i].predicted.step_time_s < ratio * best.predicted.step_time_s)
      alike.push_back(std::to_string(i + 1));
  }
  if (!alike.empty())
    a.why.push_back(
        fmt::format("plan{} {} may be as fast: against each other, predictions of two plans err by up "
                    "to {:.0f} % (80 % of published ones)",
                    alike.size() > 1 ? "s" : "", fmt::join(alike, ", "), 100 * (ratio - 1)));
}

// What offloading saves and costs: against the same plan without it.
std::string offload_words(const Problem& problem, const Plan& plan) {
  const sim::Topology topology(problem.cluster);
  sim::Estimator estimator(problem, topology);
  const sim::Estimate with = estimator.estimate(plan);
  const Bytes device = estimator.device_bytes(plan, with.peak);
  Plan without = plan;
  without.offload.reset();
  const sim::Estimate on_device = estimator.estimate(without);
  return fmt::format(
      "offloading costs {} of the step ({:.1f} %) and saves {} of a device: without it the plan "
      "needs {}, and has {}",
      format(with.step - on_device.step), 100 * (1 - ratio(on_device.step, with.step)),
      format(estimator.device_bytes(without, on_device.peak) - device),
      format(estimator.device_bytes(without, on_device.peak)), format(usable(problem, on_device.memory)));
}

// Against the same ranks that exchange gradients in every step, in the placement that is fastest then:
// gradients cross between sites, or what passes between stages does.
std::string islands_words(const Problem& problem, const Ranked& of) {
  Plan together = of.plan;
  together.dp = of.plan.replicas();
  together.islands = 1;
  if (together.zero > 0 && together.shard_group == 0) together.shard_group = of.plan.dp;
  const sim::Topology topology(problem.cluster);
  sim::Estimator estimator(problem, topology);
  Time fastest = kLongestStep;
  RankOrder order = together.rank_order;
  for (const RankOrder tried : {RankOrder::kTpDpPp, RankOrder::kTpPpDp, RankOrder::kDpTpPp}) {
    together.rank_order = tried;
    const Time step = estimator.estimate(together).step;
    if (step >= fastest) continue;
    fastest = step;
    order = tried;
  }
  return fmt::format("{}; with gradients exchanged in every step it would take {} ({})",
                     text_of(of.predicted.islands.value()), format(fastest), name_of(order));
}

// Steps to a loss at a batch of B samples go with 1 + noise / B, and samples with 1 + B / noise (McCandlish
// et al. 2018, arXiv:1812.06162, eq. 2.11): twice the nodes with twice the batch bring less than half the
// time.
std::string batch_words(const Training& t) {
  const double batch = static_cast<double>(t.global_batch), noise = t.noise_scale;
  return fmt::format(
      "a batch of {} samples is {:.2g} of the gradient noise scale ({:.0f}): it takes {:.2f} times the "
      "samples of the smallest batches; twice the nodes with twice the batch would end {:.2f} times as fast, "
      "and past {:.0f} samples more nodes stop paying",
      t.global_batch, batch / noise, noise, 1 + batch / noise,
      (1 + noise / batch) / (1 + noise / (2 * batch)), noise);
}

// Where whole replicas do not fill the devices: the nearest batch that lets as many run as there is room for.
std::string idle_words(const Problem& problem, const Ranked& best) {
  Plan p = best.plan;
  const std::int64_t of_replica = p.ranks() / p.replicas(), devices = problem.cluster.devices();
  const std::int64_t dp = devices / of_replica / p.islands;
  if (dp <= p.dp || (p.shard_group > 0 && dp % p.shard_group != 0)) return {};
  const std::int64_t quantum = dp * p.islands * p.micro_batch * (p.vpp > 1 ? p.pp : 1);
  const std::int64_t was = problem.scenario.training.global_batch;
  const std::int64_t batch = std::max<std::int64_t>(1, (was + quantum / 2) / quantum) * quantum;
  Problem other = problem;
  other.scenario.training.global_batch = batch;
  p.dp = dp;
  p.micro_batches = batch / (dp * p.islands * p.micro_batch);
  if (!plan_problem(other, p).empty()) return {};
  const sim::Topology topology(problem.cluster);
  sim::Estimator estimator(other, topology);
  const sim::Estimate e = estimator.estimate(p);
  const Candidate candidate{.plan = p,
                            .estimate = e,
                            .device = estimator.device_bytes(p, e.peak),
                            .capacity = usable(problem, e.memory)};
  const double risk = problem.scenario.search.risk;
  if (!candidate.fits() || !estimator.host_memory(p).fits() ||
      (risk < 1 && fits_probability(other, candidate) <= 1 - risk))
    return {};
  const double gain =
      static_cast<double>(batch) / static_cast<double>(was) * best.predicted.step_time_s / seconds(e.step) -
      1;
  constexpr double kWorthIt = 0.01;
  if (gain < kWorthIt) return {};
  return fmt::format(
      "a batch of {} leaves {} of {} devices idle: {} would use {} ({}, {:.3g} s a step by the estimate) and "
      "train {:.1f} % more tokens a second",
      was, devices - best.plan.ranks(), devices, batch, p.ranks(), short_name(p), seconds(e.step),
      100 * gain);
}

}  // namespace

void explain(const Problem& problem, Answer& a) {
  if (a.plans.empty()) return;
  const Ranked& best = a.plans.front();
  const Breakdown& b = best.predicted.breakdown;
  const double step = best.predicted.step_time_s;
  a.why.push_back(fmt::format("{}: {}", short_name(best.plan), axis_words(b, step)));
  if (best.plan.offloads()) a.why.push_back(offload_words(problem, best.plan));
  if (best.predicted.islands) a.why.push_back(islands_words(problem, best));
  explain_risk(problem, a);
  if (problem.scenario.training.noise_scale > 0) a.why.push_back(batch_words(problem.scenario.training));
  if (const std::string idle = idle_words(problem, best); !idle.empty()) a.why.push_back(idle);
  if (best.predicted.imbalance) a.why.push_back(text_of(*best.predicted.imbalance));
  if (best.predicted.documents) a.why.push_back(text_of(*best.predicted.documents));
  for (const Ranked& other : a.plans) {
    if (other.plan.tp == best.plan.tp && other.plan.pp == best.plan.pp && other.plan.cp == best.plan.cp &&
        other.plan.ep == best.plan.ep && other.plan.recompute == best.plan.recompute &&
        other.plan.repeated() == best.plan.repeated())
      continue;
    const Breakdown& o = other.predicted.breakdown;
    std::string waits;
    for (std::size_t i = 0; i < kWaitedAxes.size(); ++i) {
      if (o.exposed_s[i] == 0 && b.exposed_s[i] == 0) continue;
      waits +=
          fmt::format(", {} {:+.1f}", kWaitedAxes[i].shorter, 100 * (o.exposed_s[i] - b.exposed_s[i]) / step);
    }
    const double more = other.predicted.step_time_s / step - 1;
    a.why.push_back(fmt::format("{} is {:.1f} % {}: recomputation {:+.1f}{} % of the step",
                                short_name(other.plan), 100 * std::abs(more), more < 0 ? "faster" : "slower",
                                100 * (o.recompute_s - b.recompute_s) / step, waits));
    break;
  }
  if (!a.rejected.empty()) {
    const Rejected& r = a.rejected.front();
    if (r.step_time_s > 0 && r.step_time_s < step) {
      a.why.push_back(fmt::format("{} would be {:.1f} % faster but {}", short_name(r.plan),
                                  100 * (1 - r.step_time_s / step), r.reason));
    }
  }
}

}  // namespace orrery::planner
