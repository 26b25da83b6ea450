// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over this rank's columns of the vocabulary, a block for each row; between the passes sums go
// over tensor ranks. Floor, in elements of [rows, columns]: largest 1; sum 2; loss 2; gradient 2.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

using reference::LossShape;

// Columns of the row that are not padding.
__device__ std::int64_t valid(const LossShape& s) {
  const std::int64_t left = s.vocab - s.first;
  return left < 0 ? 0 : left < s.columns ? left : s.columns;
}

template <class T, int V>
__global__ void loss_max_kernel(LossShape s, const T* logits, float* largest) {
  const T* const row = logits + static_cast<std::int64_t>(blockIdx.x) * s.columns;
  const std::int64_t n = valid(s);
  float most = -3.402823466e38F;
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * V; j < n; j += blockDim.x * V) {
    float x[V];
    load(row + j, x);
#pragma unroll
    for (int i = 0; i < V; ++i) most = j + i < n ? fmaxf(most, x[i]) : most;
  }
  most = block_max(most);
  if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

template <class T, class K, int V>
__global__ void loss_sum_kernel(LossShape s, const T* logits, const float* largest,
                                const std::int32_t* targets, K* probabilities, float* sums) {
  const std::int64_t r = blockIdx.x, at = r * s.columns, n = valid(s);
  const float most = largest[r];
  float sum = 0;
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * V; j < s.columns; j += blockDim.x * V) {
    float x[V];
    load(logits + at + j, x);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      x[i] = j + i < n ? expf(x[i] - most) : 0.0F;
      sum += x[i];
    }
    store(x, probabilities + at + j);
  }
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[r] - s.first;
  sums[2 * r] = sum;
  sums[2 * r + 1] = target >= 0 && target < n ? widen(logits[at + target]) - most : 0.0F;
}

template <class K, int V>
__global__ void loss_kernel(LossShape s, const float* sums, K* probabilities, double* of_rows) {
  const std::int64_t r = blockIdx.x, at = r * s.columns;
  const float sum = sums[2 * r];
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * V; j < s.columns; j += blockDim.x * V) {
    float x[V];
    load(probabilities + at + j, x);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] /= sum;
    store(x, probabilities + at + j);
  }
  if (threadIdx.x == 0) of_rows[r] = log(static_cast<double>(sum)) - static_cast<double>(sums[2 * r + 1]);
}

__global__ void loss_total_kernel(std::int64_t rows, const double* of_rows, double* total) {
  double sum = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += blockDim.x) sum += of_rows[r];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

template <class K, class T, int V>
__global__ void loss_grad_kernel(LossShape s, const K* probabilities, const std::int32_t* targets,
                                 float token_weight, const double* loss_scale, T* d_logits) {
  const std::int64_t r = blockIdx.x, at = r * s.columns, target = targets[r] - s.first;
  const auto scale = static_cast<float>(token_weight * *loss_scale);
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * V; j < s.columns; j += blockDim.x * V) {
    float x[V];
    load(probabilities + at + j, x);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = scale * (x[i] - (j + i == target ? 1.0F : 0.0F));
    store(x, d_logits + at + j);
  }
}

// A row of a vocabulary keeps many threads busy.
template <int V>
Grid rows_of(const LossShape& s) {
  return {.blocks = s.rows, .threads = threads_for(s.columns / V, 1024)};
}

}  // namespace

void loss_max(Stream stream, DType type, const LossShape& s, const void* logits, float* largest) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(s.columns, {logits}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "loss_max", rows_of<V>(s), loss_max_kernel<T, V>, s, static_cast<const T*>(logits),
             largest);
    });
  });
}

void loss_sum(Stream stream, DType type, DType kept, const LossShape& s, const void* logits,
              const float* largest, const std::int32_t* targets, void* probabilities, float* sums) {
  with_types(type, kept, [&]<class T, class K>(T, K) {
    with_vectors<T>(
        takes_vectors<T>(s.columns, {logits, probabilities}), [&]<int V>(std::integral_constant<int, V>) {
          launch(stream, "loss_sum", rows_of<V>(s), loss_sum_kernel<T, K, V>, s,
                 static_cast<const T*>(logits), largest, targets, static_cast<K*>(probabilities), sums);
        });
  });
}

std::size_t loss_workspace(const LossShape& s) {
  return static_cast<std::size_t>(s.rows) * sizeof(double);
}

void loss(Stream stream, DType kept, const LossShape& s, const float* sums, void* probabilities,
          double* total, Workspace workspace) {
  auto* const of_rows = static_cast<double*>(workspace.memory);
  with_type(kept, [&]<class K>(K) {
    with_vectors<K>(takes_vectors<K>(s.columns, {probabilities}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "loss", rows_of<V>(s), loss_kernel<K, V>, s, sums, static_cast<K*>(probabilities),
             of_rows);
    });
  });
  launch(stream, "loss", {.blocks = 1, .threads = 1024}, loss_total_kernel, s.rows, of_rows, total);
}

void loss_grad(Stream stream, DType type, DType kept, const LossShape& s, const void* probabilities,
               const std::int32_t* targets, float token_weight, const double* loss_scale, void* d_logits) {
  with_types(type, kept, [&]<class T, class K>(T, K) {
    with_vectors<T>(takes_vectors<T>(s.columns, {probabilities, d_logits}),
                    [&]<int V>(std::integral_constant<int, V>) {
                      launch(stream, "loss_grad", rows_of<V>(s), loss_grad_kernel<K, T, V>, s,
                             static_cast<const K*>(probabilities), targets, token_weight, loss_scale,
                             static_cast<T*>(d_logits));
                    });
  });
}

}  // namespace orrery::kernels::cuda
