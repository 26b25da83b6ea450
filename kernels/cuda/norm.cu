// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and RMSNorm over rows [rows, width], a block for each row, which stands in the first-level cache
// between its passes. Floor, in elements of the type: forward 2 rows width (x, y); backward 3 rows width (x,
// dy, dx), 4 with a residual. dw and db: each block sums its rows into fp32 partials, 2 parts_of(rows, width)
// width.
#include "kernels/cuda/columns.h"

namespace orrery::kernels::cuda {
namespace {

struct Moments {
  float mean, inverse_deviation;
};

template <int V, class T>
__device__ Moments moments(const T* row, int width, bool rms, float epsilon) {
  float x[V], sum = 0, square = 0;
  const int first = static_cast<int>(threadIdx.x) * V, stride = static_cast<int>(blockDim.x) * V;
  if (!rms) {
    for (int j = first; j < width; j += stride) {
      load(row + j, x);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += x[i];
    }
    sum = block_sum(sum);
  }
  const float mean = sum / static_cast<float>(width);
  for (int j = first; j < width; j += stride) {
    load(row + j, x);
#pragma unroll
    for (int i = 0; i < V; ++i) square += (x[i] - mean) * (x[i] - mean);
  }
  return {mean, rsqrtf(block_sum(square) / static_cast<float>(width) + epsilon)};
}

template <class T, int V>
__global__ void norm_kernel(int width, bool rms, float epsilon, const T* x, const T* w, const T* b, T* y) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * width;
  const Moments m = moments<V>(x + at, width, rms, epsilon);
  for (int j = static_cast<int>(threadIdx.x) * V; j < width; j += static_cast<int>(blockDim.x) * V) {
    float value[V], weight[V], bias[V] = {};
    load(x + at + j, value);
    load(w + j, weight);
    if (b != nullptr) load(b + j, bias);
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] = (value[i] - m.mean) * m.inverse_deviation * weight[i] + bias[i];
    store(value, y + at + j);
  }
}

// dx of rows blockIdx.x, + gridDim.x, ...: r (g - n mean(g n) - [mean(g) unless rms]) with n = (x - mean) r
// and g = dy w; and the block's share of dw = sum dy n and db = sum dy, in shared memory until the last row.
template <class T, int V>
__global__ void norm_grad_kernel(std::int64_t rows, int width, bool rms, float epsilon, const T* x,
                                 const T* w, const T* dy, const T* residual, T* dx, float* dw_parts,
                                 float* db_parts) {
  auto* const dw = dynamic_shared<float>();
  float* const db = dw + width;
  const int first = static_cast<int>(threadIdx.x) * V, stride = static_cast<int>(blockDim.x) * V;
  // Each thread has columns of its own here: no barrier is needed.
  for (int j = first; j < width; j += stride) {
    for (int i = 0; i < V; ++i) dw[j + i] = db[j + i] = 0;
  }
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const std::int64_t at = r * width;
    const Moments m = moments<V>(x + at, width, rms, epsilon);
    float value[V], weight[V], d[V], sum_g = 0, sum_gn = 0;
    for (int j = first; j < width; j += stride) {
      load(x + at + j, value);
      load(w + j, weight);
      load(dy + at + j, d);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float n = (value[i] - m.mean) * m.inverse_deviation, g = d[i] * weight[i];
        sum_g += g;
        sum_gn += g * n;
        dw[j + i] += d[i] * n;
        db[j + i] += d[i];
      }
    }
    const float mean_g = rms ? 0.0F : block_sum(sum_g) / static_cast<float>(width);
    const float mean_gn = block_sum(sum_gn) / static_cast<float>(width);
    for (int j = first; j < width; j += stride) {
      float also[V] = {};
      load(x + at + j, value);
      load(w + j, weight);
      load(dy + at + j, d);
      if (residual != nullptr) load(residual + at + j, also);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float n = (value[i] - m.mean) * m.inverse_deviation;
        value[i] = m.inverse_deviation * (d[i] * weight[i] - mean_g - n * mean_gn) + also[i];
      }
      store(value, dx + at + j);
    }
  }
  const std::int64_t part = static_cast<std::int64_t>(blockIdx.x) * width;
  for (int j = first; j < width; j += stride) {
    for (int i = 0; i < V; ++i) {
      dw_parts[part + j + i] = dw[j + i];
      if (db_parts != nullptr) db_parts[part + j + i] = db[j + i];
    }
  }
}

}  // namespace

void norm(Stream stream, DType type, const reference::NormShape& s, const void* x, const void* w,
          const void* b, void* y) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(s.width, {x, w, b, y}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "norm", {.blocks = s.rows, .threads = threads_for(s.width / V)}, norm_kernel<T, V>,
             static_cast<int>(s.width), s.rms, s.epsilon, static_cast<const T*>(x), static_cast<const T*>(w),
             static_cast<const T*>(b), static_cast<T*>(y));
    });
  });
}

std::size_t norm_grad_workspace(const reference::NormShape& s) {
  return static_cast<std::size_t>(2 * parts_of(s.rows, s.width) * s.width) * sizeof(float);
}

void norm_grad(Stream stream, DType type, DType gradient, const reference::NormShape& s, const void* x,
               const void* w, const void* dy, const void* residual, void* dx, void* dw, void* db,
               bool accumulate, Workspace workspace) {
  const std::int64_t parts = parts_of(s.rows, s.width);
  auto* const dw_parts = static_cast<float*>(workspace.memory);
  float* const db_parts = db == nullptr ? nullptr : dw_parts + parts * s.width;
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    with_vectors<T>(
        takes_vectors<T>(s.width, {x, w, dy, residual, dx}), [&]<int V>(std::integral_constant<int, V>) {
          const Grid grid{.blocks = parts,
                          .threads = threads_for(s.width / V),
                          .shared = 2 * static_cast<std::size_t>(s.width) * sizeof(float)};
          launch(stream, "norm_grad", grid, norm_grad_kernel<T, V>, s.rows, static_cast<int>(s.width), s.rms,
                 s.epsilon, static_cast<const T*>(x), static_cast<const T*>(w), static_cast<const T*>(dy),
                 static_cast<const T*>(residual), static_cast<T*>(dx), dw_parts, db_parts);
        });
    add_columns(stream, parts, s.width, dw_parts, static_cast<G*>(dw), accumulate);
    if (db != nullptr) add_columns(stream, parts, s.width, db_parts, static_cast<G*>(db), accumulate);
  });
}

}  // namespace orrery::kernels::cuda
