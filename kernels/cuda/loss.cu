// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over this rank's columns of the vocabulary, a block for each row. Floor, in elements of
// [rows, columns]: statistics 1; gradient 2.
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

struct Exponentials {
  float largest, sum;  // of exp(x - largest)
};
// Of both.
__device__ Exponentials joined(Exponentials a, Exponentials b) {
  const float most = fmaxf(a.largest, b.largest);
  return {most, a.sum * expf(a.largest - most) + b.sum * expf(b.largest - most)};
}
__device__ Exponentials of_none() {
  return {-3.402823466e38F, 0.0F};
}

template <class T, int V>
__global__ void loss_statistics_kernel(LossShape s, const T* logits, const std::int32_t* targets,
                                       float* statistics) {
  const std::int64_t r = blockIdx.x, n = valid(s);
  const T* const row = logits + r * s.columns;
  Exponentials mine = of_none();
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * V; j < n; j += blockDim.x * V) {
    float x[V];
    load(row + j, x);
    float most = mine.largest;
#pragma unroll
    for (int i = 0; i < V; ++i) most = j + i < n ? fmaxf(most, x[i]) : most;
    mine.sum *= expf(mine.largest - most);
    mine.largest = most;
#pragma unroll
    for (int i = 0; i < V; ++i) mine.sum += j + i < n ? expf(x[i] - most) : 0.0F;
  }
  mine = over_block(mine, of_none(), [](Exponentials x) {
#pragma unroll
    for (int mask = kWarp / 2; mask > 0; mask /= 2)
      x = joined(x, {__shfl_xor_sync(kFullMask, x.largest, mask), __shfl_xor_sync(kFullMask, x.sum, mask)});
    return x;
  });
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[r] - s.first;
  float* const to = statistics + r * reference::kLossStatistics;
  to[0] = mine.largest;
  to[1] = mine.sum;
  to[2] = target >= 0 && target < n ? widen(row[target]) : 0.0F;
}

// A thread takes a row of all ranks' statistics.
__global__ void loss_kernel(std::int64_t rows, std::int64_t ranks, const float* statistics,
                            float* normalizers, double* of_rows) {
  for (std::int64_t r = thread_of_grid(); r < rows; r += threads_of_grid()) {
    Exponentials all = of_none();
    float target = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const float* const of_rank = statistics + (rank * rows + r) * reference::kLossStatistics;
      all = joined(all, {of_rank[0], of_rank[1]});
      target += of_rank[2];
    }
    normalizers[2 * r] = all.largest;
    normalizers[2 * r + 1] = all.sum;
    of_rows[r] = log(static_cast<double>(all.sum)) - (static_cast<double>(target) - all.largest);
  }
}

__global__ void loss_total_kernel(std::int64_t rows, const double* of_rows, double* total) {
  double sum = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += blockDim.x) sum += of_rows[r];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

// A thread writes where it has read, so that the gradient may stand where the logits stood.
template <class T, int V>
__global__ void loss_grad_kernel(LossShape s, const T* logits, const float* normalizers,
                                 const std::int32_t* targets, float token_weight, const double* loss_scale,
                                 T* d_logits) {
  const std::int64_t r = blockIdx.x, at = r * s.columns, target = targets[r] - s.first, n = valid(s);
  const auto scale = static_cast<float>(token_weight * *loss_scale);
  const float most = normalizers[2 * r], factor = scale / normalizers[2 * r + 1];
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * V; j < s.columns; j += blockDim.x * V) {
    float x[V];
    load(logits + at + j, x);
#pragma unroll
    for (int i = 0; i < V; ++i)
      x[i] = (j + i < n ? factor * expf(x[i] - most) : 0.0F) - (j + i == target ? scale : 0.0F);
    store(x, d_logits + at + j);
  }
}

// A row of a vocabulary keeps many threads busy.
template <int V>
Grid rows_of(const LossShape& s) {
  return {.blocks = s.rows, .threads = threads_for(s.columns / V, 1024)};
}

}  // namespace

void loss_statistics(Stream stream, DType type, const LossShape& s, const void* logits,
                     const std::int32_t* targets, float* statistics) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(s.columns, {logits}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "loss_statistics", rows_of<V>(s), loss_statistics_kernel<T, V>, s,
             static_cast<const T*>(logits), targets, statistics);
    });
  });
}

std::size_t loss_workspace(Index rows) {
  return static_cast<std::size_t>(rows) * sizeof(double);
}

void loss(Stream stream, Index rows, Index ranks, const float* statistics, float* normalizers, double* total,
          Workspace workspace) {
  auto* const of_rows = static_cast<double*>(workspace.memory);
  launch(stream, "loss", {.blocks = strided_blocks(rows, 256)}, loss_kernel, rows, ranks, statistics,
         normalizers, of_rows);
  launch(stream, "loss", {.blocks = 1, .threads = 1024}, loss_total_kernel, rows, of_rows, total);
}

void loss_grad(Stream stream, DType type, const LossShape& s, const void* logits, const float* normalizers,
               const std::int32_t* targets, float token_weight, const double* loss_scale, void* d_logits) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(
        takes_vectors<T>(s.columns, {logits, d_logits}), [&]<int V>(std::integral_constant<int, V>) {
          launch(stream, "loss_grad", rows_of<V>(s), loss_grad_kernel<T, V>, s, static_cast<const T*>(logits),
                 normalizers, targets, token_weight, loss_scale, static_cast<T*>(d_logits));
        });
  });
}

}  // namespace orrery::kernels::cuda
