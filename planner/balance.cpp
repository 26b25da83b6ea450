// SPDX-License-Identifier: Apache-2.0
#include "planner/balance.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace orrery::planner {
namespace {

// A stage needs a few turns of its own. A plan that needs more than so many in all is not offered.
constexpr std::int64_t kMostTurns = 256;

using Counts = std::vector<std::int64_t>;  // layers, by stage

// So many layers, at most `most` of a stage and at least `least`; nothing where they find no room.
std::optional<Counts> dealt(const std::vector<sim::StageTime>& times, std::int64_t layers, std::int64_t least,
                            const Counts& most) {
  Counts out(times.size(), least);
  using Next = std::pair<double, std::size_t>;  // what a stage takes with one layer more, and the stage
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  const auto offer = [&](std::size_t s) {
    if (out[s] < most[s])
      next.emplace(times[s].base + times[s].per_layer * static_cast<double>(out[s] + 1), s);
  };
  for (std::size_t s = 0; s < times.size(); ++s) offer(s);
  for (std::int64_t left = layers - least * std::ssize(times); left > 0; --left) {
    if (next.empty()) return std::nullopt;
    const std::size_t shortest = next.top().second;
    next.pop();
    ++out[shortest];
    offer(shortest);
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
  // Each turn limits the stage that is fullest. A stage of n layers needs a + b n bytes, so the part of its
  // layers that its memory is of its needs is no fewer than fit: no turn takes too many.
  for (std::int64_t turn = 0; turn < kMostTurns; ++turn) {
    const std::optional<Counts> counts = dealt(times, layers, even.vpp, most);
    if (!counts) return std::nullopt;
    plan.chunk_layers = by_chunk(plan, *counts);
    const sim::Estimate peak = estimator.peak(plan);
    const Bytes needs = estimator.device_bytes(plan, peak.peak), has = usable(peak.memory);
    if (needs <= has) {
      if (plan.chunk_layers == layers_by_chunk(even, layers)) return std::nullopt;
      return plan.chunk_layers;
    }
    const auto fullest = static_cast<std::size_t>(peak.fullest_stage);
    const std::int64_t here = (*counts)[fullest];
    most[fullest] =
        std::min(here - 1, static_cast<std::int64_t>(static_cast<double>(here) * ratio(has, needs)));
    if (most[fullest] < even.vpp) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace orrery::planner
