// SPDX-License-Identifier: Apache-2.0
//
// Embedding bags, whose gradient is in embedding.cu, and the loss of two towers (reference.h). Floor, in
// elements: bags a row for each id that a rank has, and one a sample; the loss reads both towers, its
// gradient reads and writes them.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

// Where an id's row stands among the rank's rows, or -1.
__device__ Index row_of(const reference::BagsShape& s, Index table, std::int32_t id) {
  const Index row = id - s.first_row, at = table - s.first_table;
  return row < 0 || row >= s.rows || at < 0 || at >= s.tables ? -1 : at * s.rows + row;
}

template <class T>
__global__ void bags_kernel(reference::BagsShape s, const std::int32_t* ids, const T* weight, T* y) {
  const Index each = s.all_tables * s.ids;
  for (Index i = thread_of_grid(); i < s.batch * s.width; i += threads_of_grid()) {
    const Index sample = i / s.width, column = i % s.width - s.first_column;
    float sum = 0;
    for (Index k = 0; k < each && column >= 0 && column < s.columns; ++k) {
      const Index row = row_of(s, k / s.ids, ids[sample * each + k]);
      if (row >= 0) sum += widen(weight[row * s.columns + column]);
    }
    narrow(sum, y[i]);
  }
}

template <class T>
__global__ void pair_loss_kernel(Index batch, Index width, const T* u, const T* v, const std::int32_t* labels,
                                 float* probabilities, double* losses) {
  for (Index b = thread_of_grid(); b < batch; b += threads_of_grid()) {
    float x = 0;
    for (Index j = 0; j < width; ++j) x += widen(u[b * width + j]) * widen(v[b * width + j]);
    losses[b] = static_cast<double>(fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)))) -
                (labels[b] != 0 ? static_cast<double>(x) : 0.0);
    probabilities[b] = 1 / (1 + expf(-x));
  }
}

// One thread, in order.
__global__ void pair_sum_kernel(Index batch, const double* losses, double* loss) {
  if (thread_of_grid() != 0) return;
  double sum = 0;
  for (Index b = 0; b < batch; ++b) sum += losses[b];
  *loss += sum;
}

template <class T>
__global__ void pair_loss_grad_kernel(Index batch, Index width, const T* u, const T* v,
                                      const std::int32_t* labels, const float* probabilities, float weight,
                                      const double* loss_scale, T* du, T* dv) {
  for (Index i = thread_of_grid(); i < batch * width; i += threads_of_grid()) {
    const Index b = i / width;
    const float d =
        (probabilities[b] - (labels[b] != 0 ? 1.0F : 0.0F)) * weight * static_cast<float>(*loss_scale);
    narrow(d * widen(v[i]), du[i]);
    narrow(d * widen(u[i]), dv[i]);
  }
}

}  // namespace

void bags(Stream stream, DType type, const reference::BagsShape& s, const std::int32_t* ids,
          const void* weight, void* y) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "bags", {.blocks = strided_blocks(s.batch * s.width, 256)}, bags_kernel<T>, s, ids,
           static_cast<const T*>(weight), static_cast<T*>(y));
  });
}

std::size_t pair_loss_workspace(Index batch) {
  return static_cast<std::size_t>(batch) * sizeof(double);
}

void pair_loss(Stream stream, DType type, Index batch, Index width, const void* u, const void* v,
               const std::int32_t* labels, float* probabilities, double* loss, Workspace workspace) {
  auto* const losses = static_cast<double*>(workspace.memory);
  with_type(type, [&]<class T>(T) {
    launch(stream, "pair_loss", {.blocks = strided_blocks(batch, 256)}, pair_loss_kernel<T>, batch, width,
           static_cast<const T*>(u), static_cast<const T*>(v), labels, probabilities, losses);
  });
  launch(stream, "pair_loss", {.blocks = 1}, pair_sum_kernel, batch, losses, loss);
}

void pair_loss_grad(Stream stream, DType type, Index batch, Index width, const void* u, const void* v,
                    const std::int32_t* labels, const float* probabilities, float weight,
                    const double* loss_scale, void* du, void* dv) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "pair_loss_grad", {.blocks = strided_blocks(batch * width, 256)}, pair_loss_grad_kernel<T>,
           batch, width, static_cast<const T*>(u), static_cast<const T*>(v), labels, probabilities, weight,
           loss_scale, static_cast<T*>(du), static_cast<T*>(dv));
  });
}

}  // namespace orrery::kernels::cuda
