// SPDX-License-Identifier: Apache-2.0
//
// Sums over rows, for gradients of parameters that all rows share: blocks sum parts of the rows into fp32
// partial sums [parts, width], and a second kernel adds those up in their order. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {

// Parts so many that they fill a device, and their sums stay small beside the rows.
constexpr std::int64_t parts_of(std::int64_t rows, std::int64_t width) {
  return std::min(rows, std::clamp<std::int64_t>((std::int64_t{1} << 20) / width, 128, 1024));
}

inline constexpr int kColumnThreads = 8;  // that share a column's parts

template <class G>
__global__ void add_columns_kernel(std::int64_t parts, int width, const float* partial, G* sum,
                                   bool accumulate) {
  ORRERY_SHARED(of_threads, float[kColumnThreads][kWarp]);
  const int column = static_cast<int>(blockIdx.x) * kWarp + static_cast<int>(threadIdx.x);
  float x = 0;
  if (column < width) {
    for (std::int64_t p = threadIdx.y; p < parts; p += kColumnThreads) x += partial[p * width + column];
  }
  of_threads[threadIdx.y][threadIdx.x] = x;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int i = 1; i < kColumnThreads; ++i) x += of_threads[i][threadIdx.x];
  narrow(accumulate ? widen(sum[column]) + x : x, sum[column]);
}

template <class G>
void add_columns(Stream stream, std::int64_t parts, std::int64_t width, const float* partial, G* sum,
                 bool accumulate) {
  launch(stream, "add_columns",
         {.blocks = cover(width, kWarp), .threads = kWarp, .threads_y = kColumnThreads},
         add_columns_kernel<G>, parts, static_cast<int>(width), partial, sum, accumulate);
}

}  // namespace orrery::kernels::cuda
