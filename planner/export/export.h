// SPDX-License-Identifier: Apache-2.0
//
// A plan as other software takes it: a script for Megatron-LM or Megatron Bridge; a configuration of
// DeepSpeed, of torchtitan, of Axolotl, of NeMo AutoModel, or of Accelerate for PyTorch's FSDP; a command for
// MaxText. Each trains the scenario's model with the scenario's numbers; a field that the software cannot
// take is refused, never left out. And each as a job that starts it on all nodes: of Slurm, of Kubernetes (a
// Job, or what JobSet's and Kubeflow's controllers read), or as a task of SkyPilot. Names and values are of
// the versions in the stack files (profiles/stacks), and tests/planner/export_test.cpp holds every export
// against the facts in tests/data/launchers.
//
//   Problem as = problem;
//   as.stack = load_stack(stack_of(Target::kMegatron), ...);
//   const Exported e = export_plan(Target::kMegatron, as, plan, at);   // InputError: what cannot be said
//   const Exported job = export_job(Launcher::kSlurm, Target::kMegatron, as, plan, at);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
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
  kAutomodel,
  kTorchtitan,
  kMaxtext
};
constexpr auto enum_names(Target) {
  using enum Target;
  return std::array{std::pair{kMegatron, "megatron"},     std::pair{kMegatronBridge, "megatron-bridge"},
                    std::pair{kDeepspeed, "deepspeed"},   std::pair{kFsdp, "fsdp"},
                    std::pair{kAxolotl, "axolotl"},       std::pair{kAutomodel, "automodel"},
                    std::pair{kTorchtitan, "torchtitan"}, std::pair{kMaxtext, "maxtext"}};
}

// What starts a job on its nodes.
enum class Launcher { kSlurm, kKubernetes, kJobSet, kTrainJob, kPyTorchJob, kMpiJob, kSkypilot };
constexpr auto enum_names(Launcher) {
  using enum Launcher;
  return std::array{std::pair{kSlurm, "slurm"},           std::pair{kKubernetes, "kubernetes"},
                    std::pair{kJobSet, "jobset"},         std::pair{kTrainJob, "trainjob"},
                    std::pair{kPyTorchJob, "pytorchjob"}, std::pair{kMpiJob, "mpijob"},
                    std::pair{kSkypilot, "skypilot"}};
}

// The stack whose software reads the export.
const char* stack_of(Target target);

// Ranks are started as many on every node. A plan that fills its last node only in part is spread out.
struct Layout {
  std::int64_t nodes = 1, per_node = 1;
};

struct Exported {
  std::string text;
  std::vector<std::string> notes;      // what the user has to know, a sentence each
  std::vector<std::string> variables;  // of the environment, that a script asks its user for
  // Of a configuration, or a script of another language than bash: the name of its file; lines of bash that
  // start the software on a node, where the file is in the folder $FOLDER, and NODE_RANK and MASTER_ADDR are
  // set; and names in the text that the user replaces.
  std::string file;
  std::function<std::string(const Layout&)> start;
  std::vector<std::string> placeholders;
};

// `problem` has the target's stack, which runs the plan (check_stack). Throws InputError, at a field of
// `scenario`, where that software cannot train the same model.
Exported export_plan(Target target, const Problem& problem, const Plan& plan, const Cursor& scenario);
// The same as one file that starts the software on all nodes of the plan. Each value that only the user knows
// stands there as a placeholder with a name.
Exported export_job(Launcher launcher, Target target, const Problem& problem, const Plan& plan,
                    const Cursor& scenario);

}  // namespace orrery::planner
