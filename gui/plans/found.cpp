// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gui/plans/page.h"
#include "planner/evaluate.h"

namespace orrery::gui {
namespace {

Found simulated(const planner::Ranked& r) {
  const Predicted& p = r.predicted;
  return {r.plan,
          Found::How::kSimulated,
          r.note,
          p.step_time_s,
          p.tokens_per_s,
          p.mfu,
          static_cast<double>(p.peak_memory_bytes) / kGiB,
          p.fits_probability,
          p.days,
          p.cost_usd,
          p};
}

Found estimated(const Problem& problem, const planner::Candidate& c, Found::How how) {
  Found f;
  f.plan = c.plan;
  f.how = how;
  f.step_s = seconds(c.estimate.step);
  f.tokens_per_s = problem.scenario.training.tokens_per_step() / f.step_s;
  f.mfu = planner::model_flops_utilisation(problem, c.plan.ranks(), f.step_s);
  f.gib = static_cast<double>(c.device.value) / kGiB;
  f.fits = planner::fits_probability(problem, c);
  if (problem.scenario.training.tokens > 0) {
    f.days = problem.scenario.training.tokens / f.tokens_per_s / 86400;
    f.dollars = problem.cluster.dollars_per_hour(problem.cluster.nodes) * 24 * f.days;
  }
  return f;
}

}  // namespace

std::vector<Found> found_plans(const Problem& problem, const planner::Answer& answer) {
  std::vector<Found> out;
  const auto add = [&](Found f) {
    const bool known = std::any_of(out.begin(), out.end(), [&](const Found& o) { return o.plan == f.plan; });
    if (!known) out.push_back(std::move(f));
  };
  for (const planner::Ranked& r : answer.plans) add(simulated(r));
  for (const planner::Ranked& r : answer.alongside) {
    Found f = simulated(r);
    if (!r.fits()) f.how = Found::How::kTooLarge;
    add(std::move(f));
  }
  for (const auto* list : {&answer.search.pareto, &answer.search.best}) {
    for (const planner::Candidate& c : *list) add(estimated(problem, c, Found::How::kEstimated));
  }
  for (const planner::Candidate& c : answer.search.too_big) add(estimated(problem, c, Found::How::kTooLarge));
  return out;
}

}  // namespace orrery::gui
