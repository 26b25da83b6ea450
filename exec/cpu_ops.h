// SPDX-License-Identifier: Apache-2.0
//
// One compute op on the CPU: from an Op and pointers to a kernel call.
#pragma once

#include <array>

#include "kernels/cpu/reference.h"
#include "program/program.h"

namespace orrery::exec {

struct OpArguments {
  const program::Op& op;
  const Model& model;
  std::int64_t tp_rank = 0;
  std::array<const float*, 6> in{};
  std::array<float*, 4> out{};
  float loss_scale = 1;  // 1 / tokens of the global batch
  kernels::reference::Adam adam{};
  bool sgd = false;
};

void run_cpu_op(const OpArguments& a);

}  // namespace orrery::exec
