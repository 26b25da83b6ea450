// SPDX-License-Identifier: Apache-2.0
//
// The sum of squares of kernels/cpu/reference.h, whose bits do not depend on order (bins.h). Floor: n
// elements read.
#include "kernels/cuda/bins.h"
#include "kernels/cuda/element.h"

namespace orrery::kernels::cuda {
namespace {

template <class T>
__global__ void add_squares_kernel(std::int64_t n, const T* x, double* bins) {
  float mine[kBinElements];
#pragma unroll
  for (int i = 0; i < kBinElements; ++i) {
    const std::int64_t at = bin_element(blockIdx.x, i);
    mine[i] = at < n ? widen(x[at]) : 0.0F;
  }
  add_block_squares(mine, bins);
}

__global__ void norm_finish_kernel(const double* bins, float clip, const StepScalars* scalars,
                                   NormResult* result) {
  const double norm = sqrt(sum_of_bins(bins)) / scalars->loss_scale;
  const double clipped = clip > 0 && norm > clip ? static_cast<double>(clip) / (norm + 1e-6) : 1.0;
  *result = {norm, static_cast<float>(clipped / scalars->loss_scale), isfinite(norm) ? 0 : 1};
}

}  // namespace

void add_squares(Stream stream, DType type, Index n, const void* x, double* bins) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "add_squares", {.blocks = cover(n, kBinThreads * kBinElements), .threads = kBinThreads},
           add_squares_kernel<T>, n, static_cast<const T*>(x), bins);
  });
}

void norm_finish(Stream stream, const double* bins, float clip, const StepScalars* scalars,
                 NormResult* result) {
  launch(stream, "norm_finish", {.blocks = 1, .threads = 1}, norm_finish_kernel, bins, clip, scalars, result);
}

}  // namespace orrery::kernels::cuda
