// SPDX-License-Identifier: Apache-2.0
//
// A plan as a question of operations: what its run takes with failures, checkpoints and restarts, in days and
// dollars.
//
//   Operated q = operate(problem, plan, problem.at, {}, data);
//   if (!take_stated_step(q, topology)) take_predicted_step(q, topology, predicted_s, "engine", seed);
//   sim::Answered a = answered(q, {.seed = 1, .runs = 10'000, .threads = 2});
//   a.summary.days.p95;
//   sim::Diary diary = diary_of_median_run(a, 1);
//
// Everything but the diary throws InputError, at the scenario's field, where what is assumed does not fit
// together, lacks a price, or leaves a run no end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/reliability_profile.h"
#include "core/scenario.h"
#include "sim/reliability/advice.h"
#include "sim/reliability/diary.h"
#include "sim/topology/topology.h"

namespace orrery::planner {

struct Operated {
  Problem problem;
  std::optional<Plan> plan;  // none where the scenario states its step
  Assumed assumed;
  sim::Operation operation;
  std::string step_source;  // "predicted by the engine"
  Cursor at;                // where the scenario stands
};

struct OperateOptions {
  std::string rates;               // a profile, in place of the scenario's
  std::optional<Payment> payment;  // in place of the scenario's
};
// All but the step.
Operated operate(const Problem& problem, const std::optional<Plan>& plan, const Cursor& at,
                 const OperateOptions& options, const DataFolders& data);
// Its step, and how much longer that is without replicas: as the scenario states it (false where it states
// none), or as predicted by the "engine" or the "estimate", which is uncertain.
bool take_stated_step(Operated& q, const sim::Topology& topology);
void take_predicted_step(Operated& q, const sim::Topology& topology, double step_s, const char* by,
                         std::uint64_t seed);

// The scenario's own payment, and the others whose prices it gives.
std::vector<Payment> payments(const Operated& q);
Operated paid(const Operated& q, Payment payment);

sim::Answered answered(const Operated& q, const sim::RunOptions& runs);
// Of the run with the median time of those simulated, without checkpoints of less than a hundred thousandth
// of it. `seed` is that of `a`. Throws Error where the run has too many stops to draw.
sim::Diary diary_of_median_run(const sim::Answered& a, std::uint64_t seed);

struct Advised {
  sim::IntervalAdvice interval;
  std::vector<sim::SpareNodes> spares;
  sim::Change hour;
  std::vector<sim::Sensitivity> sensitivities;
};
Advised advised(const Operated& q, const sim::RunOptions& runs);

}  // namespace orrery::planner
