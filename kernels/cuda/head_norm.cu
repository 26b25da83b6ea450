// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm of each query and key head of fused rows [q heads | k heads | v heads]; value heads are copied. A
// warp has a head in registers where all heads are alike and have at most 512 elements; others, as all query
// heads that are normed together, are read twice by a block. Floor: 2 rows width elements forward, 3
// backward.
#include "kernels/cuda/columns.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 8;                 // of a block
constexpr int kMostOfLane = 512 / kWarp;  // elements of a head

struct Heads {
  std::int64_t rows;
  int width, heads, kv, head, kv_head;
  float epsilon;
  __device__ int slots() const { return width / head; }
  // Of one of them by a number that counts query heads, then key heads, then what is copied.
  struct Span {
    int from, width, weight;
    bool normed;
  };
  __host__ __device__ int spans() const { return heads + kv + 1; }
  __device__ Span span(int i) const {
    const int keys = heads * head, rest = keys + kv * kv_head;
    if (i < heads) return {i * head, head, 0, true};
    if (i < heads + kv) return {keys + (i - heads) * kv_head, kv_head, head, true};
    return {rest, width - rest, 0, false};
  }
};

// Of the lane: elements lane, lane + 32, ... of a head.
template <class T>
__device__ void load_head(const T* from, int head, float (&x)[kMostOfLane]) {
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int j = i * kWarp + lane_of_warp();
    x[i] = j < head ? widen(from[j]) : 0.0F;
  }
}
template <class T>
__device__ void store_head(const float (&x)[kMostOfLane], int head, T* to) {
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int j = i * kWarp + lane_of_warp();
    if (j < head) narrow(x[i], to[j]);
  }
}
// Without weights they are ones.
template <class T>
__device__ void load_weight(const T* w, int which, int head, float (&weight)[kMostOfLane]) {
  if (w != nullptr) return load_head(w + which, head, weight);
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) weight[i] = 1;
}
__device__ float inverse_deviation(const float (&x)[kMostOfLane], const Heads& s) {
  float square = 0;
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) square += x[i] * x[i];
  return rsqrtf(warp_sum(square) / static_cast<float>(s.head) + s.epsilon);
}

template <class T>
__global__ void head_norm_kernel(Heads s, const T* x, const T* w, T* y) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (item >= s.rows * s.slots()) return;
  const int slot = static_cast<int>(item % s.slots());
  float value[kMostOfLane], weight[kMostOfLane];
  load_head(x + item * s.head, s.head, value);
  if (slot < s.heads + s.kv) {
    load_weight(w, slot < s.heads ? 0 : s.head, s.head, weight);
    const float r = inverse_deviation(value, s);
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) value[i] *= r * weight[i];
  }
  store_head(value, s.head, y + item * s.head);
}

// Warps take items in turn; their shares of dw [2, head] meet in shared memory, in the order of warps.
template <class T>
__global__ void head_norm_grad_kernel(Heads s, const T* x, const T* w, const T* dy, T* dx, float* dw_parts) {
  auto* const dw = dynamic_shared<float>();  // [warps, 2, head]
  float* const mine = dw + static_cast<int>(threadIdx.y) * 2 * s.head;
  // Each lane has elements of its own: no barrier is needed.
  for (int j = lane_of_warp(); j < s.head; j += kWarp) mine[j] = mine[s.head + j] = 0;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
       item < s.rows * s.slots(); item += warps) {
    const int slot = static_cast<int>(item % s.slots());
    const int which = slot < s.heads ? 0 : s.head;
    float value[kMostOfLane], weight[kMostOfLane], d[kMostOfLane];
    load_head(dy + item * s.head, s.head, d);
    if (slot < s.heads + s.kv) {
      load_head(x + item * s.head, s.head, value);
      load_weight(w, which, s.head, weight);
      const float r = inverse_deviation(value, s);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kMostOfLane; ++i) {
        value[i] *= r;
        const int j = i * kWarp + lane_of_warp();
        if (j < s.head) mine[which + j] += d[i] * value[i];
        sum += d[i] * weight[i] * value[i];
      }
      const float mean = warp_sum(sum) / static_cast<float>(s.head);
#pragma unroll
      for (int i = 0; i < kMostOfLane; ++i) d[i] = r * (d[i] * weight[i] - value[i] * mean);
    }
    store_head(d, s.head, dx + item * s.head);
  }
  __syncthreads();
  for (int j = thread_of_block(); j < 2 * s.head; j += kWarps * kWarp) {
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += dw[warp * 2 * s.head + j];
    dw_parts[static_cast<std::int64_t>(blockIdx.x) * 2 * s.head + j] = sum;
  }
}

template <class T>
__device__ float wide_inverse_deviation(const T* x, int width, float epsilon) {
  float square = 0;
  for (int j = threadIdx.x; j < width; j += blockDim.x) square += widen(x[j]) * widen(x[j]);
  return rsqrtf(block_sum(square) / static_cast<float>(width) + epsilon);
}

template <class T>
__global__ void wide_head_norm_kernel(Heads s, const T* x, const T* w, T* y) {
  const std::int64_t row = blockIdx.x / s.spans();
  const Heads::Span span = s.span(static_cast<int>(blockIdx.x % s.spans()));
  x += row * s.width + span.from;
  y += row * s.width + span.from;
  if (!span.normed) {
    for (int j = threadIdx.x; j < span.width; j += blockDim.x) y[j] = x[j];
    return;
  }
  const float r = wide_inverse_deviation(x, span.width, s.epsilon);
  for (int j = threadIdx.x; j < span.width; j += blockDim.x)
    narrow(widen(x[j]) * r * (w != nullptr ? widen(w[span.weight + j]) : 1.0F), y[j]);
}

// A thread has the same columns of a head in all rows of its block, and so of dw_parts.
template <class T>
__global__ void wide_head_norm_grad_kernel(Heads s, const T* x, const T* w, const T* dy, T* dx,
                                           float* dw_parts) {
  float* const dw =
      w != nullptr ? dw_parts + blockIdx.x * static_cast<std::int64_t>(s.head + s.kv_head) : nullptr;
  for (int i = 0; dw != nullptr && i < s.spans() - 1; ++i) {
    const Heads::Span span = s.span(i);
    for (int j = threadIdx.x; j < span.width; j += blockDim.x) dw[span.weight + j] = 0;
  }
  for (std::int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    for (int i = 0; i < s.spans(); ++i) {
      const Heads::Span span = s.span(i);
      const std::int64_t at = row * s.width + span.from;
      if (!span.normed) {
        for (int j = threadIdx.x; j < span.width; j += blockDim.x) dx[at + j] = dy[at + j];
        continue;
      }
      const float r = wide_inverse_deviation(x + at, span.width, s.epsilon);
      const auto weight = [&](int j) { return w != nullptr ? widen(w[span.weight + j]) : 1.0F; };
      float sum = 0;
      for (int j = threadIdx.x; j < span.width; j += blockDim.x) {
        const float d = widen(dy[at + j]), n = widen(x[at + j]) * r;
        if (dw != nullptr) dw[span.weight + j] += d * n;
        sum += d * weight(j) * n;
      }
      const float mean = block_sum(sum) / static_cast<float>(span.width);
      for (int j = threadIdx.x; j < span.width; j += blockDim.x)
        narrow(r * (widen(dy[at + j]) * weight(j) - widen(x[at + j]) * r * mean), dx[at + j]);
    }
  }
}

Heads heads_of(const reference::HeadNormShape& s) {
  return {s.rows,
          static_cast<int>(s.width),
          static_cast<int>(s.heads),
          static_cast<int>(s.kv),
          static_cast<int>(s.head),
          static_cast<int>(s.kv_head),
          s.epsilon};
}
constexpr int kWideThreads = 256;
bool is_wide(const reference::HeadNormShape& s) {
  return s.head > kMostOfLane * kWarp || s.head != s.kv_head;
}
std::int64_t items(const reference::HeadNormShape& s) {
  return s.rows * (s.width / s.head);
}
std::int64_t parts(const reference::HeadNormShape& s) {
  return parts_of(is_wide(s) ? s.rows : cover(items(s), kWarps), s.head + s.kv_head);
}

}  // namespace

void head_norm(Stream stream, DType type, const reference::HeadNormShape& s, const void* x, const void* w,
               void* y) {
  with_type(type, [&]<class T>(T) {
    if (is_wide(s)) {
      const Heads heads = heads_of(s);
      launch(stream, "head_norm", {.blocks = s.rows * heads.spans(), .threads = kWideThreads},
             wide_head_norm_kernel<T>, heads, static_cast<const T*>(x), static_cast<const T*>(w),
             static_cast<T*>(y));
      return;
    }
    launch(stream, "head_norm", {.blocks = cover(items(s), kWarps), .threads = kWarp, .threads_y = kWarps},
           head_norm_kernel<T>, heads_of(s), static_cast<const T*>(x), static_cast<const T*>(w),
           static_cast<T*>(y));
  });
}

std::size_t head_norm_grad_workspace(const reference::HeadNormShape& s) {
  return static_cast<std::size_t>(parts(s) * (s.head + s.kv_head)) * sizeof(float);
}

void head_norm_grad(Stream stream, DType type, DType gradient, const reference::HeadNormShape& s,
                    const void* x, const void* w, const void* dy, void* dx, void* dw, bool accumulate,
                    Workspace workspace) {
  auto* const dw_parts = static_cast<float*>(workspace.memory);
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    const Grid grid{.blocks = parts(s),
                    .threads = kWarp,
                    .threads_y = kWarps,
                    .shared = static_cast<std::size_t>(kWarps * 2 * s.head) * sizeof(float)};
    if (is_wide(s))
      launch(stream, "head_norm_grad", {.blocks = parts(s), .threads = kWideThreads},
             wide_head_norm_grad_kernel<T>, heads_of(s), static_cast<const T*>(x), static_cast<const T*>(w),
             static_cast<const T*>(dy), static_cast<T*>(dx), dw_parts);
    else
      launch(stream, "head_norm_grad", grid, head_norm_grad_kernel<T>, heads_of(s), static_cast<const T*>(x),
             static_cast<const T*>(w), static_cast<const T*>(dy), static_cast<T*>(dx), dw_parts);
    if (w != nullptr)
      add_columns(stream, parts(s), s.head + s.kv_head, dw_parts, static_cast<G*>(dw), accumulate);
  });
}

}  // namespace orrery::kernels::cuda
