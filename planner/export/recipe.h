// SPDX-License-Identifier: Apache-2.0
//
// What every export says of the optimizer, and where its ranks stand. Internal to planner/export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/scenario.h"
#include "planner/export/export.h"

namespace orrery::planner {

// As GPT-3 was trained (Brown et al. 2020, appendix B).
inline constexpr double kWeightDecay = 0.1;
// Of the learning rate, at the end of a cosine; GPT-3's too.
inline constexpr double kLastRate = 0.1;

struct Recipe {
  std::optional<double> learning_rate;  // the planner's advice; none for LAMB and SGD
  std::int64_t warm_up_steps = 0;
  std::int64_t steps = 0;  // 0: the scenario does not say how many tokens there are
};
Recipe recipe_of(const Problem& problem);

Layout layout_of(const Problem& problem, const Plan& plan, const Cursor& at);

// A number that YAML 1.1 reads as one: with a point before an exponent.
std::string yaml_number(double x);
// PEFT's names of matrices in models of Llama's kind. Throws InputError at `at` where there is none.
const char* module_of(AdapterTarget target, const char* software, const Cursor& at);

// "--nnodes=2 --nproc_per_node=8 --node_rank=..", arguments of torchrun on a node.
std::string torchrun_arguments(const Layout& layout);
// The command that starts the ranks of a node. It ends with a backslash and a line end: what the ranks run
// follows.
std::string torchrun(const Layout& layout);
// The variable that names the user's training script and its arguments, and lines of bash that split it into
// the array `train`.
inline constexpr const char* kTrain = "TRAIN";
std::string reads_train();

}  // namespace orrery::planner
