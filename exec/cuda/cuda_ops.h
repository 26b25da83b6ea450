// SPDX-License-Identifier: Apache-2.0
//
// One compute op on a stream of the device: from an Op and pointers to kernels. Internal to exec/cuda.
#pragma once

#include <array>
#include <boost/container/static_vector.hpp>
#include <cstddef>
#include <optional>
#include <span>

#include "exec/placement.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"

namespace orrery::exec::cuda {

// A table of rotary positions in device memory.
struct RotaryMemory {
  const float *cosine = nullptr, *sine = nullptr;
};

struct CudaOp {
  const program::Op& op;
  const Placement& place;
  kernels::cuda::Stream stream;
  std::array<const void*, 6> in{};
  std::array<void*, 4> out{};
  std::array<DType, 6> in_type{};
  std::array<DType, 4> out_type{};
  kernels::Dropout dropout{};  // of the op and micro-batch, counted from the step's first sample
  float weight_decay = 0;
  kernels::StochasticRounding rounding{};
  const kernels::cuda::StepScalars* scalars = nullptr;  // in device memory
  std::span<const RotaryMemory> rotary;                 // by RopeShape::table
  kernels::cuda::Workspace workspace;
  kernels::cuda::Gemms& gemms;
  std::int64_t tp_rank() const { return place.at.tp; }
  const Model& model() const { return place.program.model; }
};

void run_cuda_op(const CudaOp& a);

// Scratch memory that the op needs.
std::size_t workspace_of(const program::Op& op, const Placement& place);
// Its matrix products; none of other ops.
using GemmShapes =
    boost::container::static_vector<kernels::cuda::GemmShape, program::ops::AdapterProduct::kMostBlocks>;
GemmShapes gemm_shapes(const program::Op& op, const program::RankClass& rank, const Training& training);

}  // namespace orrery::exec::cuda
