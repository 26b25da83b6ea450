// SPDX-License-Identifier: Apache-2.0
//
// A plan in other launchers' words. Flag names: Megatron-LM d98e8a6, DeepSpeed edaa722; sbatch starts
// torchrun on every node.
#pragma once

#include <string>

#include "core/plan_file.h"

namespace orrery::planner {

std::string to_megatron(const PlanFile& f);
std::string to_deepspeed(const PlanFile& f);
// `devices_per_node` decides --nodes and --nproc_per_node.
std::string to_slurm(const PlanFile& f, std::int64_t devices_per_node);

// What the launcher cannot express of this plan, one sentence each.
std::vector<std::string> export_losses(const PlanFile& f, const std::string& target);

}  // namespace orrery::planner
