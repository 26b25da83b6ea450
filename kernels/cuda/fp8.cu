// SPDX-License-Identifier: Apache-2.0
//
// Two passes over an operand of n elements: its largest magnitude, then its elements in 8 bits. Floor: n
// elements read twice and n bytes written. Without transposition a thread takes as many elements as it reads
// in 16 bytes; with it a block turns tiles of 64 x 64 bytes over in shared memory, in words of four.
#include "kernels/cuda/fp8.h"

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

namespace orrery::kernels::cuda {
namespace {

constexpr int kTile = 64, kTileThreads = 8;

__device__ inline std::uint32_t warp_max_bits(std::uint32_t x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kFullMask, x, mask);
    x = x > other ? x : other;
  }
  return x;
}

template <class T, int V>
__global__ void largest_kernel(std::int64_t items, const T* x, std::uint32_t* largest) {
  std::uint32_t mine = 0;
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float v[V];
    load(x + i * V, v);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const std::uint32_t bits = __float_as_uint(v[k]) & 0x7fffffff;
      mine = mine > bits ? mine : bits;
    }
  }
  mine = over_block(mine, 0U, [](std::uint32_t b) { return warp_max_bits(b); });
  if (threadIdx.x == 0) atomicMax(largest, mine);
}

// fp8_factor of kernels/cpu/fp8.h.
__device__ inline float factor_of(Fp8 f, std::uint32_t bits) {
  if (bits == 0 || bits >= 0x7f800000) return 1;
  int exponent = 0;
  const bool above = frexpf(__uint_as_float(bits), &exponent) > 0.875F;
  const int power = (f == Fp8::kE4M3 ? 8 : 15) + 1 - exponent - (above ? 1 : 0);
  return ldexpf(1.0F, power < 126 ? power : 126);
}

__device__ inline std::uint8_t code_of(Fp8 f, float x) {
#ifdef __CUDACC__
  if (!isfinite(x)) return 0x7f;
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, f == Fp8::kE4M3 ? __NV_E4M3 : __NV_E5M2);
#else
  return to_fp8(f, x);
#endif
}

template <class T, int V>
__global__ void round_kernel(Fp8 f, std::int64_t items, const T* x, const std::uint32_t* largest,
                             std::uint8_t* codes, float* scale) {
  const float factor = factor_of(f, *largest);
  if (thread_of_grid() == 0) *scale = 1 / factor;
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float v[V];
    load(x + i * V, v);
    Pack<std::uint8_t, V> pack;
#pragma unroll
    for (int k = 0; k < V; ++k) pack.at[k] = code_of(f, v[k] * factor);
    *reinterpret_cast<Pack<std::uint8_t, V>*>(codes + i * V) = pack;
  }
}

template <class T>
__global__ void round_transposed_kernel(Fp8 f, std::int64_t rows, std::int64_t width, const T* x,
                                        const std::uint32_t* largest, std::uint8_t* codes, float* scale) {
  // By column; a word more a row, so that columns begin in different banks.
  constexpr int kWords = kTile / 4;
  ORRERY_SHARED(tile, Pack<std::uint8_t, 4>[kTile][kWords + 1]);
  const float factor = factor_of(f, *largest);
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile,
                     first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  if (blockIdx.x == 0 && blockIdx.y == 0 && thread_of_block() == 0) *scale = 1 / factor;
  const auto column = static_cast<int>(2 * threadIdx.x);
  for (int r = static_cast<int>(threadIdx.y); r < kTile; r += kTileThreads) {
    if (first_row + r >= rows || first_column + column >= width) continue;
    float v[2];
    load(x + (first_row + r) * width + first_column + column, v);
    tile[column][r / 4].at[r % 4] = code_of(f, v[0] * factor);
    tile[column + 1][r / 4].at[r % 4] = code_of(f, v[1] * factor);
  }
  __syncthreads();
  for (int i = thread_of_block(); i < kTile * kWords; i += kWarp * kTileThreads) {
    const int c = i / kWords, r = i % kWords;
    if (first_row + 4 * r >= rows || first_column + c >= width) continue;
    *reinterpret_cast<Pack<std::uint8_t, 4>*>(codes + (first_column + c) * rows + first_row + 4 * r) =
        tile[c][r];
  }
}

}  // namespace

void fp8_largest(Stream stream, DType type, Index n, const void* x, std::uint32_t* largest) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(n, {x}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "fp8_largest", {.blocks = strided_blocks(n / V, 256)}, largest_kernel<T, V>, n / V,
             static_cast<const T*>(x), largest);
    });
  });
}

void fp8_round(Stream stream, DType type, Fp8 format, Index rows, Index width, bool transpose, const void* x,
               const std::uint32_t* largest, std::uint8_t* codes, float* scale) {
  with_type(type, [&]<class T>(T) {
    const auto* const from = static_cast<const T*>(x);
    if (transpose) {
      const Grid grid{.blocks = cover(width, kTile),
                      .blocks_y = cover(rows, kTile),
                      .threads = kWarp,
                      .threads_y = kTileThreads};
      return launch(stream, "fp8_round_transposed", grid, round_transposed_kernel<T>, format, rows, width,
                    from, largest, codes, scale);
    }
    const Index n = rows * width;
    with_vectors<T>(takes_vectors<T>(n, {x}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "fp8_round", {.blocks = strided_blocks(n / V, 256)}, round_kernel<T, V>, format, n / V,
             from, largest, codes, scale);
    });
  });
}

Fp8Operands::Fp8Operands(std::span<const GemmShape> shapes) {
  std::size_t most_a = 0, most_b = 0;
  for (const GemmShape& s : shapes) {
    if (s.fp8 == Fp8Product::kNo) continue;
    most_a = std::max(most_a, static_cast<std::size_t>(s.m * s.k));
    most_b = std::max(most_b, static_cast<std::size_t>(s.k * s.n));
  }
  if (most_a == 0) return;
  a_ = allocate(most_a, "operands in 8 bits");
  b_ = allocate(most_b, "operands in 8 bits");
  numbers_ = allocate(sizeof(Numbers), "operands in 8 bits");
}

void Fp8Operands::round(Stream stream, const GemmShape& s, const void* a, const void* b) {
  auto& [of_a, of_b] = static_cast<Numbers*>(numbers_.get())->of;
  check(cudaMemsetAsync(numbers_.get(), 0, sizeof(Numbers), stream), "cudaMemsetAsync");
  fp8_largest(stream, s.operands, s.m * s.k, a, &of_a.largest);
  fp8_largest(stream, s.operands, s.k * s.n, b, &of_b.largest);
  fp8_round(stream, s.operands, format_of_a(s), s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k,
            s.transpose_a, a, &of_a.largest, static_cast<std::uint8_t*>(a_.get()), &of_a.scale);
  fp8_round(stream, s.operands, Fp8::kE4M3, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n,
            !s.transpose_b, b, &of_b.largest, static_cast<std::uint8_t*>(b_.get()), &of_b.scale);
}

}  // namespace orrery::kernels::cuda
