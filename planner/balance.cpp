// SPDX-License-Identifier: Apache-2.0
#include "planner/balance.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace orrery::planner {
namespace {

using Counts = std::vector<std::int64_t>;  // layers, by stage

// So many layers, at most `most` of a stage and at least `least`; nothing where they find no room.
std::optional<Counts> dealt(const std::vector<sim::StageTime>& times, std::int64_t layers, std::int64_t least,
                            const Counts& most) {
  Counts out(times.size(), least);
  for (std::int64_t left = layers - least * std::ssize(times); left > 0; --left) {
    std::size_t best = times.size();
    double shortest = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < times.size(); ++s) {
      const double then = times[s].base + times[s].per_layer * static_cast<double>(out[s] + 1);
      if (out[s] >= most[s] || then >= shortest) continue;
      best = s;
      shortest = then;
    }
    if (best == times.size()) return std::nullopt;
    ++out[best];
  }
  return out;
}

// The chunks of a stage share its layers evenly, the earlier ones hold the remainder.
Counts by_chunk(const Plan& plan, const Counts& of_stage) {
  Counts out;
  for (std::int64_t chunk = 0; chunk < plan.pp * plan.vpp; ++chunk) {
    const std::int64_t layers = of_stage[static_cast<std::size_t>(stage_of_chunk(plan, chunk))];
    const std::int64_t before = chunk / plan.pp;
    out.push_back((layers + plan.vpp - 1 - before) / plan.vpp);
  }
  return out;
}

}  // namespace

std::optional<std::vector<std::int64_t>> balanced_layers(sim::Estimator& estimator, const Plan& even,
                                                         const std::function<Bytes(Bytes)>& usable) {
  if (even.schedule == Schedule::kInterleaved || !estimator.stages_differ(even)) return std::nullopt;
  const std::vector<sim::StageTime> times = estimator.stage_times(even);
  const std::int64_t layers = estimator.layers();
  if (layers < even.pp * even.vpp) return std::nullopt;
  Counts most(times.size(), layers);
  Plan plan = even;
  // Each turn takes a layer from the stage that is too full.
  for (std::int64_t turn = 0; turn < layers; ++turn) {
    const std::optional<Counts> counts = dealt(times, layers, even.vpp, most);
    if (!counts) return std::nullopt;
    plan.chunk_layers = by_chunk(plan, *counts);
    const sim::Estimate peak = estimator.peak(plan);
    if (estimator.device_bytes(plan, peak.peak) <= usable(peak.memory)) {
      if (plan.chunk_layers == layers_by_chunk(even, layers)) return std::nullopt;
      return plan.chunk_layers;
    }
    const auto fullest = static_cast<std::size_t>(peak.fullest_stage);
    most[fullest] = (*counts)[fullest] - 1;
  }
  return std::nullopt;
}

}  // namespace orrery::planner
