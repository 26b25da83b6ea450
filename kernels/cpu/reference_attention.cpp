// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {
namespace {

// Where the rows of one (sample, head) stand.
struct HeadView {
  HeadView(const AttentionShape& s, Index sample, Index head_index)
      : q_width(s.query_width()),
        k_width(s.key_width()),
        q(sample * s.seq * q_width + head_index * s.head),
        k(sample * s.keys() * k_width + s.first_of_keys() + head_index * s.kv / s.heads * s.head),
        v(sample * s.keys() * k_width + s.first_of_values() + head_index * s.kv / s.heads * s.value_head()) {}
  Index q_row(Index i) const { return q + i * q_width; }
  Index k_row(Index i) const { return k + i * k_width; }
  Index v_row(Index i) const { return v + i * k_width; }
  Index q_width, k_width, q, k, v;
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
float softmax_row(const AttentionShape& s, const HeadView& at, AttentionRows<const float*> rows, Index sample,
                  Index i, float* p) {
  const Index first = s.first_key(sample, i), end = s.end_key(i);
  std::fill_n(p, s.keys(), 0.0F);
  float largest = -3.4e38F;
  for (Index j = first; j < end; ++j) {
    p[j] = score(s, rows.q + at.q_row(i), rows.kv + at.k_row(j));
    largest = std::max(largest, p[j]);
  }
  float sum = 0;
  for (Index j = first; j < end; ++j) sum += p[j] = std::exp(p[j] - largest);
  for (Index j = first; j < end; ++j) p[j] /= sum;
  return largest + std::log(sum);
}

}  // namespace

void attention(const AttentionShape& s, AttentionRows<const float*> rows, float* out, float* softmax,
               std::uint8_t* mask) {
  const Index keys = s.keys(), value = s.value_head();
  std::vector<float> row(static_cast<std::size_t>(keys));
  std::vector<std::uint8_t> kept(row.size());
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      const HeadView at(s, b, h);
      for (Index i = 0; i < s.seq; ++i) {
        const Index query = (b * s.heads + h) * s.seq + i;
        float* p = s.materialised ? softmax + query * keys : row.data();
        const float lse = softmax_row(s, at, rows, b, i, p);
        if (!s.materialised) softmax[query] = lse;
        if (s.drops()) {
          keep(s.dropout, b, (s.first_head + h) * s.seq + i, keys, kept.data());
          float* left = s.materialised ? p + s.batch * s.heads * s.seq * keys : p;
          for (Index j = 0; j < keys; ++j)
            left[j] = kept[static_cast<std::size_t>(j)] != 0 ? p[j] * s.dropout.scale() : 0.0F;
          if (s.materialised) std::copy(kept.begin(), kept.end(), mask + query * keys);
          p = left;
        }
        float* o = out + ((b * s.seq + i) * s.heads + h) * value;
        std::fill_n(o, value, 0.0F);
        for (Index j = s.first_key(b, i); j < s.end_key(i); ++j) {
          for (Index d = 0; d < value; ++d) o[d] += p[j] * rows.kv[at.v_row(j) + d];
        }
      }
    }
  }
}

// With D_i = sum(dO_i O_i): dP_ij = m_ij dO_i v_j, dS_ij = P_ij (dP_ij - D_i), dz = dS (1 - (S / cap)^2)
// where there is a cap, dv_j = m_ij P_ij dO_i, where dropout has m = 0 or 1 / (1 - p).
void attention_grad(const AttentionShape& s, AttentionRows<const float*> rows, const float* out,
                    const float* softmax, const std::uint8_t* mask, const float* d_out,
                    AttentionRows<float*> d_rows) {
  const Index keys = s.keys(), value = s.value_head();
  std::vector<std::uint8_t> kept(static_cast<std::size_t>(keys));
  std::fill_n(d_rows.q, s.batch * s.seq * s.query_width(), 0.0F);
  if (d_rows.kv != d_rows.q) std::fill_n(d_rows.kv, s.batch * keys * s.key_width(), 0.0F);
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      const HeadView at(s, b, h);
      for (Index i = 0; i < s.seq; ++i) {
        const Index query = (b * s.heads + h) * s.seq + i;
        const Index row = ((b * s.seq + i) * s.heads + h) * value;
        const float d = dot(d_out + row, out + row, value);
        if (s.drops() && s.materialised)
          std::copy_n(mask + query * keys, keys, kept.begin());
        else if (s.drops())
          keep(s.dropout, b, (s.first_head + h) * s.seq + i, keys, kept.data());
        for (Index j = s.first_key(b, i); j < s.end_key(i); ++j) {
          const float left = !s.drops()                               ? 1.0F
                             : kept[static_cast<std::size_t>(j)] != 0 ? s.dropout.scale()
                                                                      : 0.0F;
          const float* q = rows.q + at.q_row(i);
          const float* k = rows.kv + at.k_row(j);
          const float z = score(s, q, k);
          const float p = s.materialised ? softmax[query * keys + j] : std::exp(z - softmax[query]);
          const float slope = s.cap > 0 ? 1.0F - z / s.cap * (z / s.cap) : 1.0F;
          const float ds =
              p * (left * dot(d_out + row, rows.kv + at.v_row(j), value) - d) * s.scale() * slope;
          for (Index x = 0; x < s.head; ++x) {
            d_rows.q[at.q_row(i) + x] += ds * k[x];
            d_rows.kv[at.k_row(j) + x] += ds * q[x];
          }
          for (Index x = 0; x < value; ++x) {
            d_rows.kv[at.v_row(j) + x] += left * p * d_out[row + x];
          }
        }
      }
    }
  }
}

void latent_pack(const LatentShape& s, const float* q, const float* kv, const float* r, float* qkv) {
  const Index head = s.turned + s.plain, queries = s.heads * head, other = s.plain + s.value;
  const Index width = 2 * queries + s.heads * s.value;
  for (Index row = 0; row < s.rows; ++row, q += queries, kv += s.heads * other, r += s.turned, qkv += width) {
    std::copy_n(q, queries, qkv);
    for (Index h = 0; h < s.heads; ++h) {
      float* const key = qkv + queries + h * head;
      std::copy_n(r, s.turned, key);
      std::copy_n(kv + h * other, s.plain, key + s.turned);
      std::copy_n(kv + h * other + s.plain, s.value, qkv + 2 * queries + h * s.value);
    }
  }
}

void latent_pack_grad(const LatentShape& s, const float* d_qkv, float* dq, float* dkv, float* dr) {
  const Index head = s.turned + s.plain, queries = s.heads * head, other = s.plain + s.value;
  const Index width = 2 * queries + s.heads * s.value;
  for (Index row = 0; row < s.rows;
       ++row, dq += queries, dkv += s.heads * other, dr += s.turned, d_qkv += width) {
    std::copy_n(d_qkv, queries, dq);
    std::fill_n(dr, s.turned, 0.0F);
    for (Index h = 0; h < s.heads; ++h) {
      const float* const key = d_qkv + queries + h * head;
      for (Index j = 0; j < s.turned; ++j) dr[j] += key[j];
      std::copy_n(key + s.turned, s.plain, dkv + h * other);
      std::copy_n(d_qkv + 2 * queries + h * s.value, s.value, dkv + h * other + s.plain);
    }
  }
}

void attention_sink(const SinkShape& s, const float* sinks, float* out, float* lse) {
  for (Index row = 0; row < s.rows(); ++row) {
    for (Index h = 0; h < s.heads; ++h) {
      float& sum = lse[s.lse(row, h)];
      const float most = std::max(sum, sinks[h]);
      const float all = most + std::log(std::exp(sum - most) + std::exp(sinks[h] - most));
      float* const o = out + (row * s.heads + h) * s.value;
      const float share = std::exp(sum - all);
      for (Index j = 0; j < s.value; ++j) o[j] *= share;
      sum = all;
    }
  }
}

void attention_sink_grad(const SinkShape& s, const float* sinks, const float* out, const float* lse,
                         const float* d_out, float* d_sinks, bool accumulate) {
  for (Index h = 0; h < s.heads; ++h) {
    double sum = 0;
    for (Index row = 0; row < s.rows(); ++row) {
      const Index at = (row * s.heads + h) * s.value;
      sum -=
          static_cast<double>(std::exp(sinks[h] - lse[s.lse(row, h)])) * dot(d_out + at, out + at, s.value);
    }
    d_sinks[h] = (accumulate ? d_sinks[h] : 0.0F) + static_cast<float>(sum);
  }
}

}  // namespace orrery::kernels::reference
