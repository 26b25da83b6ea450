// SPDX-License-Identifier: Apache-2.0
//
// Attention without cuDNN, and where heads stand in rows. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/philox.h"

namespace orrery::kernels::cuda {

// Fused rows [q heads | k heads | v heads], or rows of queries beside [k heads | v heads] of another
// sequence.
struct AttentionPlaces {
  int batch, seq, heads, kv, head, value;
  int keys;    // tokens that keys are of
  bool apart;  // they stand in rows of their own
  __host__ __device__ std::int64_t keys_and_values() const {
    return static_cast<std::int64_t>(kv) * (head + value);
  }
  __host__ __device__ std::int64_t width() const {
    return static_cast<std::int64_t>(heads) * head + keys_and_values();
  }
  __device__ std::int64_t query_width() const {
    return apart ? static_cast<std::int64_t>(heads) * head : width();
  }
  __device__ std::int64_t key_width() const { return apart ? keys_and_values() : width(); }
  // Element of a token's row where a query head begins, and the key and value head that it looks at.
  __device__ std::int64_t q(int h) const { return static_cast<std::int64_t>(h) * head; }
  __device__ std::int64_t k(int h) const {
    return ((apart ? 0 : heads) + static_cast<std::int64_t>(h) * kv / heads) * head;
  }
  __device__ std::int64_t v(int h) const {
    return static_cast<std::int64_t>((apart ? 0 : heads) + kv) * head +
           static_cast<std::int64_t>(h) * kv / heads * value;
  }
};
inline AttentionPlaces places_of(const reference::AttentionShape& s) {
  return {static_cast<int>(s.batch),  static_cast<int>(s.seq),  static_cast<int>(s.heads),
          static_cast<int>(s.kv),     static_cast<int>(s.head), static_cast<int>(s.value_head()),
          static_cast<int>(s.keys()), s.other_seq > 0};
}

void plain_attention(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
                     reference::AttentionRows<const void*> rows, void* out, void* softmax,
                     std::uint8_t* mask);
// `d` has the sums of d_out out: fp32 [batch, heads, seq].
void plain_attention_grad(Stream stream, DType type, const reference::AttentionShape& s,
                          const Index* first_sample, reference::AttentionRows<const void*> rows,
                          const void* softmax, const std::uint8_t* mask, const void* d_out,
                          reference::AttentionRows<void*> d_rows, const float* d);

}  // namespace orrery::kernels::cuda
