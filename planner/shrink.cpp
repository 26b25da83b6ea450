// SPDX-License-Identifier: Apache-2.0
#include "planner/shrink.h"

#include <algorithm>

#include "program/program.h"
#include "sim/estimate/estimate.h"

namespace orrery::planner {
namespace {

double step_s(const Problem& problem, const sim::Topology& topology, const Plan& plan) {
  return seconds(sim::Estimator(problem, topology).estimate(plan).step);
}

double shrunk_step(const Problem& problem, const sim::Topology& topology, const Plan& plan, std::int64_t lost,
                   double own_s) {
  Plan fewer = plan;
  // Of islands, that which has lost most decides.
  fewer.dp = std::max<std::int64_t>(1, plan.dp - (lost + plan.islands - 1) / plan.islands);
  if (fewer.shard_group > 0 && fewer.dp % fewer.shard_group != 0) fewer.shard_group = 0;
  Problem smaller = problem;
  smaller.scenario.training.global_batch = fewer.global_batch();
  const double more_steps =
      static_cast<double>(plan.replicas()) / static_cast<double>(plan.replicas() - lost);
  try {
    program::check_plan(smaller.scenario.model, fewer, smaller.scenario.training, problem.at);
  } catch (const InputError&) {
    return more_steps;
  }
  return std::max(1.0, more_steps * step_s(smaller, topology, fewer) / own_s);
}

}  // namespace

std::vector<double> shrunk_steps(const Problem& problem, const sim::Topology& topology, const Plan& plan,
                                 std::int64_t most) {
  std::vector<double> out{1};
  constexpr std::int64_t kEach = 8, kMostEstimates = 16;
  const double own_s = step_s(problem, topology, plan);
  const std::int64_t stride = std::max<std::int64_t>(1, (most - kEach + kMostEstimates - 1) / kMostEstimates);
  for (std::int64_t lost = 1; lost <= most;) {
    const double step = shrunk_step(problem, topology, plan, lost, own_s);
    const double before = out.back();
    const auto known = static_cast<std::int64_t>(out.size()) - 1;
    for (std::int64_t i = known + 1; i <= lost; ++i)
      out.push_back(before +
                    (step - before) * static_cast<double>(i - known) / static_cast<double>(lost - known));
    if (lost == most) break;
    lost = lost < kEach ? lost + 1 : std::min(most, lost + stride);
  }
  return out;
}

}  // namespace orrery::planner
