// SPDX-License-Identifier: Apache-2.0
//
// The exact bins of kernels/cpu/reference.h, for a block of threads: it finds the largest of its elements,
// splits every square over the four bins below it, and adds each bin's sum, which is exact, to the whole.
// Internal to kernels/cuda.
#pragma once

#include "kernels/cpu/reference.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {

// Elements of a thread, `kBinThreads` apart.
inline constexpr int kBinThreads = 256, kBinElements = 16;
__device__ inline std::int64_t bin_element(std::int64_t block, int i) {
  return (block * kBinElements + i) * kBinThreads + threadIdx.x;
}

// Adds the squares of what the threads of the block have to the bins. All of them call it.
__device__ inline void add_block_squares(const float (&mine)[kBinElements], double* bins) {
  constexpr int kBins = 4;
  float most = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kBinElements; ++i) {
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
  for (int i = 0; i < kBinElements; ++i) {
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

__device__ inline double sum_of_bins(const double* bins) {
  double all = 0;
  for (int j = 0; j < reference::kSquareBins; ++j) all += bins[j];
  if (!isfinite(all)) return all;
  for (int j = 0; j + 2 < reference::kSquareBins; ++j) {
    if (bins[j] != 0) return bins[j] + (bins[j + 1] + bins[j + 2]);
  }
  return 0;
}

}  // namespace orrery::kernels::cuda
