// SPDX-License-Identifier: Apache-2.0
//
// Patches of images and pooled samples (reference.h). Floor, in elements: patches in + out, their gradient in
// + 2 out; pooling the rows that count, and one a sample.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

template <class T>
__global__ void patches_kernel(reference::PatchesShape s, bool adds, const T* x, const T* bias, const T* cls,
                               T* y) {
  const Index tokens = s.patches + (cls != nullptr ? 1 : 0), before = tokens - s.patches;
  for (Index i = thread_of_grid(); i < s.batch * tokens * s.width; i += threads_of_grid()) {
    const Index row = i / s.width, column = i % s.width, token = row % tokens;
    if (token < before) {
      narrow(adds ? widen(cls[column]) : 0.0F, y[i]);
    } else {
      const Index from = (row / tokens * s.patches + token - before) * s.width + column;
      narrow(widen(x[from]) + (adds ? widen(bias[column]) : 0.0F), y[i]);
    }
  }
}

template <class T>
__global__ void patches_copy_kernel(reference::PatchesShape s, Index before, const T* dy, T* dx) {
  for (Index i = thread_of_grid(); i < s.batch * s.patches * s.width; i += threads_of_grid()) {
    const Index row = i / s.width;
    dx[i] = dy[((row / s.patches + 1) * before + row) * s.width + i % s.width];
  }
}

// A thread for each column, over the rows in their order.
template <class T, class G>
__global__ void patches_sums_kernel(reference::PatchesShape s, Index before, bool accumulate, const T* dy,
                                    G* d_bias, G* d_cls) {
  for (Index column = thread_of_grid(); column < s.width; column += threads_of_grid()) {
    float bias = 0, cls = 0;
    for (Index row = 0; row < s.batch * (s.patches + before); ++row) {
      const float d = widen(dy[row * s.width + column]);
      (row % (s.patches + before) < before ? cls : bias) += d;
    }
    narrow(accumulate ? widen(d_bias[column]) + bias : bias, d_bias[column]);
    if (d_cls != nullptr) narrow(accumulate ? widen(d_cls[column]) + cls : cls, d_cls[column]);
  }
}

// The rows [first, end) of a sample that count.
struct Rows {
  Index first, end;
};
__device__ Rows rows_of(const reference::PoolShape& s, Index sample) {
  const Index first = sample * s.seq - s.first_row, end = s.mean ? first + s.seq : first + 1;
  return {first < 0 ? 0 : first, end < s.rows ? end : s.rows};
}

template <class T>
__global__ void pool_kernel(reference::PoolShape s, float weight, const T* x, T* y) {
  for (Index i = thread_of_grid(); i < s.batch * s.width; i += threads_of_grid()) {
    const Index sample = i / s.width;
    const Rows rows = rows_of(s, sample);
    float sum = 0;
    for (Index row = rows.first; row < rows.end; ++row) sum += widen(x[row * s.width + i % s.width]);
    narrow(sum * weight, y[i]);
  }
}

template <class T>
__global__ void pool_grad_kernel(reference::PoolShape s, float weight, const T* dy, T* dx) {
  for (Index i = thread_of_grid(); i < s.rows * s.width; i += threads_of_grid()) {
    const Index row = i / s.width, sample = (s.first_row + row) / s.seq;
    const Rows rows = rows_of(s, sample);
    const bool counts = row >= rows.first && row < rows.end;
    narrow(counts ? widen(dy[sample * s.width + i % s.width]) * weight : 0.0F, dx[i]);
  }
}

float weight_of(const reference::PoolShape& s) {
  return s.mean ? 1.0F / static_cast<float>(s.seq) : 1.0F;
}

}  // namespace

void patches(Stream stream, DType type, const reference::PatchesShape& s, bool adds, const void* x,
             const void* bias, const void* cls, void* y) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "patches", {.blocks = strided_blocks(s.batch * (s.patches + 1) * s.width, 256)},
           patches_kernel<T>, s, adds, static_cast<const T*>(x), static_cast<const T*>(bias),
           static_cast<const T*>(cls), static_cast<T*>(y));
  });
}

void patches_grad(Stream stream, DType type, DType gradient, const reference::PatchesShape& s, const void* dy,
                  void* dx, void* d_bias, void* d_cls, bool accumulate) {
  const Index before = d_cls != nullptr ? 1 : 0;
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    launch(stream, "patches_grad", {.blocks = strided_blocks(s.batch * s.patches * s.width, 256)},
           patches_copy_kernel<T>, s, before, static_cast<const T*>(dy), static_cast<T*>(dx));
    launch(stream, "patches_grad", {.blocks = strided_blocks(s.width, 256)}, patches_sums_kernel<T, G>, s,
           before, accumulate, static_cast<const T*>(dy), static_cast<G*>(d_bias), static_cast<G*>(d_cls));
  });
}

void pool(Stream stream, DType type, const reference::PoolShape& s, const void* x, void* y) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "pool", {.blocks = strided_blocks(s.batch * s.width, 256)}, pool_kernel<T>, s,
           weight_of(s), static_cast<const T*>(x), static_cast<T*>(y));
  });
}

void pool_grad(Stream stream, DType type, const reference::PoolShape& s, const void* dy, void* dx) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "pool_grad", {.blocks = strided_blocks(s.rows * s.width, 256)}, pool_grad_kernel<T>, s,
           weight_of(s), static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

}  // namespace orrery::kernels::cuda
