// SPDX-License-Identifier: Apache-2.0
//
// Attention of ranks that share sequences (kernels/cpu/context.h): a block for each query and head (backward:
// also for each key and head of it), with its row of scores in shared memory, without tensor cores. Sequences
// of at most about 25,000 tokens of keys at a time.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/philox.h"

namespace orrery::kernels::cuda {
namespace {

__device__ int threads() {
  return static_cast<int>(blockDim.x);
}

// Of a sample, rows of queries, or of keys: part by part.
__device__ Index row_of(const ContextShape& s, Index sample, Index i) {
  return (i / s.tokens * s.batch + sample) * s.tokens + i % s.tokens;
}
// The position of a sample's row, the first of whose parts are of this place in the ring.
__device__ Index place_of(const ContextShape& s, Index ring_rank, Index i) {
  const Index part = i / s.tokens;
  return token_share(s.tokens, s.ring, s.ulysses, ring_rank + part / s.ulysses, part % s.ulysses)
      .position(i % s.tokens);
}
__device__ Index first_place(const ContextShape& s) {
  return s.gathered ? 0 : s.source;
}
__device__ bool sees(const ContextShape& s, Index sample, Index query, Index key) {
  if (s.sees_all) return true;
  if (key > query || (s.window > 0 && key <= query - s.window)) return false;
  return !s.packed || key >= s.document[sample * s.ring * s.ulysses * s.tokens + query];
}

template <class T>
__device__ float dot(const T* a, const T* b, Index n) {
  float sum = 0;
  for (Index j = 0; j < n; ++j) sum += widen(a[j]) * widen(b[j]);
  return sum;
}

// Factors that the host knows.
struct Scores {
  float scale;
  bool drops;
  DropoutKey key;
};
Scores scores_of(const ContextShape& s) {
  return {s.scale(), s.dropout.probability > 0, key_of(s.dropout)};
}
__device__ float score_of(const ContextShape& s, const Scores& c, float product) {
  return s.cap > 0 ? s.cap * tanhf(c.scale * product / s.cap) : c.scale * product;
}
__device__ float left_of(const ContextShape& s, const Scores& c, const Index* first_sample, Index sample,
                         Index head, Index query, Index key) {
  if (!c.drops) return 1.0F;
  const Index sequence = s.ring * s.ulysses * s.tokens, row = (s.first_head + head) * sequence + query;
  const Kept kept = keep4(c.key, c.key.first_sample + *first_sample + sample, row, key / 4 * 4);
  return kept.at[key % 4] ? c.key.scale : 0.0F;
}

// The query that a block serves.
struct Item {
  Index sample, head, row, position;
};
__device__ Item item_of_block(const ContextShape& s) {
  const Index own = s.ulysses * s.tokens, block = blockIdx.x, i = block % own, pair = block / own;
  const Index sample = pair / s.heads;
  return {sample, pair % s.heads, row_of(s, sample, i), place_of(s, s.rank, i)};
}

template <class T, class O>
__global__ void context_kernel(ContextShape s, Scores c, const Index* first_sample, const T* q, const T* kv,
                               const float* sums, O* out, float* lse) {
  auto* const p = dynamic_shared<float>();
  const Item at = item_of_block(s);
  const Index width = s.kv * (s.head + s.value), of_key = at.head * s.kv / s.heads,
              keys = (s.gathered ? s.ring : 1) * s.ulysses * s.tokens;
  const T* const query = q + (at.row * s.heads + at.head) * s.head;
  const int thread = static_cast<int>(threadIdx.x);
  float most = -1e30F, sum = 0;
  for (Index j = thread; j < keys; j += threads()) {
    const bool seen = sees(s, at.sample, at.position, place_of(s, first_place(s), j));
    const T* const key = kv + row_of(s, at.sample, j) * width + of_key * s.head;
    p[j] = seen ? score_of(s, c, dot(query, key, s.head)) : -1e30F;
    most = fmaxf(most, p[j]);
  }
  most = block_max(most);
  for (Index j = thread; j < keys; j += threads()) {
    const Index position = place_of(s, first_place(s), j);
    const bool seen = sees(s, at.sample, at.position, position);
    const float e = seen ? expf(p[j] - most) : 0.0F;
    sum += e;
    p[j] = seen ? e * left_of(s, c, first_sample, at.sample, at.head, at.position, position) : 0.0F;
  }
  sum = block_sum(sum);
  const Index item = at.row * s.heads + at.head;
  const float here = sum > 0 ? most + logf(sum) : -1e30F;
  float before = 0, weight = sum > 0 ? 1.0F / sum : 0.0F, all = here;
  if (s.more) {
    const float old = lse[item], larger = fmaxf(old, here);
    all = larger + logf(expf(old - larger) + expf(here - larger));
    before = expf(old - all);
    weight *= expf(here - all);
  }
  __syncthreads();
  if (thread == 0) lse[item] = all;
  for (Index e = thread; e < s.value; e += threads()) {
    float x = 0;
    for (Index j = 0; j < keys; ++j) {
      if (p[j] != 0)
        x += p[j] * widen(kv[row_of(s, at.sample, j) * width + s.kv * s.head + of_key * s.value + e]);
    }
    narrow((s.more ? before * sums[item * s.value + e] : 0.0F) + weight * x, out[item * s.value + e]);
  }
}

// What the backward pass has of a query and a key: what dropout left of the probability, and the gradient of
// their product.
struct Pair {
  float left_p, d_score;
};
template <class T>
__device__ Pair pair_of(const ContextShape& s, const Scores& c, const Index* first_sample, const T* q,
                        const T* kv, const float* lse, const T* d_out, float d, const Item& at, Index key_row,
                        Index key_position) {
  if (!sees(s, at.sample, at.position, key_position)) return {0, 0};
  const Index width = s.kv * (s.head + s.value), of_key = at.head * s.kv / s.heads,
              item = at.row * s.heads + at.head;
  const T* const row = kv + key_row * width;
  const float score = score_of(s, c, dot(q + item * s.head, row + of_key * s.head, s.head));
  const float p = expf(score - lse[item]);
  const float left = left_of(s, c, first_sample, at.sample, at.head, at.position, key_position);
  const float dp = dot(d_out + item * s.value, row + s.kv * s.head + of_key * s.value, s.value);
  const float slope = s.cap > 0 ? c.scale * (1.0F - score / s.cap * (score / s.cap)) : c.scale;
  return {left * p, p * (left * dp - d) * slope};
}

template <class T>
__global__ void query_grad_kernel(ContextShape s, Scores c, const Index* first_sample, const T* q,
                                  const T* kv, const T* out, const float* lse, const T* d_out, T* dq) {
  auto* const d_score = dynamic_shared<float>();
  const Item at = item_of_block(s);
  const Index width = s.kv * (s.head + s.value), of_key = at.head * s.kv / s.heads,
              keys = (s.gathered ? s.ring : 1) * s.ulysses * s.tokens, item = at.row * s.heads + at.head;
  const int thread = static_cast<int>(threadIdx.x);
  const float d = dot(d_out + item * s.value, out + item * s.value, s.value);
  for (Index j = thread; j < keys; j += threads()) {
    d_score[j] = pair_of(s, c, first_sample, q, kv, lse, d_out, d, at, row_of(s, at.sample, j),
                         place_of(s, first_place(s), j))
                     .d_score;
  }
  __syncthreads();
  for (Index e = thread; e < s.head; e += threads()) {
    T& to = dq[item * s.head + e];
    float x = s.more ? widen(to) : 0.0F;
    for (Index j = 0; j < keys; ++j) {
      if (d_score[j] != 0) x += d_score[j] * widen(kv[row_of(s, at.sample, j) * width + of_key * s.head + e]);
    }
    narrow(x, to);
  }
}

// A block for each key and key head of a sample.
template <class T>
__global__ void key_grad_kernel(ContextShape s, Scores c, const Index* first_sample, const T* q, const T* kv,
                                const T* out, const float* lse, const T* d_out, T* dkv) {
  auto* const left_p = dynamic_shared<float>();
  const Index own = s.ulysses * s.tokens, shared_by = s.heads / s.kv, width = s.kv * (s.head + s.value),
              keys = (s.gathered ? s.ring : 1) * own;
  float* const d_score = left_p + own;
  const Index key = blockIdx.x % keys, pair = blockIdx.x / keys, sample = pair / s.kv, of_key = pair % s.kv;
  const Index key_row = row_of(s, sample, key), position = place_of(s, first_place(s), key);
  const int thread = static_cast<int>(threadIdx.x);
  T* const row = dkv + key_row * width;
  T* const dk = row + of_key * s.head;
  T* const dv = row + s.kv * s.head + of_key * s.value;
  float sums[4] = {};  // of elements thread, + threads, ... of the key, and then of the value
  for (Index h = of_key * shared_by; h < (of_key + 1) * shared_by; ++h) {
    __syncthreads();
    for (Index i = thread; i < own; i += threads()) {
      const Item at{sample, h, row_of(s, sample, i), place_of(s, s.rank, i)};
      const Index item = at.row * s.heads + h;
      const float d = dot(d_out + item * s.value, out + item * s.value, s.value);
      const Pair x = pair_of(s, c, first_sample, q, kv, lse, d_out, d, at, key_row, position);
      left_p[i] = x.left_p;
      d_score[i] = x.d_score;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Index e = static_cast<Index>(k) * threads() + thread;
      if (e >= s.head + s.value) continue;
      for (Index i = 0; i < own; ++i) {
        const Index item = row_of(s, sample, i) * s.heads + h;
        if (e < s.head)
          sums[k] += d_score[i] * widen(q[item * s.head + e]);
        else
          sums[k] += left_p[i] * widen(d_out[item * s.value + e - s.head]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const Index e = static_cast<Index>(k) * threads() + thread;
    if (e < s.head)
      narrow(sums[k], dk[e]);
    else if (e < s.head + s.value)
      narrow(sums[k], dv[e - s.head]);
  }
}

constexpr int kMostContextThreads = 128;
// Of a block that works on so many keys or queries, and then on so many elements of a head.
constexpr int context_threads(Index items, Index elements) {
  return threads_for(std::max(items, elements), kMostContextThreads);
}

// Element i of rows [tokens, columns] that are whole, in `parts`; the columns from `first` on have `n`.
struct Share {
  Index token, part, column;  // of the block of columns that is shared
};
__device__ Share share_of(const HeadsShape& s, Index i, Index n) {
  return {i / n, i % n / (n / s.parts), i % (n / s.parts)};
}

// Copies between whole rows and parts of them: of a block of `n` columns that begins at `first` of `columns`
// in a whole row, and at `first_of_part` of `part_columns` in a part's.
template <class T>
__global__ void share_kernel(HeadsShape s, Index columns, Index first, Index n, Index part_columns,
                             Index first_of_part, bool to_parts, T* whole, T* parts) {
  for (Index i = thread_of_grid(); i < s.tokens * n; i += threads_of_grid()) {
    const Share at = share_of(s, i, n);
    T& in_whole = whole[at.token * columns + first + at.part * (n / s.parts) + at.column];
    T& in_part = parts[(at.part * s.tokens + at.token) * part_columns + first_of_part + at.column];
    if (to_parts)
      in_part = in_whole;
    else
      in_whole = in_part;
  }
}

// Of columns [first, first + n) of whole rows.
template <class T>
void share(Stream stream, const HeadsShape& s, Index columns, Index first, Index n, Index part_columns,
           Index first_of_part, bool to_parts, T* whole, T* parts) {
  launch(stream, "heads_pack", {.blocks = strided_blocks(s.tokens * n, 256)}, share_kernel<T>, s, columns,
         first, n, part_columns, first_of_part, to_parts, whole, parts);
}

void share_qkv(Stream stream, DType type, const HeadsShape& s, bool to_parts, void* qkv, void* q, void* kv) {
  const Index queries = s.heads * s.head, keys = s.kv * s.head, values = s.kv * s.value,
              columns = queries + keys + values, of_part = (keys + values) / s.parts;
  with_type(type, [&]<class T>(T) {
    auto* const whole = static_cast<T*>(qkv);
    share(stream, s, columns, 0, queries, queries / s.parts, 0, to_parts, whole, static_cast<T*>(q));
    share(stream, s, columns, queries, keys, of_part, 0, to_parts, whole, static_cast<T*>(kv));
    share(stream, s, columns, queries + keys, values, of_part, keys / s.parts, to_parts, whole,
          static_cast<T*>(kv));
  });
}

void share_context(Stream stream, DType type, const HeadsShape& s, bool to_parts, void* whole, void* parts) {
  const Index columns = s.heads * s.value;
  with_type(type, [&]<class T>(T) {
    share(stream, s, columns, 0, columns, columns / s.parts, 0, to_parts, static_cast<T*>(whole),
          static_cast<T*>(parts));
  });
}

}  // namespace

void heads_pack(Stream stream, DType type, const HeadsShape& s, const void* qkv, void* q, void* kv) {
  share_qkv(stream, type, s, true, const_cast<void*>(qkv), q, kv);
}

void heads_pack_grad(Stream stream, DType type, const HeadsShape& s, const void* dq, const void* dkv,
                     void* d_qkv) {
  share_qkv(stream, type, s, false, d_qkv, const_cast<void*>(dq), const_cast<void*>(dkv));
}

void heads_unpack(Stream stream, DType type, const HeadsShape& s, const void* parts, void* whole) {
  share_context(stream, type, s, false, whole, const_cast<void*>(parts));
}

void heads_unpack_grad(Stream stream, DType type, const HeadsShape& s, const void* d_whole, void* d_parts) {
  share_context(stream, type, s, true, const_cast<void*>(d_whole), d_parts);
}

void context_attention(Stream stream, DType type, DType out_type, const ContextShape& s,
                       const Index* first_sample, const void* q, const void* kv, const float* sums, void* out,
                       float* lse) {
  const Index keys = s.key_rows() / s.batch;
  const Grid grid{.blocks = s.rows() * s.heads,
                  .threads = context_threads(keys, s.value),
                  .shared = static_cast<std::size_t>(keys) * sizeof(float)};
  with_types(type, out_type, [&]<class T, class O>(T, O) {
    launch(stream, "context_attention", grid, context_kernel<T, O>, s, scores_of(s), first_sample,
           static_cast<const T*>(q), static_cast<const T*>(kv), sums, static_cast<O*>(out), lse);
  });
}

void context_attention_grad(Stream stream, DType type, const ContextShape& s, const Index* first_sample,
                            const void* q, const void* kv, const void* out, const float* lse,
                            const void* d_out, void* dq, void* dkv) {
  if (s.head + s.value > 4 * kMostContextThreads)
    throw Error("attention on the device takes heads of at most 512 elements of keys and values together");
  const Index key_count = s.key_rows() / s.batch, query_count = s.ulysses * s.tokens;
  const auto grid = [&](Index blocks, Index items, Index elements, Index floats) {
    return Grid{.blocks = blocks,
                .threads = context_threads(items, elements),
                .shared = static_cast<std::size_t>(floats) * sizeof(float)};
  };
  with_type(type, [&]<class T>(T) {
    const auto* const queries = static_cast<const T*>(q);
    const auto* const keys = static_cast<const T*>(kv);
    launch(stream, "context_attention_grad", grid(s.rows() * s.heads, key_count, s.head, key_count),
           query_grad_kernel<T>, s, scores_of(s), first_sample, queries, keys, static_cast<const T*>(out),
           lse, static_cast<const T*>(d_out), static_cast<T*>(dq));
    launch(stream, "context_attention_grad",
           grid(s.key_rows() * s.kv, query_count, cover(s.head + s.value, 4), 2 * query_count),
           key_grad_kernel<T>, s, scores_of(s), first_sample, queries, keys, static_cast<const T*>(out), lse,
           static_cast<const T*>(d_out), static_cast<T*>(dkv));
  });
}

}  // namespace orrery::kernels::cuda
