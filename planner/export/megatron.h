// SPDX-License-Identifier: Apache-2.0
//
// The arguments of Megatron-LM's pretrain_gpt.py that train a plan, which other exports of Megatron-core
// translate. Internal to planner/export.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/scenario.h"
#include "planner/export/recipe.h"

namespace orrery::planner {

struct MegatronArgument {
  std::string flag;                  // without its hyphens
  std::optional<std::string> value;  // as a shell takes it: quoted, or a variable of the environment
};

// Throws InputError where Megatron-LM would train another model or by other numbers.
void check_megatron(const Problem& problem, const Cursor& scenario);

std::vector<MegatronArgument> megatron_arguments(const Problem& problem, const Plan& plan);

// What a user has to know of Megatron-core, a sentence each.
std::vector<std::string> megatron_notes(const Problem& problem, const Plan& plan, const Layout& layout);

// Variables of the environment that the arguments use, and what each is to hold.
struct AskedVariable {
  const char *name, *wanted;
};
std::vector<AskedVariable> megatron_variables(const Problem& problem);

}  // namespace orrery::planner
