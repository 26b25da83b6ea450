// SPDX-License-Identifier: Apache-2.0
//
// The exporters, one for each kind of text. Internal to planner/export.
#pragma once

#include "planner/export/export.h"

namespace orrery::planner {

Exported megatron_script(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported slurm_script(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported deepspeed_config(const Problem& problem, const Plan& plan);
Exported torchtitan_config(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported maxtext_command(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported kubernetes_manifest(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported skypilot_task(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported accelerate_config(const Problem& problem, const Plan& plan, const Cursor& scenario);

}  // namespace orrery::planner
