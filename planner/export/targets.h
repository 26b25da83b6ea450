// SPDX-License-Identifier: Apache-2.0
//
// The exporters, one for each kind of text. Internal to planner/export.
#pragma once

#include "planner/export/export.h"

namespace orrery::planner {

Exported megatron_script(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported bridge_script(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported deepspeed_config(const Problem& problem, const Plan& plan);
Exported torchtitan_config(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported maxtext_command(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported accelerate_config(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported automodel_config(const Problem& problem, const Plan& plan, const Cursor& scenario);
Exported axolotl_config(const Problem& problem, const Plan& plan, const Cursor& scenario);

}  // namespace orrery::planner
