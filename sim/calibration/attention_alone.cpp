// SPDX-License-Identifier: Apache-2.0
//
// Benchmarks of attention by itself: the step of a model of one layer is simulated, and the time is from the
// first to the last op of attention's core, exchanges included, in the forward pass and in the backward pass.
#include <algorithm>
#include <limits>

#include "sim/calibration/published.h"
#include "sim/place.h"

namespace orrery::sim {

Time attention_alone(const Problem& problem, const Plan& plan, bool backward) {
  const Scenario& s = problem.scenario;
  const program::Program program = program::compile(s.model, plan, s.training, problem.stack);
  const Topology topology(problem.cluster);
  const PlanLinks links = plan_links(topology, plan);
  const CostModel cost(problem.devices, problem.stack, problem.cluster, links, s.training);
  const Timeline timeline = simulate(program, place(topology, program, cost)).timeline;
  constexpr Time kNever{std::numeric_limits<std::int64_t>::max()};
  Time sum{0};
  for (const char* segment : {"forward", "backward"}) {
    if (!backward && segment == std::string_view("backward")) continue;
    Time begin = kNever, end{0};
    for (const Slice& slice : timeline.slices) {
      const std::string& name = timeline.names[static_cast<std::size_t>(slice.name)];
      const bool core = name.find("attn/core") != std::string::npos &&
                        name.find("pack") == std::string::npos && slice.rank == 0;
      if (!core || timeline.segments[static_cast<std::size_t>(slice.segment)] != segment) continue;
      begin = std::min(begin, slice.active);
      end = std::max(end, slice.end);
    }
    if (begin == kNever) throw std::logic_error("a layer without attention");
    sum += end - begin;
  }
  return sum;
}

}  // namespace orrery::sim
