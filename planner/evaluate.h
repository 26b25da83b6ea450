// SPDX-License-Identifier: Apache-2.0
//
// What one plan will do: the program compiled, checked and run through the event engine, turned into
// the numbers people ask for.
#pragma once

#include <functional>

#include "core/plan_file.h"
#include "sim/place.h"

namespace orrery::planner {

struct Evaluation {
  program::Program program;
  sim::Fold fold = sim::Fold::kClasses;  // as it was done
  sim::SimulationResult simulation;
  Predicted predicted;
};

struct EvaluateOptions {
  bool record = false;  // keep the timeline
  // Of loads of experts and of documents, for the intervals of Predicted::imbalance and Predicted::documents.
  std::int64_t draws = 0;
  std::int64_t paid_nodes = 0;  // nodes that are paid for; 0: all of the cluster, used or not
  sim::PlaceOptions place{.most_places = 8};
  // Told what is being done, and how much of it is.
  std::function<void(const char* phase, double share)> progress;
};

// Throws Error if the compiled program is not sound.
Evaluation evaluate(const Problem& problem, const sim::Topology& topology, const Plan& plan,
                    const EvaluateOptions& options = {});

// Draws of loads that are enough for an interval.
inline constexpr std::int64_t kLoadDraws = 20;
// "the fullest rank of a layer gets 1.34 times the mean .."
std::string text_of(const Imbalance& i);
// "documents: attention has 28.5 % of the pairs of tokens that it had without them, .."
std::string text_of(const DocumentWait& d);
// "islands exchange every 500 steps: .."
std::string text_of(const IslandExchange& i);

// Model FLOPs (full attention) of a step over what the first `ranks` devices could do in `step_s` seconds.
double model_flops_utilisation(const Problem& problem, std::int64_t ranks, double step_s);
// Executed over model FLOPs: 1 without recomputation, 4/3 of the layers with full.
double recompute_factor(const Problem& problem, const Plan& plan);

// The memory that a plan needs on the stage that fills its devices most, and what the smallest of them has:
// bytes.
struct Fit {
  std::int64_t needed = 0, available = 0, stage = 0;
  std::int64_t host_needed = 0, host_available = 0;  // of a node, where something is offloaded
  std::int64_t on_drives = 0, drives = 0;            // of a node, where something lies on drives
  bool fits_hosts() const { return host_needed <= host_available && on_drives <= drives; }
  bool fits() const { return needed <= available && fits_hosts(); }
  // "the plan needs 160.00 GiB on stage 0, and a100-80gb has 80.00 GiB: it will run out of memory"
  std::string text(const Problem& problem) const;
};
Fit fit(const Problem& problem, const Plan& plan, const Predicted& predicted);
// Without the event engine: the estimate's bytes are the engine's.
Fit fit(const Problem& problem, const Plan& plan);
// {"fits", "needed_bytes", "available_bytes"}, and of hosts where something is offloaded
Json fit_json(const Fit& fit);

PlanFile make_plan_file(const Problem& problem, const Plan& plan, const Predicted& predicted, const char* by);

}  // namespace orrery::planner
