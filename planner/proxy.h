// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for a plan that is larger than the machine at hand: the same shapes on each rank, but fewer
// layers, stages, replicas and micro-batches. What it measures of single ops calibrates a device; its step
// says nothing about the plan's.
#pragma once

#include "core/scenario.h"

namespace orrery::planner {

// Kept: hidden sizes, vocabulary, sequence, tensor and sequence parallelism, micro-batch, precision,
// recomputation, ZeRO stage, schedule and chunks per stage. Of the rest the least that still has its kind:
// two stages and two replicas where there are more, a layer in each chunk (as many as are recomputed
// together; of blocks that differ, at least one of each kind), and twice as many micro-batches as stages.
// Shards are those of two replicas. The scenario names the stack and a cluster of this engine.
Scenario proxy(const Scenario& scenario, const Plan& plan);

}  // namespace orrery::planner
