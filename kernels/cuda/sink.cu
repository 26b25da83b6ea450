// SPDX-License-Identifier: Apache-2.0
//
// A learned score of each head beside those of its keys (reference.h): a warp for each row and head; its
// gradient has a block for each head. Floor: the context once read and once written, and read twice.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 8;

// Where the log-sum of a row and head stands, as SinkShape::lse.
__device__ Index sum_of(const reference::SinkShape& s, Index row, Index head) {
  return s.rows_first ? row * s.heads + head : (row / s.seq * s.heads + head) * s.seq + row % s.seq;
}

template <class T>
__global__ void attention_sink_kernel(reference::SinkShape s, const T* sinks, T* out, float* lse) {
  const Index item = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.y;
  if (item >= s.batch * s.seq * s.heads) return;
  const Index row = item / s.heads, head = item % s.heads;
  float* const sum = lse + sum_of(s, row, head);
  const float before = *sum, sink = widen(sinks[head]), most = fmaxf(before, sink);
  const float all = most + logf(expf(before - most) + expf(sink - most)), share = expf(before - all);
  T* const o = out + item * s.value;
  for (Index j = lane_of_warp(); j < s.value; j += kWarp) narrow(widen(o[j]) * share, o[j]);
  __syncwarp();
  if (lane_of_warp() == 0) *sum = all;
}

template <class T, class G>
__global__ void attention_sink_grad_kernel(reference::SinkShape s, const T* sinks, const T* out,
                                           const float* lse, const T* d_out, G* d_sinks, bool accumulate) {
  const Index head = blockIdx.x;
  const float sink = widen(sinks[head]);
  float sum = 0;
  for (Index row = threadIdx.x; row < s.batch * s.seq; row += blockDim.x) {
    const Index at = (row * s.heads + head) * s.value;
    float product = 0;
    for (Index j = 0; j < s.value; ++j) product += widen(d_out[at + j]) * widen(out[at + j]);
    sum -= expf(sink - lse[sum_of(s, row, head)]) * product;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) narrow((accumulate ? widen(d_sinks[head]) : 0.0F) + sum, d_sinks[head]);
}

}  // namespace

void attention_sink(Stream stream, DType type, const reference::SinkShape& s, const void* sinks, void* out,
                    float* lse) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "attention_sink",
           {.blocks = cover(s.batch * s.seq * s.heads, kWarps), .threads = kWarp, .threads_y = kWarps},
           attention_sink_kernel<T>, s, static_cast<const T*>(sinks), static_cast<T*>(out), lse);
  });
}

void attention_sink_grad(Stream stream, DType type, DType gradient, const reference::SinkShape& s,
                         const void* sinks, const void* out, const float* lse, const void* d_out,
                         void* d_sinks, bool accumulate) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    launch(stream, "attention_sink_grad", {.blocks = s.heads, .threads = threads_for(s.batch * s.seq)},
           attention_sink_grad_kernel<T, G>, s, static_cast<const T*>(sinks), static_cast<const T*>(out), lse,
           static_cast<const T*>(d_out), static_cast<G*>(d_sinks), accumulate);
  });
}

}  // namespace orrery::kernels::cuda
