// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {
namespace {

// Pointers to the rows of one (sample, head) in the fused [q | k | v] layout.
struct HeadView {
  HeadView(const AttentionShape& s, Index sample, Index head_index, Index offset = 0)
      : width(s.width()),
        base(sample * s.seq * width + offset),
        q(head_index * s.head),
        k((s.heads + head_index * s.kv / s.heads) * s.head),
        v((s.heads + s.kv + head_index * s.kv / s.heads) * s.head) {}
  Index q_row(Index i) const { return base + i * width + q; }
  Index k_row(Index i) const { return base + i * width + k; }
  Index v_row(Index i) const { return base + i * width + v; }
  Index width, base, q, k, v;
};

float dot(const float* a, const float* b, Index n) {
  float sum = 0;
  for (Index j = 0; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

float score(const AttentionShape& s, const float* q, const float* k) {
  const float z = s.scale() * dot(q, k, s.head);
  return s.cap > 0 ? s.cap * std::tanh(z / s.cap) : z;
}

// Probabilities of query i over the keys that it sees, zero for others; returns the log-sum-exp of the
// scores.
float softmax_row(const AttentionShape& s, const HeadView& at, const float* qkv, Index i, float* p) {
  const Index first = s.first_key(i), end = s.end_key(i);
  std::fill_n(p, s.seq, 0.0F);
  float largest = -3.4e38F;
  for (Index j = first; j < end; ++j) {
    p[j] = score(s, qkv + at.q_row(i), qkv + at.k_row(j));
    largest = std::max(largest, p[j]);
  }
  float sum = 0;
  for (Index j = first; j < end; ++j) sum += p[j] = std::exp(p[j] - largest);
  for (Index j = first; j < end; ++j) p[j] /= sum;
  return largest + std::log(sum);
}

}  // namespace

void attention(const AttentionShape& s, const float* qkv, float* out, float* softmax, std::uint8_t* mask) {
  std::vector<float> row(static_cast<std::size_t>(s.seq));
  std::vector<std::uint8_t> kept(row.size());
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      const HeadView at(s, b, h);
      for (Index i = 0; i < s.seq; ++i) {
        const Index query = (b * s.heads + h) * s.seq + i;
        float* p = s.materialised ? softmax + query * s.seq : row.data();
        const float lse = softmax_row(s, at, qkv, i, p);
        if (!s.materialised) softmax[query] = lse;
        if (s.drops()) {
          keep(s.dropout, b, (s.first_head + h) * s.seq + i, s.seq, kept.data());
          float* left = s.materialised ? p + s.batch * s.heads * s.seq * s.seq : p;
          for (Index j = 0; j < s.seq; ++j)
            left[j] = kept[static_cast<std::size_t>(j)] != 0 ? p[j] * s.dropout.scale() : 0.0F;
          if (s.materialised) std::copy(kept.begin(), kept.end(), mask + query * s.seq);
          p = left;
        }
        float* o = out + ((b * s.seq + i) * s.heads + h) * s.head;
        std::fill_n(o, s.head, 0.0F);
        for (Index j = s.first_key(i); j < s.end_key(i); ++j) {
          for (Index d = 0; d < s.head; ++d) o[d] += p[j] * qkv[at.v_row(j) + d];
        }
      }
    }
  }
}

// With D_i = sum(dO_i O_i): dP_ij = m_ij dO_i v_j, dS_ij = P_ij (dP_ij - D_i), dz = dS (1 - (S / cap)^2)
// where there is a cap, dv_j = m_ij P_ij dO_i, where dropout has m = 0 or 1 / (1 - p).
void attention_grad(const AttentionShape& s, const float* qkv, const float* out, const float* softmax,
                    const std::uint8_t* mask, const float* d_out, float* d_qkv) {
  std::vector<std::uint8_t> kept(static_cast<std::size_t>(s.seq));
  std::fill_n(d_qkv, s.batch * s.seq * s.width(), 0.0F);
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      const HeadView at(s, b, h);
      for (Index i = 0; i < s.seq; ++i) {
        const Index query = (b * s.heads + h) * s.seq + i;
        const Index row = ((b * s.seq + i) * s.heads + h) * s.head;
        const float d = dot(d_out + row, out + row, s.head);
        if (s.drops() && s.materialised)
          std::copy_n(mask + query * s.seq, s.seq, kept.begin());
        else if (s.drops())
          keep(s.dropout, b, (s.first_head + h) * s.seq + i, s.seq, kept.data());
        for (Index j = s.first_key(i); j < s.end_key(i); ++j) {
          const float left = !s.drops()                               ? 1.0F
                             : kept[static_cast<std::size_t>(j)] != 0 ? s.dropout.scale()
                                                                      : 0.0F;
          const float* q = qkv + at.q_row(i);
          const float* k = qkv + at.k_row(j);
          const float z = score(s, q, k);
          const float p = s.materialised ? softmax[query * s.seq + j] : std::exp(z - softmax[query]);
          const float slope = s.cap > 0 ? 1.0F - z / s.cap * (z / s.cap) : 1.0F;
          const float ds = p * (left * dot(d_out + row, qkv + at.v_row(j), s.head) - d) * s.scale() * slope;
          for (Index x = 0; x < s.head; ++x) {
            d_qkv[at.q_row(i) + x] += ds * k[x];
            d_qkv[at.k_row(j) + x] += ds * q[x];
            d_qkv[at.v_row(j) + x] += left * p * d_out[row + x];
          }
        }
      }
    }
  }
}

}  // namespace orrery::kernels::reference
