// SPDX-License-Identifier: Apache-2.0
//
// Tensor cores of sm_80 and later, and copies to shared memory beside them, as in the PTX ISA 8.x:
// mma.m16n8k16, ldmatrix, cp.async. Lane l of a warp has row l / 4 and l / 4 + 8 of A and C, column l / 4 of
// B, and there pairs 2 (l % 4), + 1 of columns (of A and C) or rows (of B). Internal to kernels/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {

// C[16,8] in fp32 of a warp: {row, 2 columns}, {row + 8, 2 columns}.
struct Tile {
  float at[4];
};
// A[16,16] of 16-bit elements, in pairs: {row, k}, {row + 8, k}, {row, k + 8}, {row + 8, k + 8}.
struct TileA {
  std::uint32_t at[4];
};
// B[16,8], in pairs of rows: {k}, {k + 8}.
struct TileB {
  std::uint32_t at[2];
};

template <class T>
__device__ inline std::uint32_t pair(float low, float high) {
  T a, b;
  narrow(low, a);
  narrow(high, b);
  return a.bits | static_cast<std::uint32_t>(b.bits) << 16;
}

#ifdef __CUDACC__

// 2^x in one instruction, within 2 ulp; what is smaller than a normal number is zero.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// C += A B.
template <class T>
__device__ inline void multiply_add(Tile& c, const TileA& a, const TileB& b) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  }
}

// Four 8x8 matrices: lane l gives the address of row l % 8 of matrix l / 8, and gets a pair of row l / 4 of
// each; transposed, of column l / 4.
template <bool kTransposed>
__device__ inline void load_matrices(std::uint32_t (&to)[4], const void* shared) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
}

// Brings 16 bytes, or zeros, to shared memory while the thread goes on.
__device__ inline void copy_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Ends a group of copies; waits until at most `kPending` groups are under way.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#else

inline float power_of_two(float x) {
  return exp2f(x);
}

template <class T>
float element(std::uint32_t pair, int high) {
  return widen(T{static_cast<std::uint16_t>(pair >> (high != 0 ? 16 : 0))});
}

template <class T>
void multiply_add(Tile& c, const TileA& a, const TileB& b) {
  struct Operands {
    TileA a;
    TileB b;
  };
  const auto all = emulation::exchange(Operands{a, b});
  const unsigned lane = emulation::lane();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4, column = 2 * (lane % 4) + i % 2, half = i / 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned pair_of_k = k % 8 / 2, upper = k / 8;
      c.at[i] += element<T>(all[row * 4 + pair_of_k].a.at[2 * upper + half], k % 2) *
                 element<T>(all[column * 4 + pair_of_k].b.at[upper], k % 2);
    }
  }
}

template <bool kTransposed>
void load_matrices(std::uint32_t (&to)[4], const void* shared) {
  const auto rows = emulation::exchange(static_cast<const std::uint16_t*>(shared));
  const unsigned lane = emulation::lane();
  for (unsigned m = 0; m < 4; ++m) {
    const auto at = [&](unsigned row, unsigned column) -> std::uint32_t { return rows[8 * m + row][column]; };
    const unsigned r = lane / 4, c = 2 * (lane % 4);
    to[m] = kTransposed ? at(c, r) | at(c + 1, r) << 16 : at(r, c) | at(r, c + 1) << 16;
  }
}

inline void copy_async(void* shared, const void* global, bool valid) {
  emulation::copy_async(shared, valid ? global : nullptr);
}
inline void commit_copies() {
  emulation::commit_copies();
}
template <int kPending>
void wait_copies() {
  emulation::wait_copies(kPending);
}

#endif

}  // namespace orrery::kernels::cuda
