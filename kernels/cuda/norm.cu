// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and RMSNorm over rows [rows, width], also of the sum that ends a residual branch. A row is read
// once, into the registers of a warp, or of a block where it is wide. Floor, in elements of the type: forward
// 2 rows width (x, y), of a sum 4 (x, branch, sum, y); backward 3 rows width
// (x, dy, dx), 4 with a residual. dw and db: each block sums its rows into fp32 partials, 2 grad_parts(rows,
// width) width.
#include "kernels/cuda/columns.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarpVectors = 4;     // the most that a thread of a warp holds of its row
constexpr int kWarps = 8;           // of a block whose warps have rows of their own
constexpr int kBlockThreads = 512;  // the most that share a row

// A thread's part of a row: vector k is the row's (k threads + thread)th.
template <int V, int K>
struct Part {
  float at[K][V];
};
__device__ inline int column(int vector, int elements) {
  return (vector * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * elements;
}
// The same as it stands in memory, so that all of it is read before any of it is widened. What is behind the
// row's end is zero.
template <class T, int V, int K>
struct Read {
  __device__ void from(const T* row, int width) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k, V) < width) at[k] = *reinterpret_cast<const Pack<T, V>*>(row + column(k, V));
    }
  }
  __device__ Part<V, K> widened() const {
    Part<V, K> out;
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < V; ++i) out.at[k][i] = widen(at[k].at[i]);
    }
    return out;
  }
  Pack<T, V> at[K] = {};
};
template <bool kWarpRow>
__device__ float row_total(float x) {
  return kWarpRow ? warp_sum(x) : block_sum(x);
}
template <bool kWarpRow>
__device__ float2 row_totals(float2 x) {
  const auto of_warp = [](float2 v) { return float2{warp_sum(v.x), warp_sum(v.y)}; };
  return kWarpRow ? of_warp(x) : over_block(x, float2{0, 0}, of_warp);
}

struct Moments {
  float mean, inverse_deviation;
};

template <bool kWarpRow, int V, int K>
__device__ Moments moments(const Part<V, K>& x, int width, bool rms, float epsilon) {
  float sum = 0, square = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < V; ++i) sum += x.at[k][i];
  }
  const float mean = rms ? 0.0F : row_total<kWarpRow>(sum) / static_cast<float>(width);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k, V) >= width) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) square += (x.at[k][i] - mean) * (x.at[k][i] - mean);
  }
  return {mean, rsqrtf(row_total<kWarpRow>(square) / static_cast<float>(width) + epsilon)};
}

// What x is the sum with, and where the sum is kept.
template <class T>
struct Summed {
  const T *branch, *bias, *other_bias;
  T* sum;
};
// The same bits as residual.cu: rounded as it is kept.
template <class T, int V, int K>
__device__ void add_branch(const Summed<T>& s, std::int64_t row, int width, Part<V, K>& value) {
  Read<T, V, K> branch;
  branch.from(s.branch + row * width, width);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int j = column(k, V);
    if (j >= width) continue;
    float b[V] = {}, other[V] = {};
    if (s.bias != nullptr) load(s.bias + j, b);
    if (s.other_bias != nullptr) load(s.other_bias + j, other);
    Pack<T, V> kept;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      narrow(value.at[k][i] + (widen(branch.at[k].at[i]) + (b[i] + other[i])), kept.at[i]);
      value.at[k][i] = widen(kept.at[i]);
    }
    *reinterpret_cast<Pack<T, V>*>(s.sum + row * width + j) = kept;
  }
}

template <class T, int V, int K, bool kWarpRow, bool kSums>
__global__ void __launch_bounds__(kWarpRow ? kWarps* kWarp : kBlockThreads)
    norm_kernel(std::int64_t rows, int width, bool rms, float epsilon, const T* x, Summed<T> with, const T* w,
                const T* b, T* y) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // a whole warp
  Read<T, V, K> read;
  read.from(x + row * width, width);
  Part<V, K> value = read.widened();
  if constexpr (kSums) add_branch(with, row, width, value);
  const Moments m = moments<kWarpRow>(value, width, rms, epsilon);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int j = column(k, V);
    if (j >= width) continue;
    float weight[V], bias[V] = {};
    load(w + j, weight);
    if (b != nullptr) load(b + j, bias);
#pragma unroll
    for (int i = 0; i < V; ++i)
      value.at[k][i] = (value.at[k][i] - m.mean) * m.inverse_deviation * weight[i] + bias[i];
    store(value.at[k], y + row * width + j);
  }
}

// The sum over the block's warps of what each holds, in their order, to `to` [width].
template <int V, int K, bool kWarpRow>
__device__ void store_sums(const Part<V, K>& sums, int width, float* to) {
  if constexpr (!kWarpRow) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k, V) >= width) continue;
      for (int i = 0; i < V; ++i) to[column(k, V) + i] = sums.at[k][i];
    }
  } else {
    auto* const of_warps = dynamic_shared<float>();  // [warps, width]
    __syncthreads();                                 // its last use is over
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k, V) >= width) continue;
      for (int i = 0; i < V; ++i) of_warps[threadIdx.y * width + column(k, V) + i] = sums.at[k][i];
    }
    __syncthreads();
    for (int j = thread_of_block(); j < width; j += static_cast<int>(blockDim.x * blockDim.y)) {
      float sum = 0;
      for (unsigned warp = 0; warp < blockDim.y; ++warp) sum += of_warps[warp * width + j];
      to[j] = sum;
    }
  }
}

// dx of rows: r (g - n mean(g n) - [mean(g) unless rms]) with n = (x - mean) r and g = dy w; and the block's
// share of dw = sum dy n and db = sum dy.
template <class T, int V, int K, bool kWarpRow>
__global__ void __launch_bounds__(kWarpRow ? kWarps* kWarp : kBlockThreads)
    norm_grad_kernel(std::int64_t rows, int width, bool rms, float epsilon, const T* x, const T* w,
                     const T* dy, const T* residual, T* dx, float* dw_parts, float* db_parts) {
  Part<V, K> dw{}, db{};
  for (std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; r < rows;
       r += static_cast<std::int64_t>(gridDim.x) * blockDim.y) {
    Read<T, V, K> of_x, of_dy, also;
    of_x.from(x + r * width, width);
    of_dy.from(dy + r * width, width);
    if (residual != nullptr) also.from(residual + r * width, width);
    Part<V, K> n = of_x.widened(), d = of_dy.widened();
    const Moments m = moments<kWarpRow>(n, width, rms, epsilon);
    float sum_g = 0, sum_gn = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k, V) >= width) continue;
      float weight[V];
      load(w + column(k, V), weight);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        n.at[k][i] = (n.at[k][i] - m.mean) * m.inverse_deviation;
        dw.at[k][i] += d.at[k][i] * n.at[k][i];
        db.at[k][i] += d.at[k][i];
        d.at[k][i] *= weight[i];
        sum_g += d.at[k][i];
        sum_gn += d.at[k][i] * n.at[k][i];
      }
    }
    const float2 sums = row_totals<kWarpRow>({sum_g, sum_gn});
    const float mean_g = rms ? 0.0F : sums.x / static_cast<float>(width);
    const float mean_gn = sums.y / static_cast<float>(width);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int j = column(k, V);
      if (j >= width) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        d.at[k][i] =
            m.inverse_deviation * (d.at[k][i] - mean_g - n.at[k][i] * mean_gn) + widen(also.at[k].at[i]);
      }
      store(d.at[k], dx + r * width + j);
    }
  }
  const std::int64_t part = static_cast<std::int64_t>(blockIdx.x) * width;
  store_sums<V, K, kWarpRow>(dw, width, dw_parts + part);
  if (db_parts != nullptr) store_sums<V, K, kWarpRow>(db, width, db_parts + part);
}

// Calls f with the vectors that a thread holds of a row of `width`, whether a warp has the row, and the
// threads that share it.
template <int V, class F>
void with_sharing(std::int64_t width, F f) {
  const std::int64_t vectors = cover(width, V);
  const auto of_warp = [&]<int K>(std::integral_constant<int, K> held) { f(held, std::true_type{}, kWarp); };
  if (vectors <= kWarp) return of_warp(std::integral_constant<int, 1>{});
  if (vectors <= 2 * kWarp) return of_warp(std::integral_constant<int, 2>{});
  if (vectors <= 3 * kWarp) return of_warp(std::integral_constant<int, 3>{});
  if (vectors <= kWarpVectors * kWarp) return of_warp(std::integral_constant<int, kWarpVectors>{});
  const auto of_block = [&]<int K>(std::integral_constant<int, K> held) {
    f(held, std::false_type{}, threads_for(cover(vectors, K), kBlockThreads));
  };
  if (vectors <= 2 * kBlockThreads) return of_block(std::integral_constant<int, 2>{});
  if (vectors <= 4 * kBlockThreads) return of_block(std::integral_constant<int, 4>{});
  constexpr int kMost = 64 / V;  // rows of 32,768 elements, in local memory in part
  if (vectors > kMost * kBlockThreads) throw Error("rows of more than 32,768 elements are not normalised");
  of_block(std::integral_constant<int, kMost>{});
}

// Blocks whose threads fill some hundred multiprocessors: each has sums of its own.
std::int64_t grad_parts(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kFull = 264, kElements = 2 * 8 * kWarp;  // of a warp that shares a row with others
  const std::int64_t warps = std::clamp<std::int64_t>(cover(width, kElements), 1, kBlockThreads / kWarp);
  return std::min(rows, width <= 8 * kWarpVectors * kWarp ? kFull : kFull * kWarps / warps);
}

template <bool kSums, class T>
void start_norm(Stream stream, const char* name, const reference::NormShape& s, const T* x,
                const Summed<T>& with, const T* w, const T* b, T* y) {
  const bool vectors =
      takes_vectors<T>(s.width, {x, with.branch, with.bias, with.other_bias, with.sum, w, b, y});
  with_vectors<T>(vectors, [&]<int V>(std::integral_constant<int, V>) {
    with_sharing<V>(s.width, [&]<int K, class W>(std::integral_constant<int, K>, W, int threads) {
      const int warps = W::value ? kWarps : 1;
      launch(stream, name, {.blocks = cover(s.rows, warps), .threads = threads, .threads_y = warps},
             norm_kernel<T, V, K, W::value, kSums>, s.rows, static_cast<int>(s.width), s.rms, s.epsilon, x,
             with, w, b, y);
    });
  });
}

}  // namespace

void norm(Stream stream, DType type, const reference::NormShape& s, const void* x, const void* w,
          const void* b, void* y) {
  with_type(type, [&]<class T>(T) {
    start_norm<false, T>(stream, "norm", s, static_cast<const T*>(x), {}, static_cast<const T*>(w),
                         static_cast<const T*>(b), static_cast<T*>(y));
  });
}

void residual_norm(Stream stream, DType type, const reference::NormShape& s, const void* x,
                   const void* branch, std::array<const void*, 2> biases, const void* w, const void* b,
                   void* sum, void* y) {
  with_type(type, [&]<class T>(T) {
    const auto read = [](const void* p) { return static_cast<const T*>(p); };
    start_norm<true, T>(stream, "residual_norm", s, read(x),
                        {read(branch), read(biases[0]), read(biases[1]), static_cast<T*>(sum)}, read(w),
                        read(b), static_cast<T*>(y));
  });
}

std::size_t norm_grad_workspace(const reference::NormShape& s) {
  return static_cast<std::size_t>(2 * grad_parts(s.rows, s.width) * s.width) * sizeof(float);
}

void norm_grad(Stream stream, DType type, DType gradient, const reference::NormShape& s, const void* x,
               const void* w, const void* dy, const void* residual, void* dx, void* dw, void* db,
               bool accumulate, Workspace workspace) {
  const std::int64_t parts = grad_parts(s.rows, s.width);
  auto* const dw_parts = static_cast<float*>(workspace.memory);
  float* const db_parts = db == nullptr ? nullptr : dw_parts + parts * s.width;
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    with_vectors<T>(takes_vectors<T>(s.width, {x, w, dy, residual, dx}), [&]<int V>(
                                                                             std::integral_constant<int, V>) {
      with_sharing<V>(s.width, [&]<int K, class W>(std::integral_constant<int, K>, W, int threads) {
        const int warps = W::value ? kWarps : 1;
        const Grid grid{.blocks = parts,
                        .threads = threads,
                        .threads_y = warps,
                        .shared = W::value ? static_cast<std::size_t>(warps * s.width) * sizeof(float) : 0};
        launch(stream, "norm_grad", grid, norm_grad_kernel<T, V, K, W::value>, s.rows,
               static_cast<int>(s.width), s.rms, s.epsilon, static_cast<const T*>(x),
               static_cast<const T*>(w), static_cast<const T*>(dy), static_cast<const T*>(residual),
               static_cast<T*>(dx), dw_parts, db_parts);
      });
    });
    add_columns(stream, parts, s.width, dw_parts, static_cast<G*>(dw), accumulate);
    if (db != nullptr) add_columns(stream, parts, s.width, db_parts, static_cast<G*>(db), accumulate);
  });
}

}  // namespace orrery::kernels::cuda
