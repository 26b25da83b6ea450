// SPDX-License-Identifier: Apache-2.0
//
// The update of a shard of n parameters. Floor, in bytes a parameter: AdamW with a master copy and 16-bit
// gradients 2 + 2 + 24, in fp32 28; SGD with momentum 20; a sum 3 elements.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/philox.h"

namespace orrery::kernels::cuda {
namespace {

template <class T, class G, int V>
__global__ void adam_kernel(AdamConstants a, StochasticRounding r, const StepScalars* scalars,
                            const NormResult* norm, std::int64_t items, const G* d_parameter, T* parameter,
                            float* master, float* m, float* v) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const float factor = norm != nullptr ? norm->factor : 1.0F, rate = scalars->learning_rate;
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
    for (int k = 0; k < V; ++k) {
      const float d = g[k] * factor;
      first[k] = a.beta1 * first[k] + (1 - a.beta1) * d;
      second[k] = a.beta2 * second[k] + (1 - a.beta2) * d * d;
      const float update = (first[k] / correct1) / (sqrtf(second[k] / correct2) + a.epsilon);
      p[k] -= rate * (update + a.decay * p[k]);
    }
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
          const StepScalars* scalars, const NormResult* norm, Index n, const void* d_parameter,
          void* parameter, float* master, float* m, float* v) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    const bool vectors = takes_vectors<T>(n, {d_parameter, parameter, master, m, v});
    with_vectors<T>(vectors, [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "adam", {.blocks = strided_blocks(n / V, 256)}, adam_kernel<T, G, V>, a, r, scalars,
             norm, n / V, static_cast<const G*>(d_parameter), static_cast<T*>(parameter), master, m, v);
    });
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
