// SPDX-License-Identifier: Apache-2.0
//
// One compute op on the CPU: from an Op and pointers to a kernel call.
#pragma once

#include <array>
#include <span>
#include <utility>

#include "core/rotary.h"
#include "exec/muon_matrices.h"
#include "exec/placement.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/rounding.h"
#include "program/program.h"

namespace orrery::exec {

static_assert(kernels::reference::kSquareBins == program::kNormBins);

struct OpArguments {
  const program::Op& op;
  const Model& model;
  Coordinates at{};  // of the rank
  std::array<const float*, 6> in{};
  std::array<float*, 4> out{};
  DType type = DType::kFloat32;  // of what it writes first, where the kernel moves elements as they are
  float token_weight = 1;        // 1 / tokens of the global batch
  double loss_scale = 1;         // times the loss that gradients are of
  std::int64_t cached = 0;       // tokens of each sequence before those of the pass: Pass::cached
  kernels::Dropout dropout{};    // of this op and micro-batch
  std::span<const RotaryTables> rotary;  // by RopeShape::table
  float clip = 0;                        // largest gradient norm; 0: any
  Precision precision = Precision::kFp32;
  kernels::reference::Adam adam{};
  kernels::reference::Outer outer{};
  float trust = 0;  // LARS's coefficient
  kernels::StochasticRounding rounding{};
  // Of NormSquare: the ranges of the shard that count, as (first element, how many).
  std::span<const std::pair<std::int64_t, std::int64_t>> counted;
  // Of TrustSquares and Optimizer: the tensors of the shard.
  std::span<const TensorPart> parts;
  std::span<const UpdateRange> update_ranges;
  const Muon* muon = nullptr;
  std::span<const MuonMatrix> matrices;  // of Orthogonalise
};

// What the ops that update parameters get from a run and its step.
struct StepConstants {
  float learning_rate = 0, weight_decay = 0;
  std::int64_t updates = 1;  // so far, with this one
  std::uint64_t seed = 0;
};
kernels::reference::Adam adam_of(const Training& training, const StepConstants& constants);
// Of a plan with islands.
kernels::reference::Outer outer_of(const program::Program& program);
// Of an op that updates a unit.
void set_update(OpArguments& a, const Placement& place, std::int64_t unit, const StepConstants& constants);

// Kernels compute in fp32: operands of 16-bit floats come as fp32 images (exec/staging.h).
void run_cpu_op(const OpArguments& a);

}  // namespace orrery::exec
