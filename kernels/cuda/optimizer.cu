// SPDX-License-Identifier: Apache-2.0
//
// The update of a shard of n parameters. Floor, in bytes a parameter: AdamW with a master copy and 16-bit
// gradients 2 + 2 + 24, in fp32 28; the squares that LAMB needs before 2 + 12, in fp32 16; SGD with momentum
// 20; a sum 3 elements.
#include "kernels/cuda/bins.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/philox.h"

namespace orrery::kernels::cuda {
namespace {

// Moves the moments by a gradient; returns what they update the parameter by.
__device__ inline float adam_update(const AdamConstants& a, float correct1, float correct2, float gradient,
                                    float parameter, float& m, float& v) {
  m = a.beta1 * m + (1 - a.beta1) * gradient;
  v = a.beta2 * v + (1 - a.beta2) * gradient * gradient;
  return (m / correct1) / (sqrtf(v / correct2) + a.epsilon) + a.decay * parameter;
}

template <class T, class G, int V>
__global__ void adam_kernel(AdamConstants a, StochasticRounding r, const StepScalars* scalars,
                            const NormResult* norm, const float* trust, std::int64_t items,
                            const G* d_parameter, T* parameter, float* master, float* m, float* v) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const float factor = norm != nullptr ? norm->factor : 1.0F;
  const float rate = trust != nullptr ? scalars->learning_rate * *trust : scalars->learning_rate;
  const float correct1 = scalars->correct1, correct2 = scalars->correct2;
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float g[V], p[V], first[V], second[V];
    load(d_parameter + i * V, g);
    load(m + i * V, first);
    load(v + i * V, second);
    if (master != nullptr)
      load(master + i * V, p);
    else
      load(parameter + i * V, p);
#pragma unroll
    for (int k = 0; k < V; ++k)
      p[k] -= rate * adam_update(a, correct1, correct2, g[k] * factor, p[k], first[k], second[k]);
    store(first, m + i * V);
    store(second, v + i * V);
    if (master != nullptr) store(p, master + i * V);
    if (r.on) {
      Words words{};
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const auto at = static_cast<std::uint64_t>(r.first + i * V + k);
        if (k == 0 || at % 8 == 0) words = rounding_words(r, scalars->updates, at / 8);
        p[k] = rounded_to_bfloat16(p[k], words, static_cast<unsigned>(at % 8));
      }
    }
    store(p, parameter + i * V);
  }
}

template <class P, class G>
__global__ void trust_squares_kernel(AdamConstants a, const StepScalars* scalars, const NormResult* norm,
                                     std::int64_t n, const G* d_parameter, const P* weights, const float* m,
                                     const float* v, double* bins) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const float factor = norm != nullptr ? norm->factor : 1.0F;
  float weight[kBinElements], update[kBinElements];
#pragma unroll
  for (int i = 0; i < kBinElements; ++i) {
    const std::int64_t at = bin_element(i);
    weight[i] = at < n ? widen(weights[at]) : 0.0F;
    update[i] = 0;
    if (at >= n) continue;
    float first = m[at], second = v[at];
    update[i] = adam_update(a, scalars->correct1, scalars->correct2, widen(d_parameter[at]) * factor,
                            weight[i], first, second);
  }
  add_block_squares(weight, bins);
  add_block_squares(update, bins + reference::kSquareBins);
}

__global__ void trust_ratios_kernel(std::int64_t tensors, const double* bins, float* ratios) {
  for (std::int64_t t = thread_of_grid(); t < tensors; t += threads_of_grid()) {
    const double* const of = bins + 2 * t * reference::kSquareBins;
    const double w = sqrt(sum_of_bins(of)), u = sqrt(sum_of_bins(of + reference::kSquareBins));
    ratios[t] = w > 0 && u > 0 ? static_cast<float>(w / u) : 1.0F;
  }
}

template <class T, class G>
__global__ void step_by_sign_kernel(float rate, const NormResult* norm, std::int64_t n, const G* d_parameter,
                                    T* parameter, float* master) {
  if (norm != nullptr && norm->overflowed != 0) return;
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
    const float d = widen(d_parameter[i]), step = d > 0 ? rate : d < 0 ? -rate : 0.0F;
    const float x = (master != nullptr ? master[i] : widen(parameter[i])) - step;
    if (master != nullptr) master[i] = x;
    narrow(x, parameter[i]);
  }
}

__global__ void sgd_kernel(float momentum, const StepScalars* scalars, const NormResult* norm, std::int64_t n,
                           const float* d_parameter, float* parameter, float* velocity) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const float factor = norm != nullptr ? norm->factor : 1.0F;
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
    velocity[i] = momentum * velocity[i] + d_parameter[i] * factor;
    parameter[i] -= scalars->learning_rate * velocity[i];
  }
}

template <class T, int V>
__global__ void add_kernel(std::int64_t items, const T* x, T* sum) {
  for (std::int64_t i = thread_of_grid(); i < items; i += threads_of_grid()) {
    float a[V], b[V];
    load(x + i * V, a);
    load(sum + i * V, b);
#pragma unroll
    for (int k = 0; k < V; ++k) b[k] += a[k];
    store(b, sum + i * V);
  }
}

__global__ void add_doubles_kernel(std::int64_t n, const double* x, double* sum) {
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) sum[i] += x[i];
}

}  // namespace

void adam(Stream stream, DType type, DType gradient, const AdamConstants& a, const StochasticRounding& r,
          const StepScalars* scalars, const NormResult* norm, const float* trust, Index n,
          const void* d_parameter, void* parameter, float* master, float* m, float* v) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    const bool vectors = takes_vectors<T>(n, {d_parameter, parameter, master, m, v});
    with_vectors<T>(vectors, [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "adam", {.blocks = strided_blocks(n / V, 256)}, adam_kernel<T, G, V>, a, r, scalars,
             norm, trust, n / V, static_cast<const G*>(d_parameter), static_cast<T*>(parameter), master, m,
             v);
    });
  });
}

void trust_squares(Stream stream, DType type, DType gradient, const AdamConstants& a,
                   const StepScalars* scalars, const NormResult* norm, Index n, const void* d_parameter,
                   const void* parameter, const float* master, const float* m, const float* v, double* bins) {
  const Grid grid{.blocks = cover(n, kBinThreads * kBinElements), .threads = kBinThreads};
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    const auto run = [&]<class P>(const P* weights) {
      launch(stream, "trust_squares", grid, trust_squares_kernel<P, G>, a, scalars, norm, n,
             static_cast<const G*>(d_parameter), weights, m, v, bins);
    };
    if (master != nullptr)
      run(master);
    else
      run(static_cast<const T*>(parameter));
  });
}

void trust_ratios(Stream stream, Index tensors, const double* bins, float* ratios) {
  launch(stream, "trust_ratios", {.blocks = strided_blocks(tensors, 256)}, trust_ratios_kernel, tensors, bins,
         ratios);
}

void step_by_sign(Stream stream, DType type, DType gradient, float rate, const NormResult* norm, Index n,
                  const void* d_parameter, void* parameter, float* master) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    launch(stream, "step_by_sign", {.blocks = strided_blocks(n, 256)}, step_by_sign_kernel<T, G>, rate, norm,
           n, static_cast<const G*>(d_parameter), static_cast<T*>(parameter), master);
  });
}

void sgd(Stream stream, float momentum, const StepScalars* scalars, const NormResult* norm, Index n,
         const float* d_parameter, float* parameter, float* velocity) {
  launch(stream, "sgd", {.blocks = strided_blocks(n, 256)}, sgd_kernel, momentum, scalars, norm, n,
         d_parameter, parameter, velocity);
}

void add(Stream stream, DType type, Index n, const void* x, void* sum) {
  if (type == DType::kFloat64) {
    launch(stream, "add", {.blocks = strided_blocks(n, 256)}, add_doubles_kernel, n,
           static_cast<const double*>(x), static_cast<double*>(sum));
    return;
  }
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(n, {x, sum}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "add", {.blocks = strided_blocks(n / V, 256)}, add_kernel<T, V>, n / V,
             static_cast<const T*>(x), static_cast<T*>(sum));
    });
  });
}

}  // namespace orrery::kernels::cuda
