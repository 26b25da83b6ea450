// SPDX-License-Identifier: Apache-2.0
//
// A job that goes on with fewer replicas: what a step takes then, by the estimate.
#pragma once

#include <vector>

#include "core/plan.h"
#include "core/scenario.h"
#include "sim/topology/topology.h"

namespace orrery::planner {

// How many times longer than the plan's own step a step of as many sequences is without 0, 1, .. `most`
// replicas. A replica then runs so many micro-batches more that none of the step's is left out; where these
// are more than the step's, the time is of the share that the step needs. Where ranks share ZeRO's shards or
// experts in a way that fewer replicas cannot, the time is in inverse proportion to the replicas. Beyond
// eight lost replicas, times between some are interpolated. `most` is below plan.dp.
std::vector<double> shrunk_steps(const Problem& problem, const sim::Topology& topology, const Plan& plan,
                                 std::int64_t most);

}  // namespace orrery::planner
