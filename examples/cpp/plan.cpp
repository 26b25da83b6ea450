// SPDX-License-Identifier: Apache-2.0
//
// The best plan for a scenario, in a program of one's own.
#include <fmt/format.h>

#include "planner/plan.h"
#include "planner/words.h"

int main() {
  using namespace orrery;
  const Json scenario = {{"model", "llama-2-7b"},
                         {"cluster", {{"topology", "p5"}, {"nodes", 1}}},
                         {"training", {{"global_batch", 64}, {"sequence", 4096}}}};
  const Cursor at{"example", ""};
  try {
    const Problem problem = resolve(read_scenario(scenario, at), at, DataFolders());
    const planner::Answer answer = planner::plan(problem, {.top = 1, .threads = 2});
    if (answer.plans.empty()) {
      fmt::print("{}\n", planner::why_none(problem, answer.search));
      return 1;
    }
    const planner::Ranked& best = answer.plans.front();
    fmt::print("{}: {:.3f} s a step\n{}\n", short_name(best.plan), best.predicted.step_time_s,
               planner::in_words(best.plan, problem.scenario.model));
  } catch (const InputError& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 3;
  }
}
