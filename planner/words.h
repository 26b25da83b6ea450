// SPDX-License-Identifier: Apache-2.0
//
// A plan as an engineer would say it to another one.
#pragma once

#include <string>

#include "core/model.h"
#include "core/plan.h"

namespace orrery::planner {

// "64 devices. Each replica is split 8 ways by tensor parallelism, with sequence parallelism, and into 4
// pipeline stages under 1f1b; 2 replicas share the optimizer's state (ZeRO-1). Each replica runs 64
// micro-batches of one sequence a step. Nothing is recomputed."
std::string in_words(const Plan& plan, const Model& model);

}  // namespace orrery::planner
