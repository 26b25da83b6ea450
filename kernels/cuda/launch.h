// SPDX-License-Identifier: Apache-2.0
//
// How kernels are started, and what threads of a block do together. Sums have a fixed tree: the same bits in
// every run. Internal to kernels/cuda.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/kernels.h"

namespace orrery::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xffffffff;

struct Grid {
  std::int64_t blocks = 1, blocks_y = 1;
  int threads = 256, threads_y = 1;
  std::size_t shared = 0;  // bytes, of dynamic_shared()
};

// Blocks that cover n with `each`.
constexpr std::int64_t cover(std::int64_t n, std::int64_t each) {
  return (n + each - 1) / each;
}
// Threads for rows of n items: whole warps, at most `most`.
constexpr int threads_for(std::int64_t n, int most = 512) {
  return static_cast<int>(std::clamp<std::int64_t>(cover(n, kWarp) * kWarp, kWarp, most));
}
// Blocks of a kernel whose threads stride over what there is: enough to fill a device a few times.
constexpr std::int64_t strided_blocks(std::int64_t n, int threads) {
  return std::clamp<std::int64_t>(cover(n, threads), 1, 8192);
}

// A block gets 48 KiB without asking, what its kernel declares itself among them: never more than half.
constexpr bool asks_for_shared(std::size_t dynamic) {
  return dynamic > 24 << 10;
}

// A grid of zero blocks is nothing to do.
template <class... P, class... A>
void launch(Stream stream, const char* name, const Grid& g, void (*kernel)(P...), A... arguments) {
  if (g.blocks == 0 || g.blocks_y == 0) return;
  if (g.blocks > 0x7fffffff || g.blocks_y > 0xffff)
    throw Error(std::string(name) + ": more blocks than a device takes");
  const dim3 grid{static_cast<unsigned>(g.blocks), static_cast<unsigned>(g.blocks_y), 1};
  const dim3 block{static_cast<unsigned>(g.threads), static_cast<unsigned>(g.threads_y), 1};
#ifdef __CUDACC__
  if (asks_for_shared(g.shared)) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(g.shared)),
          name);
  }
  kernel<<<grid, block, g.shared, stream>>>(static_cast<P>(arguments)...);
  check(cudaGetLastError(), name);
#else
  const emulation::Shape shape{grid, block, g.shared, asks_for_shared(g.shared)};
  check(emulation::refusal(shape), name);
  emulation::enqueue(stream, [=] { emulation::run(shape, [=] { kernel(static_cast<P>(arguments)...); }); });
#endif
}

// Memory that a block shares: ORRERY_SHARED(sums, float[8][32]) declares an array. Nothing is in it.
#ifdef __CUDACC__
#define ORRERY_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
#else
#define ORRERY_SHARED(name, ...)                 \
  static std::type_identity_t<__VA_ARGS__> name; \
  emulation::declare_shared(&(name), sizeof(name))
#endif

template <class T>
__device__ T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(128) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
#else
  return reinterpret_cast<T*>(emulation::dynamic_shared());
#endif
}

__device__ inline int thread_of_block() {
  return static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
}
__device__ inline int lane_of_warp() {
  return thread_of_block() % kWarp;
}
// Of all threads of the grid's x axis, and how many there are.
__device__ inline std::int64_t thread_of_grid() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t threads_of_grid() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

template <class T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(kFullMask, x, mask);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, mask));
  return x;
}

// Combines the values of all threads of a block, of whole warps; each gets the result. `combine` reduces over
// a warp, where what is missing is `none`.
template <class T, class Combine>
__device__ T over_block(T x, T none, Combine combine) {
  ORRERY_SHARED(of_warps, T[kWarp]);
  const int thread = thread_of_block(), warps = static_cast<int>(blockDim.x * blockDim.y) / kWarp;
  x = combine(x);
  if (warps == 1) return x;
  __syncthreads();  // the last use of of_warps is over
  if (thread % kWarp == 0) of_warps[thread / kWarp] = x;
  __syncthreads();
  return combine(thread % kWarp < warps ? of_warps[thread % kWarp] : none);
}
template <class T>
__device__ T block_sum(T x) {
  return over_block(x, T{0}, [](T v) { return warp_sum(v); });
}
__device__ inline float block_max(float x) {
  return over_block(x, -3.402823466e38F, [](float v) { return warp_max(v); });
}

}  // namespace orrery::kernels::cuda
