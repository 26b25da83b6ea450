// SPDX-License-Identifier: Apache-2.0
//
// act(u) of u [rows, width], or the gated act(gate) up with rows [gate | up] of 2 width. Floor, in elements:
// forward 2 rows width, gated 3; backward 3, gated 5. Factors and caps of n elements: 2 n, the cap's gradient
// 3 n.
#include <type_traits>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

constexpr float kRoot = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kCube = 0.044715F;

// What a gate multiplies, and its slope.
struct PlainUp {
  static __device__ float up(float x) { return x; }
  static __device__ float up_slope(float) { return 1.0F; }
};
// value(x), and its slope.
struct Gelu : PlainUp {
  static __device__ float value(float x) {
    return 0.5F * x * (1.0F + tanhf(kRoot * (x + kCube * x * x * x)));
  }
  static __device__ float slope(float x) {
    const float t = tanhf(kRoot * (x + kCube * x * x * x));
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * kRoot * (1.0F + 3.0F * kCube * x * x);
  }
};
struct Silu : PlainUp {
  static __device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
  static __device__ float value(float x) { return x * sigmoid(x); }
  static __device__ float slope(float x) {
    const float s = sigmoid(x);
    return s * (1.0F + x * (1.0F - s));
  }
};
struct ClampedSilu {
  static constexpr float kClamp = reference::kActClamp, kSteepness = reference::kActSteepness;
  static __device__ float sigmoid(float g) { return 1.0F / (1.0F + expf(-kSteepness * g)); }
  static __device__ float held(float x) { return x > kClamp ? kClamp : x; }
  static __device__ float value(float x) { return held(x) * sigmoid(held(x)); }
  static __device__ float slope(float x) {
    if (x > kClamp) return 0.0F;
    const float s = sigmoid(x);
    return s * (1.0F + kSteepness * x * (1.0F - s));
  }
  static __device__ float up(float x) { return 1.0F + (x < -kClamp ? -kClamp : held(x)); }
  static __device__ float up_slope(float x) { return fabsf(x) <= kClamp ? 1.0F : 0.0F; }
};
struct SquaredRelu : PlainUp {
  static __device__ float value(float x) { return x > 0 ? x * x : 0.0F; }
  static __device__ float slope(float x) { return x > 0 ? 2 * x : 0.0F; }
};

// Calls f with one of these, and whether it gates.
template <class F>
void with_act(reference::Act act, F f) {
  using enum reference::Act;
  switch (act) {
    case kGelu:
      return f(Gelu{}, std::false_type{});
    case kSwiglu:
      return f(Silu{}, std::true_type{});
    case kSquaredRelu:
      return f(SquaredRelu{}, std::false_type{});
    case kGeglu:
      return f(Gelu{}, std::true_type{});
    case kClampedSwiglu:
      return f(ClampedSilu{}, std::true_type{});
  }
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

template <class T, int V, class A, bool GATED>
__global__ void activation_kernel(std::int64_t items, std::int64_t width, const T* u, T* v) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    const Place at = place<V>(i, width);
    float x[V], up[V];
    load(u + (GATED ? at.gate : at.one), x);
    if (GATED) load(u + at.gate + width, up);
#pragma unroll
    for (int k = 0; k < V; ++k) x[k] = GATED ? A::value(x[k]) * A::up(up[k]) : A::value(x[k]);
    store(x, v + at.one);
  }
}

template <class T, int V, class A, bool GATED>
__global__ void activation_grad_kernel(std::int64_t items, std::int64_t width, const T* u, const T* dv,
                                       T* du) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    const Place at = place<V>(i, width);
    float x[V], up[V], d[V];
    load(dv + at.one, d);
    load(u + (GATED ? at.gate : at.one), x);
    if (!GATED) {
#pragma unroll
      for (int k = 0; k < V; ++k) x[k] = d[k] * A::slope(x[k]);
      store(x, du + at.one);
      continue;
    }
    load(u + at.gate + width, up);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float gate = x[k];
      x[k] = d[k] * A::up(up[k]) * A::slope(gate);
      up[k] = d[k] * A::value(gate) * A::up_slope(up[k]);
    }
    store(x, du + at.gate);
    store(up, du + at.gate + width);
  }
}

template <class T, int V>
__global__ void scale_kernel(std::int64_t items, float factor, const T* x, T* y) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float v[V];
    load(x + i * V, v);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] *= factor;
    store(v, y + i * V);
  }
}

template <class T, int V>
__global__ void soft_cap_kernel(std::int64_t items, float cap, const T* x, T* y) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float v[V];
    load(x + i * V, v);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = cap * tanhf(v[k] / cap);
    store(v, y + i * V);
  }
}

template <class T, int V>
__global__ void soft_cap_grad_kernel(std::int64_t items, float cap, const T* y, const T* dy, T* dx) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float v[V], d[V];
    load(y + i * V, v);
    load(dy + i * V, d);
#pragma unroll
    for (int k = 0; k < V; ++k) d[k] *= 1.0F - v[k] / cap * (v[k] / cap);
    store(d, dx + i * V);
  }
}

// The rows that experts have of a token, each with a block; what is behind them has room alone.
// Calls use(row) for the rows of this block.
template <class Use>
__device__ void for_each_row(const ExpertRows& rows, Use use) {
  for (Index part = 0; part < rows.parts; ++part) {
    Index n = 0;
    for (Index e = 0; e < rows.experts; ++e) n += rows.counts[part * rows.experts + e];
    for (Index row = blockIdx.x; row < n; row += gridDim.x) use(part * rows.room + row);
  }
}

template <class A, bool GATED>
__device__ float activated(float gate, float up) {
  return GATED ? A::value(gate) * A::up(up) : A::value(gate);
}

// What weights count in: what an expert reads, and so what it makes of it first; or what it gives.
struct RowWeight {
  float inputs, results;
};
__device__ inline RowWeight row_weight(float weight, bool weighs_inputs) {
  return weighs_inputs ? RowWeight{weight, 1.0F} : RowWeight{1.0F, weight};
}

template <class T, class A, bool GATED>
__global__ void expert_activation_kernel(ExpertRows rows, std::int64_t width, bool weighs_inputs, const T* u,
                                         const float* row_weights, T* v) {
  for_each_row(rows, [=](Index row) {
    const T* const of = u + row * width * (GATED ? 2 : 1);
    const RowWeight weight = row_weight(row_weights[row], weighs_inputs);
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
      const float x = weight.inputs * widen(of[c]);
      const float up = GATED ? weight.inputs * widen(of[width + c]) : 0.0F;
      narrow(weight.results * activated<A, GATED>(x, up), v[row * width + c]);
    }
  });
}

template <class T, class A, bool GATED>
__global__ void expert_activation_grad_kernel(ExpertRows rows, std::int64_t width, bool weighs_inputs,
                                              const T* u, const float* row_weights, const T* dv, T* du,
                                              float* d_row_weights) {
  for_each_row(rows, [=](Index row) {
    const RowWeight weight = row_weight(row_weights[row], weighs_inputs);
    const T *const of = u + row * width * (GATED ? 2 : 1), *const d = dv + row * width;
    T* const to = du + row * width * (GATED ? 2 : 1);
    float sum = 0;
    for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
      const float gate_read = widen(of[c]), up_read = GATED ? widen(of[width + c]) : 0.0F;
      const float x = weight.inputs * gate_read, up = weight.inputs * up_read;
      const float weighted = widen(d[c]) * weight.results;
      const float d_gate = weighted * (GATED ? A::up(up) : 1.0F) * A::slope(x);
      const float d_up = GATED ? weighted * A::value(x) * A::up_slope(up) : 0.0F;
      sum += weighs_inputs ? d_gate * gate_read + d_up * up_read : widen(d[c]) * activated<A, GATED>(x, up);
      narrow(weight.inputs * d_gate, to[c]);
      if (GATED) narrow(weight.inputs * d_up, to[width + c]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) d_row_weights[row] = sum;
  });
}

Grid blocks_of_rows(std::int64_t rows, std::int64_t width) {
  return {.blocks = std::min<std::int64_t>(rows, 8192), .threads = threads_for(width, 256)};
}

}  // namespace

void activation(Stream stream, DType type, Index rows, Index width, reference::Act act, const void* u,
                void* v) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(width, {u, v}), [&]<int V>(std::integral_constant<int, V>) {
      with_act(act, [&]<class A, bool GATED>(A, std::bool_constant<GATED>) {
        const std::int64_t items = rows * width / V;
        launch(stream, "activation", {.blocks = strided_blocks(items, 256)},
               activation_kernel<T, V, A, GATED>, items, width, static_cast<const T*>(u), static_cast<T*>(v));
      });
    });
  });
}

void activation_grad(Stream stream, DType type, Index rows, Index width, reference::Act act, const void* u,
                     const void* dv, void* du) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(width, {u, dv, du}), [&]<int V>(std::integral_constant<int, V>) {
      with_act(act, [&]<class A, bool GATED>(A, std::bool_constant<GATED>) {
        const std::int64_t items = rows * width / V;
        launch(stream, "activation_grad", {.blocks = strided_blocks(items, 256)},
               activation_grad_kernel<T, V, A, GATED>, items, width, static_cast<const T*>(u),
               static_cast<const T*>(dv), static_cast<T*>(du));
      });
    });
  });
}

void scale(Stream stream, DType type, Index n, float factor, const void* x, void* y) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(n, {x, y}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "scale", {.blocks = strided_blocks(n / V, 256)}, scale_kernel<T, V>, n / V, factor,
             static_cast<const T*>(x), static_cast<T*>(y));
    });
  });
}

void soft_cap(Stream stream, DType type, Index n, float cap, const void* x, void* y) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(n, {x, y}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "soft_cap", {.blocks = strided_blocks(n / V, 256)}, soft_cap_kernel<T, V>, n / V, cap,
             static_cast<const T*>(x), static_cast<T*>(y));
    });
  });
}

void soft_cap_grad(Stream stream, DType type, Index n, float cap, const void* y, const void* dy, void* dx) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(n, {y, dy, dx}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "soft_cap_grad", {.blocks = strided_blocks(n / V, 256)}, soft_cap_grad_kernel<T, V>,
             n / V, cap, static_cast<const T*>(y), static_cast<const T*>(dy), static_cast<T*>(dx));
    });
  });
}

void expert_activation(Stream stream, DType type, const ExpertRows& rows, Index width, reference::Act act,
                       bool weighs_inputs, const void* u, const float* row_weights, void* v) {
  with_type(type, [&]<class T>(T) {
    with_act(act, [&]<class A, class Gated>(A, Gated) {
      launch(stream, "expert_activation", blocks_of_rows(rows.parts * rows.room, width),
             expert_activation_kernel<T, A, Gated::value>, rows, width, weighs_inputs,
             static_cast<const T*>(u), row_weights, static_cast<T*>(v));
    });
  });
}

void expert_activation_grad(Stream stream, DType type, const ExpertRows& rows, Index width,
                            reference::Act act, bool weighs_inputs, const void* u, const float* row_weights,
                            const void* dv, void* du, float* d_row_weights) {
  with_type(type, [&]<class T>(T) {
    with_act(act, [&]<class A, class Gated>(A, Gated) {
      launch(stream, "expert_activation_grad", blocks_of_rows(rows.parts * rows.room, width),
             expert_activation_grad_kernel<T, A, Gated::value>, rows, width, weighs_inputs,
             static_cast<const T*>(u), row_weights, static_cast<const T*>(dv), static_cast<T*>(du),
             d_row_weights);
    });
  });
}

}  // namespace orrery::kernels::cuda
