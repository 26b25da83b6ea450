// SPDX-License-Identifier: Apache-2.0
//
// Attention: which kernel serves a shape, and what both backward passes begin with.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/element.h"

namespace orrery::kernels::cuda {
namespace {

// d[sample, head, i] = sum(d_out out) over the head's elements; a warp for each.
template <class T>
__global__ void dot_kernel(AttentionPlaces s, const T* out, const T* d_out, float* d) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;  // token, head
  if (item >= static_cast<std::int64_t>(s.batch) * s.seq * s.heads) return;
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x); j < s.head; j += kWarp)
    sum += widen(out[item * s.head + j]) * widen(d_out[item * s.head + j]);
  sum = warp_sum(sum);
  const std::int64_t token = item / s.heads;
  if (threadIdx.x == 0) d[(token / s.seq * s.heads + item % s.heads) * s.seq + token % s.seq] = sum;
}

}  // namespace

std::size_t attention_grad_workspace(const reference::AttentionShape& s) {
  return static_cast<std::size_t>(s.batch * s.heads * s.seq) * sizeof(float);
}

void attention(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
               reference::AttentionRows<const void*> rows, void* out, void* softmax, std::uint8_t* mask) {
  if (has_flash(type, s)) return flash_attention(stream, type, s, rows.q, out, static_cast<float*>(softmax));
  plain_attention(stream, type, s, first_sample, rows, out, softmax, mask);
}

void attention_grad(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
                    reference::AttentionRows<const void*> rows, const void* out, const void* softmax,
                    const std::uint8_t* mask, const void* d_out, reference::AttentionRows<void*> d_rows,
                    Workspace workspace) {
  auto* const d = static_cast<float*>(workspace.memory);
  with_type(type, [&]<class T>(T) {
    constexpr int kWarps = 8;
    launch(stream, "attention_grad",
           {.blocks = cover(s.batch * s.seq * s.heads, kWarps), .threads = kWarp, .threads_y = kWarps},
           dot_kernel<T>, places_of(s), static_cast<const T*>(out), static_cast<const T*>(d_out), d);
  });
  if (has_flash(type, s)) {
    return flash_attention_grad(stream, type, s, rows.q, static_cast<const float*>(softmax), d_out, d_rows.q,
                                d);
  }
  plain_attention_grad(stream, type, s, first_sample, rows, softmax, mask, d_out, d_rows, d);
}

}  // namespace orrery::kernels::cuda
