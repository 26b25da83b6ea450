// SPDX-License-Identifier: Apache-2.0
//
// Muon beside its products (core/muon.h). Floor, in bytes an element: the momentum 12 with 16-bit gradients,
// the update 12 with a master copy; a copy of rows, and a matrix by its norm, two elements each.
#include "kernels/cuda/bins.h"
#include "kernels/cuda/element.h"

namespace orrery::kernels::cuda {
namespace {

// Factors of one launch: momentum, and times what the update has the gradient.
struct MomentumFactors {
  float momentum, of_gradient, of_moment;
};

template <class G, class U>
__global__ void muon_momentum_kernel(MomentumFactors f, const NormResult* norm, std::int64_t n,
                                     const G* gradient, float* moment, U* update) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const float factor = norm != nullptr ? norm->factor : 1.0F;
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
    const float g = widen(gradient[i]) * factor;
    const float m = f.momentum * moment[i] + g;
    moment[i] = m;
    narrow(f.of_gradient * g + f.of_moment * m, update[i]);
  }
}

template <class T, class U>
__global__ void muon_update_kernel(const StepScalars* scalars, const NormResult* norm, float decay,
                                   std::int64_t n, const U* update, T* parameter, float* master) {
  if (norm != nullptr && norm->overflowed != 0) return;
  const float rate = scalars->learning_rate;
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
    const float old = master != nullptr ? master[i] : widen(parameter[i]);
    const float now = (1 - rate * decay) * old - rate * widen(update[i]);
    if (master != nullptr) master[i] = now;
    narrow(now, parameter[i]);
  }
}

template <class T>
__global__ void copy_rows_kernel(std::int64_t rows, std::int64_t width, float factor, const T* from,
                                 std::int64_t from_stride, T* to, std::int64_t to_stride) {
  for (std::int64_t i = thread_of_grid(); i < rows * width; i += threads_of_grid()) {
    const std::int64_t row = i / width, column = i % width;
    narrow(factor * widen(from[row * from_stride + column]), to[row * to_stride + column]);
  }
}

template <class T>
__global__ void by_norm_kernel(std::int64_t n, const double* bins, T* x) {
  const double squares = sum_of_bins(bins);
  if (squares == 0) return;
  const auto factor = static_cast<float>(1 / sqrt(squares));
  for (std::int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) narrow(factor * widen(x[i]), x[i]);
}

}  // namespace

void muon_momentum(Stream stream, DType gradient_type, DType update_type, float momentum, bool nesterov,
                   const NormResult* norm, Index n, const void* gradient, float* moment, void* update) {
  const MomentumFactors factors{momentum, nesterov ? 1.0F : 0.0F, nesterov ? momentum : 1.0F};
  with_type(gradient_type, [&]<class G>(G) {
    with_type(update_type, [&]<class U>(U) {
      launch(stream, "muon_momentum", {.blocks = strided_blocks(n, 256)}, muon_momentum_kernel<G, U>, factors,
             norm, n, static_cast<const G*>(gradient), moment, static_cast<U*>(update));
    });
  });
}

void muon_update(Stream stream, DType type, DType update_type, const StepScalars* scalars,
                 const NormResult* norm, float decay, Index n, const void* update, void* parameter,
                 float* master) {
  with_type(type, [&]<class T>(T) {
    with_type(update_type, [&]<class U>(U) {
      launch(stream, "muon_update", {.blocks = strided_blocks(n, 256)}, muon_update_kernel<T, U>, scalars,
             norm, decay, n, static_cast<const U*>(update), static_cast<T*>(parameter), master);
    });
  });
}

void copy_rows(Stream stream, DType type, Index rows, Index width, float factor, const void* from,
               Index from_stride, void* to, Index to_stride) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "copy_rows", {.blocks = strided_blocks(rows * width, 256)}, copy_rows_kernel<T>, rows,
           width, factor, static_cast<const T*>(from), from_stride, static_cast<T*>(to), to_stride);
  });
}

void divide_by_norm(Stream stream, DType type, Index n, const double* bins, void* x) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "divide_by_norm", {.blocks = strided_blocks(n, 256)}, by_norm_kernel<T>, n, bins,
           static_cast<T*>(x));
  });
}

}  // namespace orrery::kernels::cuda
