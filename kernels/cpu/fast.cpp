// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fast.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace orrery::kernels {

void gemm(const reference::Gemm& g, const float* a, const float* b, const float* bias, float* c) {
  if (bias != nullptr) {
    for (Index i = 0; i < g.m; ++i) std::copy_n(bias, g.n, c + i * g.n);
  }
  multiply({.m = g.m,
            .n = g.n,
            .k = g.k,
            .transpose_a = g.transpose_a,
            .transpose_b = g.transpose_b,
            .beta = bias != nullptr || g.accumulate ? 1.0F : 0.0F,
            .lda = g.transpose_a ? g.m : g.k,
            .ldb = g.transpose_b ? g.k : g.n,
            .ldc = g.n},
           a, b, c);
}

namespace {

constexpr Index kBlockQueries = 64;  // a block

using Rows = reference::AttentionRows<const float*>;

// One head of one sample; query heads share key heads evenly.
struct Head {
  Head(const reference::AttentionShape& s, Index of_sample, Index head_index)
      : sample(of_sample),
        index(head_index),
        q(sample * s.seq * s.query_width() + index * s.head),
        k(sample * s.keys() * s.key_width() + s.first_of_keys() + index * s.kv / s.heads * s.head),
        v(sample * s.keys() * s.key_width() + s.first_of_values() + index * s.kv / s.heads * s.value_head()),
        out((sample * s.seq * s.heads + index) * s.value_head()),
        lse((sample * s.heads + index) * s.seq) {}
  Index sample, index, q, k, v, out, lse;
};

// The queries [first, first + count) and the keys [low, end) that any of them sees.
struct QueryBlock {
  QueryBlock(const reference::AttentionShape& s, Index sample, Index first_query, Index queries)
      : first(first_query),
        count(queries),
        low(s.first_key(sample, first)),
        end(s.end_key(first + count - 1)) {}
  Index first, count, low, end;
  Index keys() const { return end - low; }
};

template <class Visit>
void for_each_block(const reference::AttentionShape& s, Visit visit) {
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      for (Index first = 0; first < s.seq; first += kBlockQueries)
        visit(Head(s, b, h), QueryBlock(s, b, first, std::min(kBlockQueries, s.seq - first)));
    }
  }
}

// The block's scores.
void scores_of(const reference::AttentionShape& s, const Rows& rows, const Head& at, const QueryBlock& b,
               float* scores) {
  multiply({.m = b.count,
            .n = b.keys(),
            .k = s.head,
            .transpose_b = true,
            .alpha = s.scale(),
            .lda = s.query_width(),
            .ldb = s.key_width(),
            .ldc = b.keys()},
           rows.q + at.q + b.first * s.query_width(), rows.kv + at.k + b.low * s.key_width(), scores);
  if (s.cap > 0) pointwise().soft_cap(b.count * b.keys(), s.cap, scores, scores);
}

// Of a row of the block, zeros for the keys before those that its query sees; returns how many.
Index hide(const reference::AttentionShape& s, const Head& at, const QueryBlock& b, Index i, float* row) {
  const Index hidden = s.first_key(at.sample, b.first + i) - b.low;
  std::fill_n(row, hidden, 0.0F);
  return hidden;
}

// What dropout leaves of the scores (or their gradients) of one query.
void drop_scores(const reference::AttentionShape& s, const Head& at, const QueryBlock& b, Index i,
                 float* row) {
  if (!s.drops()) return;
  thread_local std::vector<std::uint8_t> kept;
  kept.resize(static_cast<std::size_t>(b.end));
  keep(s.dropout, at.sample, (s.first_head + at.index) * s.seq + b.first + i, b.end, kept.data());
  dropout_grad(s.dropout, b.keys(), row, kept.data() + b.low, row);
}

float* workspace(std::size_t blocks, Index keys) {
  thread_local std::vector<float> space;
  const std::size_t need = blocks * static_cast<std::size_t>(kBlockQueries * keys);
  if (space.size() < need) space.resize(need);
  return space.data();
}

}  // namespace

void attention(const reference::AttentionShape& s, Rows rows, float* out, float* softmax,
               std::uint8_t* mask) {
  if (s.materialised) return reference::attention(s, rows, out, softmax, mask);
  const Pointwise& p = pointwise();
  const Index width = s.key_width(), value = s.value_head(), out_width = s.heads * value;
  float* scores = workspace(1, s.keys());
  for_each_block(s, [&](const Head& at, const QueryBlock& b) {
    const Index keys = b.keys();
    scores_of(s, rows, at, b, scores);
    float sums[kBlockQueries];
    for (Index i = 0; i < b.count; ++i) {
      float* const row = scores + i * keys;
      const Index hidden = hide(s, at, b, i, row);
      float largest = 0;
      sums[i] = p.softmax_row(s.end_key(b.first + i) - b.low - hidden, keys - hidden, row + hidden, &largest);
      softmax[at.lse + b.first + i] = largest + std::log(sums[i]);
      drop_scores(s, at, b, i, row);
    }
    float* o = out + at.out + b.first * out_width;
    multiply({.m = b.count, .n = value, .k = keys, .lda = keys, .ldb = width, .ldc = out_width}, scores,
             rows.kv + at.v + b.low * width, o);
    for (Index i = 0; i < b.count; ++i) p.scale_row(value, 1.0F / sums[i], o + i * out_width);
  });
}

// With D_i = dO_i . O_i: dP = drop(dO V'), dS = P (dP - D), dz = dS scale, with a cap times 1 - (S / cap)^2;
// dQ = dz K, dK = dz' Q, dV = drop(P)' dO.
void attention_grad(const reference::AttentionShape& s, Rows rows, const float* out, const float* softmax,
                    const std::uint8_t* mask, const float* d_out, reference::AttentionRows<float*> d_rows) {
  if (s.materialised) return reference::attention_grad(s, rows, out, softmax, mask, d_out, d_rows);
  const Pointwise& p = pointwise();
  const Index q_width = s.query_width(), width = s.key_width(), value = s.value_head(),
              out_width = s.heads * value;
  std::fill_n(d_rows.kv, s.batch * s.keys() * width, 0.0F);
  float* probabilities = workspace(s.cap > 0 ? 3 : 2, s.keys());
  float* d_scores = probabilities + kBlockQueries * s.keys();
  float* capped = d_scores + kBlockQueries * s.keys();
  for_each_block(s, [&](const Head& at, const QueryBlock& b) {
    const Index keys = b.keys(), count = b.count, q = at.q + b.first * q_width,
                o = at.out + b.first * out_width;
    const Index k = at.k + b.low * width, v = at.v + b.low * width;
    scores_of(s, rows, at, b, probabilities);
    if (s.cap > 0) std::copy_n(probabilities, count * keys, capped);
    multiply(
        {.m = count, .n = keys, .k = value, .transpose_b = true, .lda = out_width, .ldb = width, .ldc = keys},
        d_out + o, rows.kv + v, d_scores);
    for (Index i = 0; i < count; ++i) {
      const Index row = o + i * out_width;
      float *const of_p = probabilities + i * keys, *const of_d = d_scores + i * keys;
      const float d = p.dot(value, d_out + row, out + row);
      const Index hidden = hide(s, at, b, i, of_p);
      p.probabilities_row(s.end_key(b.first + i) - b.low - hidden, keys - hidden,
                          softmax[at.lse + b.first + i], of_p + hidden);
      drop_scores(s, at, b, i, of_d);
      p.score_grad_row(keys, d, s.scale(), of_p, of_d);
      drop_scores(s, at, b, i, of_p);
    }
    if (s.cap > 0) pointwise().soft_cap_grad(count * keys, s.cap, capped, d_scores, d_scores);
    multiply({.m = count, .n = s.head, .k = keys, .lda = keys, .ldb = width, .ldc = q_width}, d_scores,
             rows.kv + k, d_rows.q + q);
    const Product over_queries{.m = keys,
                               .n = s.head,
                               .k = count,
                               .transpose_a = true,
                               .beta = 1,
                               .lda = keys,
                               .ldb = q_width,
                               .ldc = width};
    multiply(over_queries, d_scores, rows.q + q, d_rows.kv + k);
    Product of_output = over_queries;
    of_output.n = value;
    of_output.ldb = out_width;
    multiply(of_output, probabilities, d_out + o, d_rows.kv + v);
  });
}

void embedding(Index tokens, Index row_bytes, Index first, Index rows, const std::int32_t* ids,
               const void* table, void* y) {
  const auto bytes = static_cast<std::size_t>(row_bytes);
  for (Index t = 0; t < tokens; ++t) {
    char* to = static_cast<char*>(y) + t * row_bytes;
    const Index row = ids[t] - first;
    if (row < 0 || row >= rows)
      std::memset(to, 0, bytes);
    else
      std::memcpy(to, static_cast<const char*>(table) + row * row_bytes, bytes);
  }
}

void widen(DType type, Index n, const void* x, float* y) {
  const Pointwise& p = pointwise();
  (type == DType::kFloat16 ? p.from_float16 : p.from_bfloat16)(n, static_cast<const std::uint16_t*>(x), y);
}

void narrow(DType type, Index n, const float* x, void* y) {
  const Pointwise& p = pointwise();
  (type == DType::kFloat16 ? p.to_float16 : p.to_bfloat16)(n, x, static_cast<std::uint16_t*>(y));
}

namespace {

// Workspace of the thread for the sums of one call.
float* sums_of(std::size_t n) {
  thread_local std::vector<float> space;
  if (space.size() < n) space.resize(n);
  return space.data();
}

}  // namespace

void norm_grad(const reference::NormShape& s, const float* x, const float* w, const float* dy,
               const float* residual, float* dx, float* dw, float* db, bool accumulate) {
  const Pointwise& p = pointwise();
  if (!accumulate) return p.norm_grad(s, x, w, dy, residual, dx, dw, db, false);
  float* weight = sums_of(static_cast<std::size_t>(2 * s.width));
  float* bias = db != nullptr ? weight + s.width : nullptr;
  p.norm_grad(s, x, w, dy, residual, dx, weight, bias, false);
  p.add(s.width, weight, dw);
  if (db != nullptr) p.add(s.width, bias, db);
}

void head_norm_grad(const reference::HeadNormShape& s, const float* x, const float* w, const float* dy,
                    float* dx, float* dw, bool accumulate) {
  if (!accumulate || !s.weighted) return reference::head_norm_grad(s, x, w, dy, dx, dw, false);
  float* sums = sums_of(static_cast<std::size_t>(s.weights()));
  reference::head_norm_grad(s, x, w, dy, dx, sums, false);
  pointwise().add(s.weights(), sums, dw);
}

void bias_grad(Index rows, Index width, const float* dy, float* db, bool accumulate) {
  if (!accumulate) return pointwise().bias_grad(rows, width, dy, db, false);
  float* sums = sums_of(static_cast<std::size_t>(width));
  pointwise().bias_grad(rows, width, dy, sums, false);
  pointwise().add(width, sums, db);
}

void embedding_grad(Index tokens, Index width, Index first, Index rows, const std::int32_t* ids,
                    const float* dy, float* d_table, bool accumulate) {
  const Pointwise& p = pointwise();
  if (!accumulate) std::fill_n(d_table, rows * width, 0.0F);
  // Equal tokens one after the other, each run in its order.
  thread_local std::vector<Index> order;
  order.clear();
  for (Index t = 0; t < tokens; ++t) {
    if (ids[t] >= first && ids[t] < first + rows) order.push_back(t);
  }
  std::sort(order.begin(), order.end(),
            [&](Index a, Index b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
  float* sum = sums_of(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < order.size();) {
    const std::int32_t id = ids[order[i]];
    std::copy_n(dy + order[i] * width, width, sum);
    for (++i; i < order.size() && ids[order[i]] == id; ++i) p.add(width, dy + order[i] * width, sum);
    p.add(width, sum, d_table + (id - first) * width);
  }
}

void positions_grad(const reference::PositionsShape& s, Index table_rows, const float* dy, float* d_table,
                    bool accumulate) {
  const Pointwise& p = pointwise();
  const Index width = s.width;
  if (!accumulate) std::fill_n(d_table, table_rows * width, 0.0F);
  float* sum = sums_of(static_cast<std::size_t>(width));
  for (Index r = 0; r < std::min(s.rows, s.seq); ++r) {  // the first row of each position, then its others
    std::copy_n(dy + r * width, width, sum);
    for (Index same = r + s.seq; same < s.rows; same += s.seq) p.add(width, dy + same * width, sum);
    p.add(width, sum, d_table + s.position(r) * width);
  }
}

}  // namespace orrery::kernels
