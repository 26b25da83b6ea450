// SPDX-License-Identifier: Apache-2.0
//
// The update of a shard of parameters, one launch for all ranges of it that are updated alike. Floor, in
// bytes a parameter (gradient, parameter and state, of 16 bits but for the state): AdamW with a master copy
// 2 + 2 + 24, with moments in bf16 2 + 2 + 16, with a parted master copy 2 + 4 + 12, in fp32 28; the squares
// that LAMB needs before 2 + 12, in fp32 16; SGD with momentum 20; a sum 3 elements.
#include "kernels/cuda/bins.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/philox.h"

namespace orrery::kernels::cuda {
namespace {

// Ranges of one launch, one behind the other.
struct UpdateRanges {
  int count;
  UpdateRange at[kMostRanges];
};
__device__ inline std::int64_t end_of(const UpdateRange& r) {
  return r.first + r.count;
}

// Calls update(width, range, at) for the elements of the ranges: for `width` at once where V of them that
// stand together, from a multiple of V on, are of one range, else for single ones.
template <int V, class F>
__device__ void for_each_element(const UpdateRanges& ranges, F update) {
  const std::int64_t end = end_of(ranges.at[ranges.count - 1]);
  int r = 0;  // the first range that ends behind `at`
  for (std::int64_t at = (ranges.at[0].first / V + thread_of_grid()) * V; at < end;
       at += threads_of_grid() * V) {
    while (end_of(ranges.at[r]) <= at) ++r;
    if (ranges.at[r].first <= at && at + V <= end_of(ranges.at[r])) {
      update(std::integral_constant<int, V>{}, ranges.at[r], at);
    } else if constexpr (V > 1) {
      int of = r;
      for (std::int64_t one = at; one < at + V && one < end; ++one) {
        while (end_of(ranges.at[of]) <= one) ++of;
        if (ranges.at[of].first <= one) update(std::integral_constant<int, 1>{}, ranges.at[of], one);
      }
    }
  }
}

// Calls f with so many ranges as a launch takes, and blocks for vectors of V elements.
template <int V, class F>
void by_launch(std::span<const UpdateRange> ranges, F f) {
  while (!ranges.empty()) {
    const auto now = ranges.first(std::min(ranges.size(), kMostRanges));
    UpdateRanges of{.count = static_cast<int>(now.size()), .at = {}};
    std::copy(now.begin(), now.end(), of.at);
    const std::int64_t vectors = cover(now.back().first + now.back().count, V) - now.front().first / V;
    f(Grid{.blocks = strided_blocks(vectors, 256)}, of);
    ranges = ranges.subspan(now.size());
  }
}

// Of a step, for all elements.
struct Step {
  float factor, rate, correct1, correct2;
};
__device__ inline Step step_of(const StepScalars* scalars, const NormResult* norm) {
  return {norm != nullptr ? norm->factor : 1.0F, scalars->learning_rate, scalars->correct1,
          scalars->correct2};
}
__device__ inline float step_by_sign(float gradient, float rate) {
  return gradient > 0 ? rate : gradient < 0 ? -rate : 0.0F;
}

// Moves the moments by a gradient; returns what they update the parameter by.
__device__ inline float adam_update(const AdamConstants& a, float decay, const Step& s, float gradient,
                                    float parameter, float& m, float& v) {
  m = a.beta1 * m + (1 - a.beta1) * gradient;
  v = a.beta2 * v + (1 - a.beta2) * gradient * gradient;
  return (m / s.correct1) / (sqrtf(v / s.correct2) + a.epsilon) + decay * parameter;
}

__device__ inline unsigned bits_of(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  return std::bit_cast<unsigned>(x);
#endif
}
__device__ inline float float_of(unsigned bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}
// part_master and join_master of kernels/cpu/moments.h. A parameter becomes what narrow() leaves as it is.
template <int W>
__device__ inline void part_master(float (&p)[W], std::int16_t* beside) {
  Pack<std::int16_t, W> pack;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const unsigned bits = bits_of(p[k]);
    const bool lost = p[k] != p[k];
    const unsigned upper = (lost ? bits | 0x00400000U : bits + 0x8000U) & 0xffff0000U;
    p[k] = float_of(upper);
    pack.at[k] = lost ? std::int16_t{0} : static_cast<std::int16_t>(static_cast<std::uint16_t>(bits - upper));
  }
  *reinterpret_cast<Pack<std::int16_t, W>*>(beside) = pack;
}
template <int W>
__device__ inline void join_master(const std::int16_t* beside, float (&p)[W]) {
  const auto pack = *reinterpret_cast<const Pack<std::int16_t, W>*>(beside);
#pragma unroll
  for (int k = 0; k < W; ++k)
    p[k] = float_of(bits_of(p[k]) + static_cast<unsigned>(static_cast<int>(pack.at[k])));
}

template <class T, class G, class M, int V>
__global__ void adam_kernel(AdamConstants a, StochasticRounding rounding, const StepScalars* scalars,
                            const NormResult* norm, const float* trust,
                            const __grid_constant__ UpdateRanges ranges, const G* d_parameter, T* parameter,
                            float* master, std::int16_t* beside, M* m, M* v) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const Step step = step_of(scalars, norm);
  for_each_element<V>(ranges, [&](auto width, const UpdateRange& range, std::int64_t at) {
    constexpr int W = decltype(width)::value;
    const bool by_sign = range.sign_rate > 0;
    float g[W], p[W];
    load(d_parameter + at, g);
    if (master != nullptr)
      load(master + at, p);
    else
      load(parameter + at, p);
    if (beside != nullptr) join_master(beside + at, p);
    if (by_sign) {
#pragma unroll
      for (int k = 0; k < W; ++k) p[k] -= step_by_sign(g[k], range.sign_rate);
    } else {
      const float rate = trust != nullptr ? step.rate * trust[range.tensor] : step.rate;
      float first[W], second[W];
      load(m + at, first);
      load(v + at, second);
#pragma unroll
      for (int k = 0; k < W; ++k)
        p[k] -= rate * adam_update(a, range.decay, step, g[k] * step.factor, p[k], first[k], second[k]);
      store(first, m + at);
      store(second, v + at);
    }
    if (master != nullptr) store(p, master + at);
    if (beside != nullptr) part_master(p, beside + at);
    if (rounding.on && !by_sign) {
      Words words{};
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const auto number = static_cast<std::uint64_t>(rounding.first + at + k);
        if (k == 0 || number % 8 == 0) words = rounding_words(rounding, scalars->updates, number / 8);
        p[k] = rounded_to_bfloat16(p[k], words, static_cast<unsigned>(number % 8));
      }
    }
    store(p, parameter + at);
  });
}

// A block has elements of one range.
template <class P, class G>
__global__ void trust_squares_kernel(AdamConstants a, const StepScalars* scalars, const NormResult* norm,
                                     const __grid_constant__ UpdateRanges ranges, const G* d_parameter,
                                     const P* weights, const float* m, const float* v, double* bins) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const Step step = step_of(scalars, norm);
  constexpr std::int64_t kOfBlock = kBinThreads * kBinElements;
  std::int64_t block = blockIdx.x;
  int r = 0;
  for (; block * kOfBlock >= ranges.at[r].count; ++r) block -= (ranges.at[r].count + kOfBlock - 1) / kOfBlock;
  const UpdateRange& range = ranges.at[r];
  float weight[kBinElements], update[kBinElements];
#pragma unroll
  for (int i = 0; i < kBinElements; ++i) {
    const std::int64_t of_range = bin_element(block, i), at = range.first + of_range;
    weight[i] = update[i] = 0;
    if (of_range >= range.count) continue;
    weight[i] = widen(weights[at]);
    if (m == nullptr) {
      update[i] = widen(d_parameter[at]) * step.factor;
      continue;
    }
    float first = m[at], second = v[at];
    update[i] =
        adam_update(a, range.decay, step, widen(d_parameter[at]) * step.factor, weight[i], first, second);
  }
  double* const of_tensor = bins + range.tensor * 2 * reference::kSquareBins;
  add_block_squares(weight, of_tensor);
  add_block_squares(update, of_tensor + reference::kSquareBins);
}

__global__ void trust_ratios_kernel(std::int64_t tensors, const double* bins, float* ratios) {
  for (std::int64_t t = thread_of_grid(); t < tensors; t += threads_of_grid()) {
    const double* const of = bins + 2 * t * reference::kSquareBins;
    const double w = sqrt(sum_of_bins(of)), u = sqrt(sum_of_bins(of + reference::kSquareBins));
    ratios[t] = w > 0 && u > 0 ? static_cast<float>(w / u) : 1.0F;
  }
}

__global__ void sgd_kernel(float momentum, float coefficient, const StepScalars* scalars,
                           const NormResult* norm, const float* ratios,
                           const __grid_constant__ UpdateRanges ranges, const float* d_parameter,
                           float* parameter, float* velocity) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const Step step = step_of(scalars, norm);
  for_each_element<1>(ranges, [&](auto, const UpdateRange& range, std::int64_t at) {
    if (range.sign_rate > 0) {
      parameter[at] -= step_by_sign(d_parameter[at], range.sign_rate);
      return;
    }
    if (ratios != nullptr) {
      const float ratio = ratios[range.tensor];
      const float rate = step.rate * coefficient * ratio / (1 + range.decay * ratio);
      velocity[at] =
          momentum * velocity[at] + rate * (d_parameter[at] * step.factor + range.decay * parameter[at]);
      parameter[at] -= velocity[at];
      return;
    }
    velocity[at] = momentum * velocity[at] + d_parameter[at] * step.factor;
    parameter[at] -= step.rate * velocity[at];
  });
}

template <class T, class D>
__global__ void outer_difference_kernel(std::int64_t n, const T* weights, const float* anchor,
                                        D* difference) {
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid())
    narrow(anchor[i] - widen(weights[i]), difference[i]);
}

template <class T, class D>
__global__ void outer_update_kernel(reference::Outer o, std::int64_t n, const D* sum, float* anchor,
                                    float* velocity, float* master, T* parameter) {
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
    const float g = widen(sum[i]) * o.share;
    float by = g;
    if (velocity != nullptr) {
      velocity[i] = o.momentum * velocity[i] + g;
      by = g + o.momentum * velocity[i];
    }
    anchor[i] -= o.learning_rate * by;
    if (master != nullptr) master[i] = anchor[i];
    narrow(anchor[i], parameter[i]);
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

template <class T>
__global__ void narrow_kernel(std::int64_t n, const float* x, T* rounded) {
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) narrow(x[i], rounded[i]);
}

__global__ void add_doubles_kernel(std::int64_t n, const double* x, double* sum) {
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) sum[i] += x[i];
}

}  // namespace

void adam(Stream stream, DType type, DType gradient, const AdamConstants& a, const StochasticRounding& r,
          const StepScalars* scalars, const NormResult* norm, const float* trust,
          std::span<const UpdateRange> ranges, const void* d_parameter, void* parameter,
          const AdamMemory& state) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    const bool vectors =
        takes_vectors<T>(0, {d_parameter, parameter, state.master, state.beside, state.m, state.v});
    const auto run = [&]<class M>(M) {
      with_vectors<T>(vectors, [&]<int V>(std::integral_constant<int, V>) {
        by_launch<V>(ranges, [&](const Grid& grid, const UpdateRanges& of) {
          launch(stream, "adam", grid, adam_kernel<T, G, M, V>, a, r, scalars, norm, trust, of,
                 static_cast<const G*>(d_parameter), static_cast<T*>(parameter), state.master, state.beside,
                 static_cast<M*>(state.m), static_cast<M*>(state.v));
        });
      });
    };
    if (state.moment == DType::kFloat32) return run(float{});
    if (state.moment == DType::kBfloat16) return run(BFloat16{});
    throw Error("Adam's moments are in fp32 or bf16");
  });
}

void trust_squares(Stream stream, DType type, DType gradient, const AdamConstants& a,
                   const StepScalars* scalars, const NormResult* norm, std::span<const UpdateRange> ranges,
                   const void* d_parameter, const void* parameter, const float* master, const float* m,
                   const float* v, double* bins) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    const auto run = [&]<class P>(const P* weights) {
      by_launch<1>(ranges, [&](Grid grid, const UpdateRanges& of) {
        grid = {.blocks = 0, .threads = kBinThreads};
        for (int i = 0; i < of.count; ++i) grid.blocks += cover(of.at[i].count, kBinThreads * kBinElements);
        launch(stream, "trust_squares", grid, trust_squares_kernel<P, G>, a, scalars, norm, of,
               static_cast<const G*>(d_parameter), weights, m, v, bins);
      });
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

void sgd(Stream stream, float momentum, float coefficient, const StepScalars* scalars, const NormResult* norm,
         const float* ratios, std::span<const UpdateRange> ranges, const float* d_parameter, float* parameter,
         float* velocity) {
  by_launch<1>(ranges, [&](const Grid& grid, const UpdateRanges& of) {
    launch(stream, "sgd", grid, sgd_kernel, momentum, coefficient, scalars, norm, ratios, of, d_parameter,
           parameter, velocity);
  });
}

void outer_difference(Stream stream, DType type, DType difference_type, Index n, const void* weights,
                      const float* anchor, void* difference) {
  with_type(type, [&]<class T>(T) {
    with_type(difference_type, [&]<class D>(D) {
      launch(stream, "outer_difference", {.blocks = strided_blocks(n, 256)}, outer_difference_kernel<T, D>, n,
             static_cast<const T*>(weights), anchor, static_cast<D*>(difference));
    });
  });
}

void outer_update(Stream stream, DType type, DType difference_type, const reference::Outer& o, Index n,
                  const void* sum, float* anchor, float* velocity, float* master, void* parameter) {
  with_type(type, [&]<class T>(T) {
    with_type(difference_type, [&]<class D>(D) {
      launch(stream, "outer_update", {.blocks = strided_blocks(n, 256)}, outer_update_kernel<T, D>, o, n,
             static_cast<const D*>(sum), anchor, velocity, master, static_cast<T*>(parameter));
    });
  });
}

void narrow_to(Stream stream, DType type, Index n, const float* x, void* rounded) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "narrow", {.blocks = strided_blocks(n, 256)}, narrow_kernel<T>, n, x,
           static_cast<T*>(rounded));
  });
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
