// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/context.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/pointwise.h"

namespace orrery::kernels {

float ContextShape::scale() const {
  return explicit_scale > 0 ? explicit_scale : 1.0F / std::sqrt(static_cast<float>(head));
}

namespace {

constexpr Index kQueries = 64;     // a block
constexpr float kHidden = -1e30F;  // score of a key that a query does not see

// Rows with tokens of one sample that follow each other: the first row, its token's position, and how many.
struct Piece {
  Index row, position, count;
};
// A rank's two pieces of a sample, in a part of the rows.
std::array<Piece, 2> pieces(const ContextShape& s, Index part, Index sample, Index ring_rank) {
  const TokenShare at = token_share(s.tokens, s.ring, s.ulysses, ring_rank, part % s.ulysses);
  const Index row = (part * s.batch + sample) * s.tokens;
  return {{{row, at.first, at.half}, {row + at.half, at.second, at.half}}};
}

// Of a piece of keys, those that some query of a block sees, and the column of the first among its scores.
struct Keys {
  Piece piece;
  Index column;
};
// A block of queries of one sample and head, with the keys that it sees.
struct Block {
  Index sample, head;
  Piece queries;
  std::vector<Keys> keys;
  Index width = 0;  // keys in all
};

// The first key that a query of a sample sees.
Index first_key(const ContextShape& s, Index sample, Index query) {
  const Index seen = s.window > 0 ? query - s.window + 1 : 0;
  return s.packed ? std::max<Index>(seen, s.document[sample * s.sequence() + query]) : seen;
}

void find_keys(const ContextShape& s, Block& b) {
  b.keys.clear();
  b.width = 0;
  const Index low = s.sees_all ? 0 : first_key(s, b.sample, b.queries.position);
  const Index end = s.sees_all ? s.sequence() : b.queries.position + b.queries.count;
  for (Index part = 0; part < s.places() * s.ulysses; ++part) {
    const Index place = s.gathered ? part / s.ulysses : s.source;
    for (Piece p : pieces(s, part, b.sample, place)) {
      const Index before = std::clamp<Index>(low - p.position, 0, p.count);
      const Index until = std::clamp<Index>(end - p.position, before, p.count);
      if (until == before) continue;
      p = {p.row + before, p.position + before, until - before};
      b.keys.push_back({p, b.width});
      b.width += p.count;
    }
  }
}

template <class Visit>
void for_each_block(const ContextShape& s, Visit visit) {
  Block b;
  for (b.sample = 0; b.sample < s.batch; ++b.sample) {
    for (Index part = 0; part < s.ulysses; ++part) {
      for (const Piece& p : pieces(s, part, b.sample, s.rank)) {
        for (Index first = 0; first < p.count; first += kQueries) {
          b.queries = {p.row + first, p.position + first, std::min(kQueries, p.count - first)};
          find_keys(s, b);
          for (b.head = 0; b.head < s.heads; ++b.head) visit(b);
        }
      }
    }
  }
}

// Where operands of a block stand.
struct Places {
  Places(const ContextShape& s, const Block& b)
      : q_width(s.heads * s.head),
        k_width(s.key_width()),
        out_width(s.heads * s.value),
        q(b.queries.row * q_width + b.head * s.head),
        k(b.head * s.kv / s.heads * s.head),
        v(s.kv * s.head + b.head * s.kv / s.heads * s.value),
        out(b.queries.row * out_width + b.head * s.value),
        lse(b.queries.row * s.heads + b.head) {}
  Index k_row(const Keys& at) const { return at.piece.row * k_width + k; }
  Index v_row(const Keys& at) const { return at.piece.row * k_width + v; }
  Index q_width, k_width, out_width, q, k, v, out, lse;
};

// x[count, width of keys] = alpha a b'.
void multiply_keys(const Block& b, Index k, float alpha, const float* a, Index lda, const float* keys,
                   Index ldb, const Keys& at, float* x) {
  multiply({.m = b.queries.count,
            .n = at.piece.count,
            .k = k,
            .transpose_b = true,
            .alpha = alpha,
            .lda = lda,
            .ldb = ldb,
            .ldc = b.width},
           a, keys, x + at.column);
}

void scores_of(const ContextShape& s, const Block& b, const Places& p, const float* q, const float* kv,
               float* scores) {
  for (const Keys& at : b.keys)
    multiply_keys(b, s.head, s.scale(), q + p.q, p.q_width, kv + p.k_row(at), p.k_width, at, scores);
  if (s.cap > 0) pointwise().soft_cap(b.queries.count * b.width, s.cap, scores, scores);
}

// Calls use(i, j) for each element of the block that its query does not see.
template <class Use>
void for_each_hidden(const ContextShape& s, const Block& b, Use use) {
  for (Index i = 0; i < b.queries.count; ++i) {
    const Index query = b.queries.position + i;
    const Index first = s.sees_all ? 0 : first_key(s, b.sample, query),
                last = s.sees_all ? s.sequence() : query;
    const auto sees = [&](Index key) { return key >= first && key <= last; };
    for (const Keys& at : b.keys) {
      if (sees(at.piece.position) && sees(at.piece.position + at.piece.count - 1)) continue;
      for (Index j = 0; j < at.piece.count; ++j) {
        if (!sees(at.piece.position + j)) use(i, at.column + j);
      }
    }
  }
}

// What dropout leaves of the block's probabilities, or of their gradients.
void drop(const ContextShape& s, const Block& b, float* x) {
  if (s.dropout.probability == 0) return;
  thread_local std::vector<std::uint8_t> kept;
  kept.resize(static_cast<std::size_t>(s.sequence()));
  for (Index i = 0; i < b.queries.count; ++i) {
    keep(s.dropout, b.sample, (s.first_head + b.head) * s.sequence() + b.queries.position + i, s.sequence(),
         kept.data());
    for (const Keys& at : b.keys) {
      float* const row = x + i * b.width + at.column;
      dropout_grad(s.dropout, at.piece.count, row, kept.data() + at.piece.position, row);
    }
  }
}

// `blocks` times as many elements as a block has scores, and some rows of values.
float* workspace(const ContextShape& s, std::size_t blocks) {
  thread_local std::vector<float> space;
  const Index keys = s.places() * s.ulysses * s.tokens;
  const std::size_t need = static_cast<std::size_t>(kQueries) *
                           (blocks * static_cast<std::size_t>(keys) + static_cast<std::size_t>(s.value));
  if (space.size() < need) space.resize(need);
  return space.data();
}

}  // namespace

void context_attention(const ContextShape& s, const float* q, const float* kv, const float* sums, float* out,
                       float* lse) {
  const Pointwise& fast = pointwise();
  float* const own = workspace(s, 1);
  float* const scores = own + kQueries * s.value;
  for_each_block(s, [&](const Block& b) {
    const Places p(s, b);
    scores_of(s, b, p, q, kv, scores);
    for_each_hidden(s, b, [&](Index i, Index j) { scores[i * b.width + j] = kHidden; });
    float largest[kQueries], total[kQueries];
    for (Index i = 0; i < b.queries.count; ++i)
      total[i] = fast.softmax_row(b.width, b.width, scores + i * b.width, &largest[i]);
    for_each_hidden(s, b, [&](Index i, Index j) { scores[i * b.width + j] = 0; });
    drop(s, b, scores);
    std::fill_n(own, b.queries.count * s.value, 0.0F);
    for (const Keys& at : b.keys) {
      multiply({.m = b.queries.count,
                .n = s.value,
                .k = at.piece.count,
                .beta = 1,
                .lda = b.width,
                .ldb = p.k_width,
                .ldc = s.value},
               scores + at.column, kv + p.v_row(at), own);
    }
    for (Index i = 0; i < b.queries.count; ++i) {
      const Index row = p.out + i * p.out_width, at = p.lse + i * s.heads;
      const bool none = b.width == 0 || largest[i] <= kHidden;
      const float here = none ? kHidden : largest[i] + std::log(total[i]);
      float before = 0, weight = none ? 0.0F : 1.0F / total[i];
      if (s.more) {
        const float most = std::max(lse[at], here);
        const float all = most + std::log(std::exp(lse[at] - most) + std::exp(here - most));
        before = std::exp(lse[at] - all);
        weight *= std::exp(here - all);
        lse[at] = all;
      } else {
        lse[at] = here;
      }
      for (Index j = 0; j < s.value; ++j)
        out[row + j] = (s.more ? before * sums[row + j] : 0.0F) + weight * own[i * s.value + j];
    }
  });
}

// As attention_grad in fast.cpp.
void context_attention_grad(const ContextShape& s, const float* q, const float* kv, const float* out,
                            const float* lse, const float* d_out, float* dq, float* dkv) {
  const Pointwise& fast = pointwise();
  std::fill_n(dkv, s.key_rows() * s.key_width(), 0.0F);
  if (!s.more) std::fill_n(dq, s.rows() * s.heads * s.head, 0.0F);
  const Index keys = s.places() * s.ulysses * s.tokens;
  float* const probabilities = workspace(s, s.cap > 0 ? 3 : 2);
  float* const d_scores = probabilities + kQueries * keys;
  float* const capped = d_scores + kQueries * keys;
  for_each_block(s, [&](const Block& b) {
    const Places p(s, b);
    const Index count = b.queries.count;
    scores_of(s, b, p, q, kv, probabilities);
    if (s.cap > 0) std::copy_n(probabilities, count * b.width, capped);
    for (const Keys& at : b.keys)
      multiply_keys(b, s.value, 1, d_out + p.out, p.out_width, kv + p.v_row(at), p.k_width, at, d_scores);
    for (Index i = 0; i < count; ++i)
      fast.probabilities_row(b.width, b.width, lse[p.lse + i * s.heads], probabilities + i * b.width);
    for_each_hidden(s, b, [&](Index i, Index j) { probabilities[i * b.width + j] = 0; });
    drop(s, b, d_scores);
    for (Index i = 0; i < count; ++i) {
      const Index row = p.out + i * p.out_width;
      fast.score_grad_row(b.width, fast.dot(s.value, d_out + row, out + row), s.scale(),
                          probabilities + i * b.width, d_scores + i * b.width);
    }
    drop(s, b, probabilities);
    if (s.cap > 0) fast.soft_cap_grad(count * b.width, s.cap, capped, d_scores, d_scores);
    for (const Keys& at : b.keys) {
      multiply({.m = count,
                .n = s.head,
                .k = at.piece.count,
                .beta = 1,
                .lda = b.width,
                .ldb = p.k_width,
                .ldc = p.q_width},
               d_scores + at.column, kv + p.k_row(at), dq + p.q);
      Product over_queries{.m = at.piece.count,
                           .n = s.head,
                           .k = count,
                           .transpose_a = true,
                           .beta = 1,
                           .lda = b.width,
                           .ldb = p.q_width,
                           .ldc = p.k_width};
      multiply(over_queries, d_scores + at.column, q + p.q, dkv + p.k_row(at));
      over_queries.n = s.value;
      over_queries.ldb = p.out_width;
      multiply(over_queries, probabilities + at.column, d_out + p.out, dkv + p.v_row(at));
    }
  });
}

namespace {

// Calls move(whole, part, n) for n elements that stand there in rows of `columns`, and there in parts, of
// which each row has `blocks` of its share: heads of queries alone, or keys and then values.
template <class Move>
void for_each_share(const HeadsShape& s, Index columns, std::initializer_list<std::array<Index, 2>> blocks,
                    Move move) {
  Index width = 0;  // of a row of a part
  for (const auto& [first, n] : blocks) width += n / s.parts;
  for (Index part = 0; part < s.parts; ++part) {
    for (Index token = 0; token < s.tokens; ++token) {
      Index to = (part * s.tokens + token) * width;
      for (const auto& [first, n] : blocks) {
        const Index share = n / s.parts;
        move(token * columns + first + part * share, to, share);
        to += share;
      }
    }
  }
}

// Of q, and of kv.
template <class Q, class Kv>
void for_each_of_qkv(const HeadsShape& s, Q of_q, Kv of_kv) {
  const Index queries = s.heads * s.head, keys = s.kv * s.head, values = s.kv * s.value;
  const Index columns = queries + keys + values;
  for_each_share(s, columns, {{{0, queries}}}, of_q);
  for_each_share(s, columns, {{{queries, keys}}, {{queries + keys, values}}}, of_kv);
}

}  // namespace

void heads_pack(const HeadsShape& s, const float* qkv, float* q, float* kv) {
  const auto into = [&](float* to) {
    return [=](Index whole, Index part, Index n) { std::copy_n(qkv + whole, n, to + part); };
  };
  for_each_of_qkv(s, into(q), into(kv));
}

void heads_pack_grad(const HeadsShape& s, const float* dq, const float* dkv, float* d_qkv) {
  const auto from = [&](const float* of) {
    return [=](Index whole, Index part, Index n) { std::copy_n(of + part, n, d_qkv + whole); };
  };
  for_each_of_qkv(s, from(dq), from(dkv));
}

void heads_unpack(const HeadsShape& s, const float* parts, float* whole) {
  for_each_share(s, s.heads * s.value, {{{0, s.heads * s.value}}},
                 [&](Index to, Index from, Index n) { std::copy_n(parts + from, n, whole + to); });
}

void heads_unpack_grad(const HeadsShape& s, const float* d_whole, float* d_parts) {
  for_each_share(s, s.heads * s.value, {{{0, s.heads * s.value}}},
                 [&](Index from, Index to, Index n) { std::copy_n(d_whole + from, n, d_parts + to); });
}

}  // namespace orrery::kernels
