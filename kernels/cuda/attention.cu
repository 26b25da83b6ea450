// SPDX-License-Identifier: Apache-2.0
//
// Attention: cuDNN's kernel where it serves the shape, else a plain one; and what goes before it.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/element.h"
#include "kernels/cuda/fused_attention.h"

namespace orrery::kernels::cuda {
namespace {

// d[sample, head, i] = sum(d_out out) over the head's elements; a warp for each.
template <class T>
__global__ void dot_kernel(AttentionPlaces s, const T* out, const T* d_out, float* d) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;  // token, head
  if (item >= static_cast<std::int64_t>(s.batch) * s.seq * s.heads) return;
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x); j < s.value; j += kWarp)
    sum += widen(out[item * s.value + j]) * widen(d_out[item * s.value + j]);
  sum = warp_sum(sum);
  const std::int64_t token = item / s.heads;
  if (threadIdx.x == 0) d[(token / s.seq * s.heads + item % s.heads) * s.seq + token % s.seq] = sum;
}

template <class T>
__global__ void latent_pack_kernel(reference::LatentShape s, const T* q, const T* kv, const T* r, T* qkv) {
  const Index head = s.turned + s.plain, queries = s.heads * head, other = s.plain + s.value;
  const Index width = 2 * queries + s.heads * s.value;
  for (Index i = thread_of_grid(); i < s.rows * width; i += threads_of_grid()) {
    const Index row = i / width, at = i % width;
    if (at < queries) {
      qkv[i] = q[row * queries + at];
    } else if (at < 2 * queries) {
      const Index h = (at - queries) / head, e = (at - queries) % head;
      qkv[i] = e < s.turned ? r[row * s.turned + e] : kv[(row * s.heads + h) * other + e - s.turned];
    } else {
      const Index h = (at - 2 * queries) / s.value, e = (at - 2 * queries) % s.value;
      qkv[i] = kv[(row * s.heads + h) * other + s.plain + e];
    }
  }
}

// A thread for each element of q, then of kv, then of r.
template <class T>
__global__ void latent_pack_grad_kernel(reference::LatentShape s, const T* d_qkv, T* dq, T* dkv, T* dr) {
  const Index head = s.turned + s.plain, queries = s.heads * head, other = s.plain + s.value;
  const Index width = 2 * queries + s.heads * s.value, of_row = queries + s.heads * other + s.turned;
  for (Index i = thread_of_grid(); i < s.rows * of_row; i += threads_of_grid()) {
    const Index row = i / of_row, at = i % of_row, others = at - queries, turned = others - s.heads * other;
    const T* const from = d_qkv + row * width;
    if (at < queries) {
      dq[row * queries + at] = from[at];
    } else if (turned < 0) {
      const Index h = others / other, e = others % other;
      dkv[row * s.heads * other + others] = e < s.plain ? from[queries + h * head + s.turned + e]
                                                        : from[2 * queries + h * s.value + e - s.plain];
    } else {
      float sum = 0;
      for (Index h = 0; h < s.heads; ++h) sum += widen(from[queries + h * head + turned]);
      narrow(sum, dr[row * s.turned + turned]);
    }
  }
}

}  // namespace

void latent_pack(Stream stream, DType type, const reference::LatentShape& s, const void* q, const void* kv,
                 const void* r, void* qkv) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "latent_pack",
           {.blocks = strided_blocks(s.rows * s.heads * (2 * (s.turned + s.plain) + s.value), 256)},
           latent_pack_kernel<T>, s, static_cast<const T*>(q), static_cast<const T*>(kv),
           static_cast<const T*>(r), static_cast<T*>(qkv));
  });
}

void latent_pack_grad(Stream stream, DType type, const reference::LatentShape& s, const void* d_qkv, void* dq,
                      void* dkv, void* dr) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "latent_pack_grad",
           {.blocks = strided_blocks(s.rows * s.heads * (s.turned + 2 * s.plain + s.value), 256)},
           latent_pack_grad_kernel<T>, s, static_cast<const T*>(d_qkv), static_cast<T*>(dq),
           static_cast<T*>(dkv), static_cast<T*>(dr));
  });
}

std::size_t attention_workspace(DType type, const reference::AttentionShape& s) {
  return fused_attention_workspace(AttentionPass::kForward, type, s).value_or(0);
}

std::size_t attention_grad_workspace(DType type, const reference::AttentionShape& s) {
  return fused_attention_workspace(AttentionPass::kBackward, type, s)
      .value_or(static_cast<std::size_t>(s.batch * s.heads * s.seq) * sizeof(float));
}

void attention(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
               reference::AttentionRows<const void*> rows, void* out, void* softmax, std::uint8_t* mask,
               Workspace workspace) {
  if (fused_attention_workspace(AttentionPass::kForward, type, s))
    return fused_attention(stream, type, s, rows, out, static_cast<float*>(softmax), workspace);
  plain_attention(stream, type, s, first_sample, rows, out, softmax, mask);
}

void attention_grad(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
                    reference::AttentionRows<const void*> rows, const void* out, const void* softmax,
                    const std::uint8_t* mask, const void* d_out, reference::AttentionRows<void*> d_rows,
                    Workspace workspace) {
  if (fused_attention_workspace(AttentionPass::kBackward, type, s)) {
    return fused_attention_grad(stream, type, s, rows, out, static_cast<const float*>(softmax), d_out, d_rows,
                                workspace);
  }
  auto* const d = static_cast<float*>(workspace.memory);
  with_type(type, [&]<class T>(T) {
    constexpr int kWarps = 8;
    launch(stream, "attention_grad",
           {.blocks = cover(s.batch * s.seq * s.heads, kWarps), .threads = kWarp, .threads_y = kWarps},
           dot_kernel<T>, places_of(s), static_cast<const T*>(out), static_cast<const T*>(d_out), d);
  });
  plain_attention_grad(stream, type, s, first_sample, rows, softmax, mask, d_out, d_rows, d);
}

}  // namespace orrery::kernels::cuda
