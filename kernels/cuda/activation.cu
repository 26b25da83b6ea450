// SPDX-License-Identifier: Apache-2.0
//
// GELU (tanh form) of u [rows, width], or the gated silu(gate) up with rows [gate | up] of 2 width. Floor, in
// elements: forward 2 rows width, gated 3; backward 3, gated 5.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

constexpr float kRoot = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kCube = 0.044715F;

__device__ float gelu(float x) {
  return 0.5F * x * (1.0F + tanhf(kRoot * (x + kCube * x * x * x)));
}
__device__ float gelu_grad(float x) {
  const float t = tanhf(kRoot * (x + kCube * x * x * x));
  return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * kRoot * (1.0F + 3.0F * kCube * x * x);
}
__device__ float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

// Where item i of V elements stands in rows of `width`, and in rows of gate and up.
struct Place {
  std::int64_t one, gate;
};
template <int V>
__device__ Place place(std::int64_t i, std::int64_t width) {
  const std::int64_t at = i * V;
  return {at, at + at / width * width};
}

template <class T, int V>
__global__ void activation_kernel(std::int64_t items, std::int64_t width, bool gated, const T* u, T* v) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    const Place at = place<V>(i, width);
    float x[V], up[V];
    load(u + (gated ? at.gate : at.one), x);
    if (gated) load(u + at.gate + width, up);
#pragma unroll
    for (int k = 0; k < V; ++k) x[k] = gated ? x[k] * sigmoid(x[k]) * up[k] : gelu(x[k]);
    store(x, v + at.one);
  }
}

template <class T, int V>
__global__ void activation_grad_kernel(std::int64_t items, std::int64_t width, bool gated, const T* u,
                                       const T* dv, T* du) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    const Place at = place<V>(i, width);
    float x[V], up[V], d[V];
    load(dv + at.one, d);
    load(u + (gated ? at.gate : at.one), x);
    if (!gated) {
#pragma unroll
      for (int k = 0; k < V; ++k) x[k] = d[k] * gelu_grad(x[k]);
      store(x, du + at.one);
      continue;
    }
    load(u + at.gate + width, up);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float gate = x[k], s = sigmoid(gate);
      x[k] = d[k] * up[k] * s * (1.0F + gate * (1.0F - s));
      up[k] = d[k] * gate * s;
    }
    store(x, du + at.gate);
    store(up, du + at.gate + width);
  }
}

}  // namespace

void activation(Stream stream, DType type, Index rows, Index width, bool gated, const void* u, void* v) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(width, {u, v}), [&]<int V>(std::integral_constant<int, V>) {
      const std::int64_t items = rows * width / V;
      launch(stream, "activation", {.blocks = strided_blocks(items, 256)}, activation_kernel<T, V>, items,
             width, gated, static_cast<const T*>(u), static_cast<T*>(v));
    });
  });
}

void activation_grad(Stream stream, DType type, Index rows, Index width, bool gated, const void* u,
                     const void* dv, void* du) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(width, {u, dv, du}), [&]<int V>(std::integral_constant<int, V>) {
      const std::int64_t items = rows * width / V;
      launch(stream, "activation_grad", {.blocks = strided_blocks(items, 256)}, activation_grad_kernel<T, V>,
             items, width, gated, static_cast<const T*>(u), static_cast<const T*>(dv), static_cast<T*>(du));
    });
  });
}

}  // namespace orrery::kernels::cuda
