// SPDX-License-Identifier: Apache-2.0
//
// Layers for stages whose devices differ: a stage of faster devices holds more of them, as many as its memory
// takes.
//
//   if (auto layers = balanced_layers(estimator, plan, limit)) plan.chunk_layers = *layers;
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "sim/estimate/estimate.h"

namespace orrery::planner {

// The layers of each chunk (Plan::chunk_layers) with which the slowest stage takes least, where each holds
// one layer or more and none takes more of a device than `usable` says of its memory. Nothing where that is
// the even split, where stages do not differ, where there is none, and for interleaved chunks, which are
// equal.
//
// A stage of n layers takes a + b n for a micro-batch (Estimator::stage_times of the even split); giving
// layer after layer to the stage that would then take least makes the longest of these as short as it can be.
std::optional<std::vector<std::int64_t>> balanced_layers(sim::Estimator& estimator, const Plan& even,
                                                         const std::function<Bytes(Bytes)>& usable);

}  // namespace orrery::planner
