// SPDX-License-Identifier: Apache-2.0
//
// The sum of squares of kernels/cpu/reference.h, whose bits do not depend on order: a block finds the largest
// of its elements, splits every square over the four bins below it, and adds each bin's sum, which is exact,
// to the whole. Floor: n elements read.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kThreads = 256, kOfThread = 16, kBins = 4;

template <class T>
__global__ void add_squares_kernel(std::int64_t n, const T* x, double* bins) {
  float mine[kOfThread], most = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kOfThread + i) * kThreads + threadIdx.x;
    mine[i] = at < n ? widen(x[at]) : 0.0F;
    finite = finite && isfinite(mine[i]);
    most = fmaxf(most, fabsf(mine[i]));
  }
  most = block_max(finite ? most : INFINITY);
  if (isinf(most)) {  // the sum is not finite either
    if (threadIdx.x == 0) atomicAdd(bins, static_cast<double>(INFINITY));
    return;
  }
  int exponent = -298;  // the largest square is below 2^exponent
  if (most > 0) (void)frexp(static_cast<double>(most) * static_cast<double>(most), &exponent);
  const int first = exponent > 256 ? 0 : (256 - exponent) / 20;
  double anchor[kBins], part[kBins] = {};
#pragma unroll
  for (int b = 0; b < kBins; ++b) anchor[b] = 1.5 * ldexp(1.0, 289 - 20 * (first + b));
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    double rest = static_cast<double>(mine[i]) * static_cast<double>(mine[i]);
#pragma unroll
    for (int b = 0; b < kBins; ++b) {
      const double p = (rest + anchor[b]) - anchor[b];
      part[b] += p;
      rest -= p;
    }
  }
#pragma unroll
  for (int b = 0; b < kBins; ++b) {
    const double sum = block_sum(part[b]);
    if (threadIdx.x == 0 && sum != 0) atomicAdd(bins + first + b, sum);
  }
}

__global__ void norm_finish_kernel(const double* bins, float clip, const StepScalars* scalars,
                                   NormResult* result) {
  double all = 0, sum = 0;
  for (int j = 0; j < reference::kSquareBins; ++j) all += bins[j];
  for (int j = 0; j + 2 < reference::kSquareBins; ++j) {
    if (bins[j] == 0) continue;
    sum = bins[j] + (bins[j + 1] + bins[j + 2]);
    break;
  }
  if (!isfinite(all)) sum = all;
  const double norm = sqrt(sum) / scalars->loss_scale;
  const double clipped = clip > 0 && norm > clip ? static_cast<double>(clip) / (norm + 1e-6) : 1.0;
  *result = {norm, static_cast<float>(clipped / scalars->loss_scale), isfinite(norm) ? 0 : 1};
}

}  // namespace

void add_squares(Stream stream, DType type, Index n, const void* x, double* bins) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "add_squares", {.blocks = cover(n, kThreads * kOfThread), .threads = kThreads},
           add_squares_kernel<T>, n, static_cast<const T*>(x), bins);
  });
}

void norm_finish(Stream stream, const double* bins, float clip, const StepScalars* scalars,
                 NormResult* result) {
  launch(stream, "norm_finish", {.blocks = 1, .threads = 1}, norm_finish_kernel, bins, clip, scalars, result);
}

}  // namespace orrery::kernels::cuda
