// SPDX-License-Identifier: Apache-2.0
//
// One compute op on the CPU: from an Op and pointers to a kernel call.
#pragma once

#include <array>
#include <span>
#include <utility>

#include "kernels/cpu/reference.h"
#include "program/program.h"

namespace orrery::exec {

// What kNormFinish writes and the optimizer reads.
struct GradientNorm {
  double norm;
  float factor;  // scales gradients so that their norm is at most the largest allowed
};
static_assert(sizeof(GradientNorm) == program::kNormBytes);
static_assert(kernels::reference::kSquareBins == program::kNormBins);

struct OpArguments {
  const program::Op& op;
  const Model& model;
  std::int64_t tp_rank = 0;
  std::array<const float*, 6> in{};
  std::array<float*, 4> out{};
  float loss_scale = 1;  // 1 / tokens of the global batch
  float clip = 0;        // largest gradient norm
  kernels::reference::Adam adam{};
  bool sgd = false;
  // kNormSquare: the ranges of the shard that count, as (first element, how many).
  std::span<const std::pair<std::int64_t, std::int64_t>> counted;
};

void run_cpu_op(const OpArguments& a);

}  // namespace orrery::exec
