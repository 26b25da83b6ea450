// SPDX-License-Identifier: Apache-2.0
//
// Runs a program for real: ranks are threads, each with an arena and a thread for every stream of its
// program.
//
//   const auto program = program::compile(model, plan, training, stack);
//   RunResult r = run(program, {.steps = 3});
//   r.steps[0].loss; r.timeline; r.arena_bytes[rank];
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/timeline.h"
#include "program/program.h"

namespace orrery::exec {

struct RunOptions {
  std::int64_t steps = 1;
  std::uint64_t seed = 1;
  float learning_rate = 1e-3F;
  float weight_decay = 0.0F;
  bool capture = false;  // keep gradients and final parameters as logical tensors
  std::chrono::milliseconds deadline{60000};
};

struct StepReport {
  double loss = 0;           // mean over the tokens of the global batch
  double gradient_norm = 0;  // before clipping; 0 when the training does not clip
  double seconds = 0;
};

// Whole tensors by logical name, whatever the plan split them into.
using LogicalTensors = std::map<std::string, std::vector<float>>;

struct RunResult {
  std::vector<StepReport> steps;
  std::vector<std::int64_t> arena_bytes;  // by rank
  Timeline timeline;                      // of the last step
  LogicalTensors gradients;               // of the first step, as the optimizer saw them
  LogicalTensors parameters;              // after the last step
};

// Why this program cannot run here; empty when it can.
std::string run_problem(const program::Program& program);

// Throws Error when a rank fails or the deadline passes.
RunResult run(const program::Program& program, const RunOptions& options);

}  // namespace orrery::exec
