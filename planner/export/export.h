// SPDX-License-Identifier: Apache-2.0
//
// A plan as other software starts it: a script for Megatron-LM, alone, as a Slurm job, as an object of
// Kubernetes (a Job, or what JobSet's and Kubeflow's controllers read) or as a task of SkyPilot; a
// configuration of DeepSpeed, of torchtitan, or of Accelerate for PyTorch's FSDP; a command for MaxText. Each
// trains the scenario's model with the scenario's numbers; a field that the software cannot take is refused,
// never left out. Names and values are of the versions in the stack files (profiles/stacks), and
// tests/planner/export_test.cpp holds every export against the facts in tests/data/launchers.
//
//   Problem as = problem;
//   as.stack = load_stack(stack_of(Target::kMegatron), ...);
//   const Exported e = export_plan(Target::kMegatron, as, plan, at);   // InputError: what cannot be said
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/scenario.h"

namespace orrery::planner {

enum class Target {
  kMegatron,
  kMegatronBridge,
  kDeepspeed,
  kFsdp,
  kAxolotl,
  kTorchtitan,
  kMaxtext,
  kSlurm,
  kKubernetes,
  kJobSet,
  kTrainJob,
  kPyTorchJob,
  kMpiJob,
  kSkypilot
};
constexpr auto enum_names(Target) {
  using enum Target;
  return std::array{std::pair{kMegatron, "megatron"},     std::pair{kMegatronBridge, "megatron-bridge"},
                    std::pair{kDeepspeed, "deepspeed"},   std::pair{kFsdp, "fsdp"},
                    std::pair{kAxolotl, "axolotl"},       std::pair{kTorchtitan, "torchtitan"},
                    std::pair{kMaxtext, "maxtext"},       std::pair{kSlurm, "slurm"},
                    std::pair{kKubernetes, "kubernetes"}, std::pair{kJobSet, "jobset"},
                    std::pair{kTrainJob, "trainjob"},     std::pair{kPyTorchJob, "pytorchjob"},
                    std::pair{kMpiJob, "mpijob"},         std::pair{kSkypilot, "skypilot"}};
}

// The stack whose software reads the export.
const char* stack_of(Target target);

struct Exported {
  std::string text;
  std::vector<std::string> notes;      // what the user has to know, a sentence each
  std::vector<std::string> variables;  // of the environment, that a script asks its user for
};

// `problem` has the target's stack, which runs the plan (check_stack). Throws InputError, at a field of
// `scenario`, where that software cannot train the same model.
Exported export_plan(Target target, const Problem& problem, const Plan& plan, const Cursor& scenario);

}  // namespace orrery::planner
