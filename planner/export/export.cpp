// SPDX-License-Identifier: Apache-2.0
#include "planner/export/export.h"

#include <cmath>

#include "planner/export/recipe.h"
#include "planner/export/targets.h"
#include "planner/plan.h"

namespace orrery::planner {

const char* stack_of(Target target) {
  switch (target) {
    case Target::kMegatron:
    case Target::kSlurm:
      return "megatron-core";
    case Target::kDeepspeed:
      return "deepspeed";
    case Target::kFsdp:
      return "fsdp";
  }
  throw Error("an export target without a stack");
}

Recipe recipe_of(const Problem& problem) {
  const Training& t = problem.scenario.training;
  Recipe r;
  r.steps = static_cast<std::int64_t>(std::ceil(t.tokens / t.tokens_per_step()));
  if (const auto advice = learning_rate_advice(problem)) {
    r.learning_rate = advice->learning_rate;
    r.warm_up_steps = advice->warm_up_steps;
  }
  return r;
}

Layout layout_of(const Problem& problem, const Plan& plan, const Cursor& at) {
  const std::int64_t ranks = plan.ranks(), devices = problem.cluster.devices_per_node;
  for (std::int64_t nodes = (ranks + devices - 1) / devices; nodes <= problem.cluster.nodes; ++nodes) {
    if (ranks % nodes == 0) return {nodes, ranks / nodes};
  }
  if (ranks > problem.cluster.devices())
    at.fail(fmt::format("{} ranks are more than the cluster's {} devices", ranks, problem.cluster.devices()));
  at.fail(fmt::format("{} ranks cannot be spread evenly over the {} nodes of {} devices", ranks,
                      problem.cluster.nodes, devices));
}

Exported export_plan(Target target, const Problem& problem, const Plan& plan, const Cursor& scenario) {
  switch (target) {
    case Target::kMegatron:
      return megatron_script(problem, plan, scenario);
    case Target::kSlurm:
      return slurm_script(problem, plan, scenario);
    case Target::kDeepspeed:
      return deepspeed_config(problem, plan);
    case Target::kFsdp:
      return accelerate_config(problem, plan, scenario);
  }
  throw Error("an export target without an exporter");
}

}  // namespace orrery::planner
