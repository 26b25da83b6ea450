// SPDX-License-Identifier: Apache-2.0
//
// y = x + branch (+ biases), or x + drop(branch (+ bias)), over rows [rows, width], the gradient of dropping,
// and that of the bias. Floor: 3 rows width elements (x, branch, y) and a byte each for the mask; the
// gradient of dropping 2 and the mask; that of the bias 1.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/philox.h"

namespace orrery::kernels::cuda {
namespace {

template <class T, int V>
__global__ void residual_kernel(std::int64_t items, std::int64_t width, const T* x, const T* branch,
                                const T* bias, const T* other_bias, T* y) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float sum[V], other[V], b[V] = {}, b2[V] = {};
    load(x + i * V, sum);
    load(branch + i * V, other);
    if (bias != nullptr) load(bias + i * V % width, b);
    if (other_bias != nullptr) load(other_bias + i * V % width, b2);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += other[k] + (b[k] + b2[k]);
    store(sum, y + i * V);
  }
}

// A thread takes the four columns of one draw.
template <class T>
__global__ void dropout_residual_kernel(DropoutKey d, const Index* first_sample, DroppedRows s, const T* x,
                                        const T* branch, const T* bias, T* y, std::uint8_t* mask) {
  const std::int64_t of_row = (s.width + 3) / 4;
  for (std::int64_t i = thread_of_grid(); i < s.rows * of_row; i += threads_of_grid()) {
    const std::int64_t row = i / of_row, column = i % of_row * 4, token = s.first_row + row;
    const Kept kept =
        keep4(d, d.first_sample + *first_sample + token / s.seq, s.share.position(token % s.seq), column);
    for (int k = 0; k < 4 && column + k < s.width; ++k) {
      const std::int64_t at = row * s.width + column + k;
      const float whole = widen(branch[at]) + (bias != nullptr ? widen(bias[column + k]) : 0.0F);
      narrow(widen(x[at]) + whole * (kept.at[k] ? d.scale : 0.0F), y[at]);
      mask[at] = kept.at[k] ? 1 : 0;
    }
  }
}

template <class T>
__global__ void dropout_grad_kernel(float scale, std::int64_t n, const T* dy, const std::uint8_t* mask,
                                    T* dx) {
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid())
    narrow(widen(dy[i]) * (mask[i] != 0 ? scale : 0.0F), dx[i]);
}

constexpr int kRowThreads = 8;  // of a block that share its columns

// Block (tile of columns, part): columns of rows part, + parts, ...
template <class T, int V>
__global__ void bias_parts_kernel(std::int64_t rows, int width, const T* dy, float* parts) {
  ORRERY_SHARED(of_threads, float[kRowThreads][kWarp * V]);
  const int first = static_cast<int>(blockIdx.x) * kWarp * V, mine = static_cast<int>(threadIdx.x) * V;
  float sum[V] = {};
  if (first + mine < width) {
#pragma unroll 4
    for (std::int64_t r = static_cast<std::int64_t>(blockIdx.y) * kRowThreads + threadIdx.y; r < rows;
         r += static_cast<std::int64_t>(gridDim.y) * kRowThreads) {
      float x[V];
      load(dy + r * width + first + mine, x);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += x[i];
    }
  }
  for (int i = 0; i < V; ++i) of_threads[threadIdx.y][mine + i] = sum[i];
  __syncthreads();
  for (int j = thread_of_block(); j < kWarp * V && first + j < width; j += kWarp * kRowThreads) {
    float all = 0;
    for (const auto& of_thread : of_threads) all += of_thread[j];
    parts[static_cast<std::int64_t>(blockIdx.y) * width + first + j] = all;
  }
}

std::int64_t bias_parts(std::int64_t rows, std::int64_t width) {
  return parts_of(cover(rows, kRowThreads), width);
}

}  // namespace

void residual(Stream stream, DType type, Index rows, Index width, const void* x, const void* branch,
              std::array<const void*, 2> biases, void* y) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(width, {x, branch, biases[0], biases[1], y}),
                    [&]<int V>(std::integral_constant<int, V>) {
                      const std::int64_t items = rows * width / V;
                      launch(stream, "residual", {.blocks = strided_blocks(items, 256)},
                             residual_kernel<T, V>, items, width, static_cast<const T*>(x),
                             static_cast<const T*>(branch), static_cast<const T*>(biases[0]),
                             static_cast<const T*>(biases[1]), static_cast<T*>(y));
                    });
  });
}

void dropout_residual(Stream stream, DType type, const Dropout& d, const Index* first_sample,
                      const DroppedRows& s, const void* x, const void* branch, const void* bias, void* y,
                      std::uint8_t* mask) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "dropout_residual", {.blocks = strided_blocks(s.rows * cover(s.width, 4), 256)},
           dropout_residual_kernel<T>, key_of(d), first_sample, s, static_cast<const T*>(x),
           static_cast<const T*>(branch), static_cast<const T*>(bias), static_cast<T*>(y), mask);
  });
}

void dropout_grad(Stream stream, DType type, const Dropout& d, Index n, const void* dy,
                  const std::uint8_t* mask, void* dx) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "dropout_grad", {.blocks = strided_blocks(n, 256)}, dropout_grad_kernel<T>, d.scale(), n,
           static_cast<const T*>(dy), mask, static_cast<T*>(dx));
  });
}

std::size_t bias_grad_workspace(Index rows, Index width) {
  return static_cast<std::size_t>(bias_parts(rows, width) * width) * sizeof(float);
}

void bias_grad(Stream stream, DType type, DType gradient, Index rows, Index width, const void* dy, void* db,
               bool accumulate, Workspace workspace) {
  auto* const parts = static_cast<float*>(workspace.memory);
  const std::int64_t n = bias_parts(rows, width);
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    with_vectors<T>(takes_vectors<T>(width, {dy}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "bias_grad",
             {.blocks = cover(width, kWarp * V), .blocks_y = n, .threads = kWarp, .threads_y = kRowThreads},
             bias_parts_kernel<T, V>, rows, static_cast<int>(width), static_cast<const T*>(dy), parts);
    });
    add_columns(stream, n, width, parts, static_cast<G*>(db), accumulate);
  });
}

}  // namespace orrery::kernels::cuda
