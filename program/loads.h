// SPDX-License-Identifier: Apache-2.0
//
// Experts that get more rows than even shares (sim/expert_loads.h says how many). Ops say what a rank does in
// the mean; here the products, activations and exchanges of experts become those of a rank that has so many
// times the mean. Buffers stay as they are: how many rows there is room for is the plan's to say
// (Plan::expert_room).
#pragma once

#include <span>

#include "program/program.h"

namespace orrery::program {

// What an op of experts needs to be costed anew.
struct LoadedOps {
  LoadedOps(const Communication& over, const Training& training, const Stack& stack);
  // The op itself where it has no rows of experts.
  void load(Op& op, double shares) const;

 private:
  GroupIndex ep_, etp_;
  ops::ElementBytes bytes_;
  ops::Passes passes_;
};

// `shares`: by block of the model. Precondition: the program was compiled for even shares.
void load_experts(Program& program, const Stack& stack, std::span<const double> shares);

}  // namespace orrery::program
