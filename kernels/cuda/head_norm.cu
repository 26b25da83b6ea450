// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm of each query and key head of fused rows [q heads | k heads | v heads], a warp for each head; value
// heads are copied. Floor: 2 rows width elements forward, 3 backward. Heads have at most 512 elements.
#include "kernels/cuda/columns.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 8;                 // of a block
constexpr int kMostOfLane = 512 / kWarp;  // elements of a head

struct Heads {
  std::int64_t rows;
  int width, heads, kv, head;
  float epsilon;
  __device__ int slots() const { return width / head; }
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
    load_head(w + (slot < s.heads ? 0 : s.head), s.head, weight);
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
      load_head(w + which, s.head, weight);
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

Heads heads_of(const reference::HeadNormShape& s) {
  if (s.head > kMostOfLane * kWarp) throw Error("heads of more than 512 elements are not normalised here");
  return {s.rows,
          static_cast<int>(s.width),
          static_cast<int>(s.heads),
          static_cast<int>(s.kv),
          static_cast<int>(s.head),
          s.epsilon};
}
std::int64_t items(const reference::HeadNormShape& s) {
  return s.rows * (s.width / s.head);
}
std::int64_t parts(const reference::HeadNormShape& s) {
  return parts_of(cover(items(s), kWarps), 2 * s.head);
}

}  // namespace

void head_norm(Stream stream, DType type, const reference::HeadNormShape& s, const void* x, const void* w,
               void* y) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "head_norm", {.blocks = cover(items(s), kWarps), .threads = kWarp, .threads_y = kWarps},
           head_norm_kernel<T>, heads_of(s), static_cast<const T*>(x), static_cast<const T*>(w),
           static_cast<T*>(y));
  });
}

std::size_t head_norm_grad_workspace(const reference::HeadNormShape& s) {
  return static_cast<std::size_t>(parts(s) * 2 * s.head) * sizeof(float);
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
    launch(stream, "head_norm_grad", grid, head_norm_grad_kernel<T>, heads_of(s), static_cast<const T*>(x),
           static_cast<const T*>(w), static_cast<const T*>(dy), static_cast<T*>(dx), dw_parts);
    add_columns(stream, parts(s), 2 * s.head, dw_parts, static_cast<G*>(dw), accumulate);
  });
}

}  // namespace orrery::kernels::cuda
