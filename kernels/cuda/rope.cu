// SPDX-License-Identifier: Apache-2.0
//
// Rotary positions, in place on the first `turned` elements of the first `heads` heads of rows [rows, width]:
// elements j and j + turned/2 turn by the angle of (token, j). Floor: 2 rows heads turned elements. A
// thread turns V pairs.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

template <class T, int V>
__global__ void rope_kernel(reference::RopeShape s, const float* cosine, const float* sine, T* x) {
  const std::int64_t half = s.turned / 2, of_row = s.heads * half / V;
  for (std::int64_t i = thread_of_grid(); i < s.rows * of_row; i += threads_of_grid()) {
    const std::int64_t row = i / of_row, pair = i % of_row * V, j = pair % half;
    T* const head = x + row * s.width + pair / half * s.head;
    const std::int64_t angle = s.share.position(row % s.seq) * half + j;
    float a[V], b[V], turned_a[V], turned_b[V];
    load(head + j, a);
    load(head + j + half, b);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float c = cosine[angle + k], sn = s.inverse ? -sine[angle + k] : sine[angle + k];
      turned_a[k] = a[k] * c - b[k] * sn;
      turned_b[k] = a[k] * sn + b[k] * c;
    }
    store(turned_a, head + j);
    store(turned_b, head + j + half);
  }
}

}  // namespace

void rope(Stream stream, DType type, const reference::RopeShape& s, const float* cosine, const float* sine,
          void* x) {
  with_type(type, [&]<class T>(T) {
    const bool vectors =
        takes_vectors<T>(s.width, {x}) && takes_vectors<T>(s.head, {}) && takes_vectors<T>(s.turned / 2, {});
    with_vectors<T>(vectors, [&]<int V>(std::integral_constant<int, V>) {
      const std::int64_t n = s.rows * s.heads * (s.turned / 2) / V;
      launch(stream, "rope", {.blocks = strided_blocks(n, 256)}, rope_kernel<T, V>, s, cosine, sine,
             static_cast<T*>(x));
    });
  });
}

}  // namespace orrery::kernels::cuda
