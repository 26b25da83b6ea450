// SPDX-License-Identifier: Apache-2.0
//
// A job that goes on with fewer replicas: what a step takes then, by the estimate.
#pragma once

#include <vector>

#include "core/plan.h"
#include "core/scenario.h"
#include "sim/topology/topology.h"

namespace orrery::planner {

// How many times longer as many sequences take without 0, 1, .. `most` replicas. Each replica that is left
// runs as many micro-batches in a step as before, so there are dp / (dp - lost) times as many steps, and a
// step takes what the estimate says of fewer replicas. Where ranks share ZeRO's shards or experts in a way
// that fewer replicas cannot, a step takes as long as before. Beyond eight lost replicas, times between some
// are interpolated. `most` is below plan.dp.
std::vector<double> shrunk_steps(const Problem& problem, const sim::Topology& topology, const Plan& plan,
                                 std::int64_t most);

}  // namespace orrery::planner
