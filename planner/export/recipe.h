// SPDX-License-Identifier: Apache-2.0
//
// What every export says of the optimizer, and where its ranks stand. Internal to planner/export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/scenario.h"

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

// How ranks are started: as many on every node. A plan that fills its last node only in part is spread out.
struct Layout {
  std::int64_t nodes = 1, per_node = 1;
};
Layout layout_of(const Problem& problem, const Plan& plan, const Cursor& at);

// The command that starts the ranks of a node, up to what they run, in lines that go on.
std::string torchrun(const Layout& layout);
// Of software that runs a training script of the user's: lines of bash that make the array `train` of the
// variable kTrain.
inline constexpr const char* kTrain = "TRAIN";
std::string reads_train();

}  // namespace orrery::planner
