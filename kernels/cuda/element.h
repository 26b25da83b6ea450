// SPDX-License-Identifier: Apache-2.0
//
// Elements of tensors in device memory, and how kernels read them: 16 bytes a thread where the row allows it,
// arithmetic in fp32. Internal to kernels/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/cpu/token_share.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "kernels/cpu/reference.h"
#endif

namespace orrery::kernels::cuda {

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(BFloat16 x) {
#ifdef __CUDACC__
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
#else
  return reference::from_bfloat16(x.bits);
#endif
}
__device__ inline float widen(Float16 x) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(x.bits));
#else
  return reference::from_float16(x.bits);
#endif
}

// Rounds to the nearest, ties to even.
__device__ inline void narrow(float x, float& to) {
  to = x;
}
__device__ inline void narrow(float x, BFloat16& to) {
#ifdef __CUDACC__
  to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  to.bits = reference::to_bfloat16(x);
#endif
}
__device__ inline void narrow(float x, Float16& to) {
#ifdef __CUDACC__
  to.bits = __half_as_ushort(__float2half_rn(x));
#else
  to.bits = reference::to_float16(x);
#endif
}

// V elements that are read and written together.
template <class T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack {
  T at[V];
};
template <int V, class T>
__device__ inline void load(const T* from, float (&to)[V]) {
  const auto pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = widen(pack.at[i]);
}
template <int V, class T>
__device__ inline void store(const float (&from)[V], T* to) {
  Pack<T, V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) narrow(from[i], pack.at[i]);
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

// Elements of a type in 16 bytes.
template <class T>
inline constexpr int kVector = static_cast<int>(16 / sizeof(T));

// Whether rows of `width` elements of T can be read by vectors of them from all of `pointers`.
template <class T>
bool takes_vectors(std::int64_t width, std::initializer_list<const void*> pointers) {
  for (const void* p : pointers) {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return false;
  }
  return width % kVector<T> == 0;
}

// Calls f with a value of the type.
template <class F>
void with_type(DType type, F f) {
  switch (type) {
    case DType::kFloat32:
      return f(float{});
    case DType::kBfloat16:
      return f(BFloat16{});
    case DType::kFloat16:
      return f(Float16{});
    default:
      throw Error("kernels compute on floats of 16 or 32 bits");
  }
}
// Of activations and of gradients, which have the same type or are fp32.
template <class F>
void with_types(DType activation, DType gradient, F f) {
  with_type(activation, [&](auto a) {
    if (gradient == activation) return f(a, a);
    if (gradient == DType::kFloat32) return f(a, float{});
    throw Error("gradients have the type of activations, or are fp32");
  });
}
// Calls f with the constant that says how many elements of T a thread takes at once.
template <class T, class F>
void with_vectors(bool vectors, F f) {
  if (vectors) return f(std::integral_constant<int, kVector<T>>{});
  f(std::integral_constant<int, 1>{});
}

}  // namespace orrery::kernels::cuda
