// SPDX-License-Identifier: Apache-2.0
//
// Attention for every type, head and mode: a block for each query (backward: also for each key), with
// its row of scores in shared memory. 4 (backward 10) batch heads seq^2 head / 2 FLOP without tensor cores,
// which is what fp32 needs; sequences of at most about 25,000 tokens.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/element.h"

namespace orrery::kernels::cuda {
namespace {

// Of a block: as many as keys, or elements of a head, to give each one.
int threads_of(const reference::AttentionShape& s) {
  return threads_for(std::max({s.seq, s.keys(), s.head, s.value_head()}), 128);
}
__device__ int threads() {
  return static_cast<int>(blockDim.x);
}

// What becomes of scores.
struct Scores {
  bool drops;
  DropoutKey key;
  int first_head;  // of all tensor ranks' heads
  int window, seq, keys;
  bool sees_all;
  float scale, cap;
  const std::int32_t* document;  // of each query, the first key of its document; null: there are none
  __device__ float of(float dot) const { return cap > 0 ? cap * tanhf(scale * dot / cap) : scale * dot; }
  // The slope of of(), from its value.
  __device__ float slope(float score) const {
    return cap > 0 ? scale * (1.0F - score / cap * (score / cap)) : scale;
  }
  // Of a sample, the keys that query i sees, and the queries that see key j: documents follow each other.
  __device__ int first_key(int sample, int i) const {
    const int seen = window > 0 && i >= window ? i + 1 - window : 0;
    if (document == nullptr) return seen;
    const int first = document[static_cast<std::int64_t>(sample) * seq + i];
    return first > seen ? first : seen;
  }
  __device__ int end_key(int i) const { return sees_all ? keys : i + 1; }
  __device__ int first_query(int j) const { return sees_all ? 0 : j; }
  __device__ int end_query(int sample, int j) const {
    int end = window > 0 && j + window < seq ? j + window : seq;
    if (document == nullptr) return end;
    const std::int32_t* const of_sample = document + static_cast<std::int64_t>(sample) * seq;
    for (int low = j + 1; low < end;) {
      const int middle = (low + end) / 2;
      if (of_sample[middle] > j)
        end = middle;
      else
        low = middle + 1;
    }
    return end;
  }
};

// The number of (sample, head) and query that a block serves.
struct Item {
  int sample, head, i;
  std::int64_t query;  // row of [batch, heads, seq]
};
__device__ Item item_of_block(const AttentionPlaces& s) {
  const std::int64_t query = blockIdx.x;
  const std::int64_t pair = query / s.seq;
  return {static_cast<int>(pair / s.heads), static_cast<int>(pair % s.heads), static_cast<int>(query % s.seq),
          query};
}

// The rows of a sample.
template <class T>
struct SampleRows {
  T *q, *kv;
};
template <class T>
__device__ SampleRows<T> rows_of(const AttentionPlaces& s, T* q, T* kv, int sample) {
  return {q + static_cast<std::int64_t>(sample) * s.seq * s.query_width(),
          kv + static_cast<std::int64_t>(sample) * s.keys * s.key_width()};
}

template <class T>
__device__ float dot(const T* a, const T* b, int n) {
  float sum = 0;
  for (int j = 0; j < n; ++j) sum += widen(a[j]) * widen(b[j]);
  return sum;
}

// The factor of what is kept of score (query, key): 0 or 1 / (1 - p), or 1 without dropout.
__device__ float left_of(const Scores& c, const AttentionPlaces& s, const Index* first_sample,
                         const std::uint8_t* mask, const Item& at, int key) {
  if (!c.drops) return 1.0F;
  bool kept = false;
  if (mask != nullptr) {
    kept = mask[at.query * s.keys + key] != 0;
  } else {
    const std::int64_t row = static_cast<std::int64_t>(c.first_head + at.head) * s.seq + at.i;
    kept = keep4(c.key, c.key.first_sample + *first_sample + at.sample, row, key / 4 * 4).at[key % 4];
  }
  return kept ? c.key.scale : 0.0F;
}

template <class T>
__global__ void attention_kernel(AttentionPlaces s, Scores c, const Index* first_sample, const T* queries,
                                 const T* keys, T* out, float* lse, T* probabilities, std::uint8_t* mask) {
  auto* const p = dynamic_shared<float>();
  const Item at = item_of_block(s);
  const auto [sample, others] = rows_of(s, queries, keys, at.sample);
  const T* const q = sample + at.i * s.query_width() + s.q(at.head);
  const int first = c.first_key(at.sample, at.i), end = c.end_key(at.i), thread = static_cast<int>(threadIdx.x);
  float most = -3.402823466e38F, sum = 0;
  for (int j = first + thread; j < end; j += threads()) {
    p[j] = c.of(dot(q, others + j * s.key_width() + s.k(at.head), s.head));
    most = fmaxf(most, p[j]);
  }
  most = block_max(most);
  for (int j = first + thread; j < end; j += threads()) {
    p[j] = expf(p[j] - most);
    sum += p[j];
  }
  sum = block_sum(sum);
  if (lse != nullptr && thread == 0) lse[at.query] = most + logf(sum);
  const std::int64_t copies = static_cast<std::int64_t>(s.batch) * s.heads * s.seq * s.keys;
  for (int j = thread; j < s.keys; j += threads()) {
    const bool seen = j >= first && j < end;
    float x = seen ? p[j] / sum : 0.0F;
    if (probabilities != nullptr) narrow(x, probabilities[at.query * s.keys + j]);
    const float left = left_of(c, s, first_sample, nullptr, at, j);
    if (mask != nullptr) mask[at.query * s.keys + j] = left != 0 ? 1 : 0;
    x *= left;
    if (probabilities != nullptr && c.drops) narrow(x, probabilities[copies + at.query * s.keys + j]);
    if (seen) p[j] = x;
  }
  __syncthreads();
  T* const o = out + ((static_cast<std::int64_t>(at.sample) * s.seq + at.i) * s.heads + at.head) * s.value;
  for (int e = thread; e < s.value; e += threads()) {
    float x = 0;
    for (int j = first; j < end; ++j) x += p[j] * widen(others[j * s.key_width() + s.v(at.head) + e]);
    narrow(x, o[e]);
  }
}

// What the backward pass has of a query and a key: the probability, what dropout left of it, and the gradient
// of q k', p (left d_out v - d) times the score's slope.
struct Pair {
  float left_p, d_score;
};
template <class T>
__device__ Pair pair_of(const AttentionPlaces& s, const Scores& c, const Index* first_sample,
                        const SampleRows<const T>& rows, const float* lse, const T* probabilities,
                        const std::uint8_t* mask, const T* d_out, const float* d, const Item& at, int key) {
  const T* const row = rows.kv + key * s.key_width();
  const float score =
      probabilities != nullptr && c.cap == 0
          ? 0.0F
          : c.of(dot(rows.q + at.i * s.query_width() + s.q(at.head), row + s.k(at.head), s.head));
  const float p =
      probabilities != nullptr ? widen(probabilities[at.query * s.keys + key]) : expf(score - lse[at.query]);
  const float left = left_of(c, s, first_sample, mask, at, key);
  const T* const o =
      d_out + ((static_cast<std::int64_t>(at.sample) * s.seq + at.i) * s.heads + at.head) * s.value;
  const float dp = dot(o, row + s.v(at.head), s.value);
  return {left * p, p * (left * dp - d[at.query]) * c.slope(score)};
}

template <class T>
__global__ void query_grad_kernel(AttentionPlaces s, Scores c, const Index* first_sample, const T* queries,
                                  const T* keys, const float* lse, const T* probabilities,
                                  const std::uint8_t* mask, const T* d_out, const float* d, T* d_queries,
                                  T*) {
  auto* const d_score = dynamic_shared<float>();
  const Item at = item_of_block(s);
  const SampleRows<const T> rows = rows_of(s, queries, keys, at.sample);
  const int low = c.first_key(at.sample, at.i), end = c.end_key(at.i), thread = static_cast<int>(threadIdx.x);
  for (int j = low + thread; j < end; j += threads())
    d_score[j] = pair_of(s, c, first_sample, rows, lse, probabilities, mask, d_out, d, at, j).d_score;
  __syncthreads();
  for (int e = thread; e < s.head; e += threads()) {
    float x = 0;
    for (int j = low; j < end; ++j) x += d_score[j] * widen(rows.kv[j * s.key_width() + s.k(at.head) + e]);
    narrow(x, d_queries[(static_cast<std::int64_t>(at.sample) * s.seq + at.i) * s.query_width() +
                        s.q(at.head) + e]);
  }
}

// A block for each (sample, key head) and key: the queries of all its heads look at it, in their order. A
// thread has at most kOfThread elements of the head.
constexpr int kOfThread = 4;

template <class T>
__global__ void key_grad_kernel(AttentionPlaces s, Scores c, const Index* first_sample, const T* queries,
                                const T* keys, const float* lse, const T* probabilities,
                                const std::uint8_t* mask, const T* d_out, const float* d, T*, T* d_keys) {
  auto* const left_p = dynamic_shared<float>();
  float* const d_score = left_p + s.seq;
  const int key = static_cast<int>(blockIdx.x % static_cast<unsigned>(s.keys)),
            thread = static_cast<int>(threadIdx.x);
  const int pair = static_cast<int>(blockIdx.x / static_cast<unsigned>(s.keys)), shared_by = s.heads / s.kv;
  const int sample = pair / s.kv, kv = pair % s.kv;
  const SampleRows<const T> rows = rows_of(s, queries, keys, sample);
  const int low = c.first_query(key), end = c.end_query(sample, key);
  float dk[kOfThread] = {}, dv[kOfThread] = {};
  for (int h = kv * shared_by; h < (kv + 1) * shared_by; ++h) {
    __syncthreads();
    for (int i = low + thread; i < end; i += threads()) {
      const Item at{sample, h, i, (static_cast<std::int64_t>(sample) * s.heads + h) * s.seq + i};
      const Pair x = pair_of(s, c, first_sample, rows, lse, probabilities, mask, d_out, d, at, key);
      left_p[i] = x.left_p;
      d_score[i] = x.d_score;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kOfThread; ++k) {
      const int e = k * threads() + thread;
      for (int i = low; i < end && e < s.head; ++i)
        dk[k] += d_score[i] * widen(rows.q[i * s.query_width() + s.q(h) + e]);
      for (int i = low; i < end && e < s.value; ++i) {
        const std::int64_t token = static_cast<std::int64_t>(sample) * s.seq + i;
        dv[k] += left_p[i] * widen(d_out[(token * s.heads + h) * s.value + e]);
      }
    }
  }
  T* const row = d_keys + (static_cast<std::int64_t>(sample) * s.keys + key) * s.key_width();
#pragma unroll
  for (int k = 0; k < kOfThread; ++k) {
    const int e = k * threads() + thread;
    if (e < s.head) narrow(dk[k], row[s.k(kv * shared_by) + e]);
    if (e < s.value) narrow(dv[k], row[s.v(kv * shared_by) + e]);
  }
}

Scores scores_of(const reference::AttentionShape& s) {
  return {s.drops(),
          key_of(s.dropout),
          static_cast<int>(s.first_head),
          static_cast<int>(s.window),
          static_cast<int>(s.seq),
          static_cast<int>(s.keys()),
          s.sees_all,
          s.scale(),
          s.cap,
          s.packed ? s.document : nullptr};
}

}  // namespace

void plain_attention(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
                     reference::AttentionRows<const void*> rows, void* out, void* softmax,
                     std::uint8_t* mask) {
  with_type(type, [&]<class T>(T) {
    const Grid grid{.blocks = s.batch * s.heads * s.seq,
                    .threads = threads_of(s),
                    .shared = static_cast<std::size_t>(s.keys()) * sizeof(float)};
    launch(stream, "attention", grid, attention_kernel<T>, places_of(s), scores_of(s), first_sample,
           static_cast<const T*>(rows.q), static_cast<const T*>(rows.kv), static_cast<T*>(out),
           s.materialised ? nullptr : static_cast<float*>(softmax),
           s.materialised ? static_cast<T*>(softmax) : nullptr, mask);
  });
}

void plain_attention_grad(Stream stream, DType type, const reference::AttentionShape& s,
                          const Index* first_sample, reference::AttentionRows<const void*> rows,
                          const void* softmax, const std::uint8_t* mask, const void* d_out,
                          reference::AttentionRows<void*> d_rows, const float* d) {
  if (std::max(s.head, s.value_head()) > kOfThread * threads_of(s))
    throw Error("attention on the device takes heads of at most 512 elements");
  with_type(type, [&]<class T>(T) {
    const auto run = [&](auto kernel, std::int64_t blocks, std::int64_t floats) {
      const Grid grid{.blocks = blocks,
                      .threads = threads_of(s),
                      .shared = static_cast<std::size_t>(floats) * sizeof(float)};
      launch(stream, "attention_grad", grid, kernel, places_of(s), scores_of(s), first_sample,
             static_cast<const T*>(rows.q), static_cast<const T*>(rows.kv),
             s.materialised ? nullptr : static_cast<const float*>(softmax),
             s.materialised ? static_cast<const T*>(softmax) : nullptr, mask, static_cast<const T*>(d_out), d,
             static_cast<T*>(d_rows.q), static_cast<T*>(d_rows.kv));
    };
    run(query_grad_kernel<T>, s.batch * s.heads * s.seq, s.keys());
    run(key_grad_kernel<T>, s.batch * s.kv * s.keys(), 2 * s.seq);
  });
}

}  // namespace orrery::kernels::cuda
