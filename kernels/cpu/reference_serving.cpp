// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cpu/serving.h"

namespace orrery::kernels::reference {
namespace {

// Rows of tokens [first, cached + queries) of a sequence: from the cache, and behind them the pass's own,
// which stand `stride` apart.
std::vector<float> seen_rows(Index first, Index cached, Index queries, Index room, Index width,
                             const float* cache, const float* own, Index stride) {
  std::vector<float> out(static_cast<std::size_t>((cached + queries - first) * width));
  float* to = out.data();
  for (Index t = first; t < cached; ++t, to += width) std::copy_n(cache + t % room * width, width, to);
  for (Index t = 0; t < queries; ++t, to += width) std::copy_n(own + t * stride, width, to);
  return out;
}

// The pass's own rows join the cache, as far as it has room.
void keep_rows(Index cached, Index queries, Index room, Index width, const float* own, Index stride,
               float* cache) {
  for (Index t = std::max<Index>(0, queries - room); t < queries; ++t)
    std::copy_n(own + t * stride, width, cache + (cached + t) % room * width);
}

// Queries of a sequence and head over rows [k heads | v heads] of tokens from `first` on. Query i has row i
// of q, `stride` elements apart, and row i of out.
void attend(const CachedShape& s, Index h, Index first, const float* rows, const float* q, Index stride,
            float* out, float* lse) {
  const Index k = h * s.kv / s.heads * s.head, v = s.kv * s.head + h * s.kv / s.heads * s.value;
  std::vector<float> p(static_cast<std::size_t>(s.cached + s.queries));
  for (Index i = 0; i < s.queries; ++i, q += stride, out += s.heads * s.value) {
    const Index begin = s.first_seen(i), end = s.cached + i + 1;
    float largest = -3.4e38F, sum = 0;
    for (Index t = begin; t < end; ++t) {
      const float* const key = rows + (t - first) * s.row() + k;
      float z = 0;
      for (Index j = 0; j < s.head; ++j) z += q[j] * key[j];
      z *= s.scale();
      if (s.cap > 0) z = s.cap * std::tanh(z / s.cap);
      p[static_cast<std::size_t>(t)] = z;
      largest = std::max(largest, z);
    }
    for (Index t = begin; t < end; ++t) {
      float& x = p[static_cast<std::size_t>(t)];
      sum += x = std::exp(x - largest);
    }
    std::fill_n(out, s.value, 0.0F);
    for (Index t = begin; t < end; ++t) {
      const float* const value = rows + (t - first) * s.row() + v;
      for (Index d = 0; d < s.value; ++d) out[d] += p[static_cast<std::size_t>(t)] / sum * value[d];
    }
    lse[i] = largest + std::log(sum);
  }
}

}  // namespace

void cached_attention(const CachedShape& s, const float* qkv, float* cache, float* out, float* lse) {
  const Index width = s.heads * s.head + s.row(), first = std::min(s.first_seen(0), s.cached);
  for (Index b = 0; b < s.batch; ++b, qkv += s.queries * width, cache += s.room * s.row()) {
    const float* const own = qkv + s.heads * s.head;
    const auto rows = seen_rows(first, s.cached, s.queries, s.room, s.row(), cache, own, width);
    for (Index h = 0; h < s.heads; ++h)
      attend(s, h, first, rows.data(), qkv + h * s.head, width, out + (b * s.queries * s.heads + h) * s.value,
             lse + (b * s.heads + h) * s.queries);
    keep_rows(s.cached, s.queries, s.room, s.row(), own, width, cache);
  }
}

void cached_latent_attention(const CachedLatentShape& s, const float* q, const float* latent,
                             const float* turned, const float* up, float* cache, float* out, float* lse) {
  const Index row = s.rank + s.turned, head = s.turned + s.plain;
  const CachedShape as{.batch = 1,
                       .queries = s.queries,
                       .cached = s.cached,
                       .room = s.room,
                       .heads = s.heads,
                       .kv = s.heads,
                       .head = head,
                       .value = s.value,
                       .explicit_scale = s.explicit_scale};
  std::vector<float> own(static_cast<std::size_t>(s.queries * row));
  std::vector<float> expanded(static_cast<std::size_t>((s.cached + s.queries) * as.row()));
  for (Index b = 0; b < s.batch; ++b, cache += s.room * row) {
    for (Index t = 0; t < s.queries; ++t) {
      std::copy_n(latent + (b * s.queries + t) * s.rank, s.rank, own.data() + t * row);
      std::copy_n(turned + (b * s.queries + t) * s.turned, s.turned, own.data() + t * row + s.rank);
    }
    const auto rows = seen_rows(0, s.cached, s.queries, s.room, row, cache, own.data(), row);
    for (Index t = 0; t < s.cached + s.queries; ++t) {
      const float* const c = rows.data() + t * row;
      float* const keys = expanded.data() + t * as.row();
      float* const values = keys + s.heads * head;
      for (Index h = 0; h < s.heads; ++h) {
        std::copy_n(c + s.rank, s.turned, keys + h * head);
        for (Index j = 0; j < s.plain + s.value; ++j) {
          const float* const w = up + (h * (s.plain + s.value) + j) * s.rank;
          float sum = 0;
          for (Index i = 0; i < s.rank; ++i) sum += c[i] * w[i];
          (j < s.plain ? keys[h * head + s.turned + j] : values[h * s.value + j - s.plain]) = sum;
        }
      }
    }
    for (Index h = 0; h < s.heads; ++h)
      attend(as, h, 0, expanded.data(), q + (b * s.queries * s.heads + h) * head, s.heads * head,
             out + (b * s.queries * s.heads + h) * s.value, lse + (b * s.heads + h) * s.queries);
    keep_rows(s.cached, s.queries, s.room, row, own.data(), row, cache);
  }
}

void last_tokens(Index batch, Index queries, Index width, const float* x, float* y) {
  for (Index b = 0; b < batch; ++b) std::copy_n(x + ((b + 1) * queries - 1) * width, width, y + b * width);
}

void best_logit(Index rows, Index columns, Index first, Index vocabulary, const float* logits, float* best) {
  const Index real = std::clamp<Index>(vocabulary - first, 0, columns);  // the others only fill shares up
  for (Index r = 0; r < rows; ++r, logits += columns, best += 2) {
    const float* const most = std::max_element(logits, logits + real);
    best[0] = real > 0 ? *most : -3.4e38F;
    best[1] = static_cast<float>(first + (most - logits));
  }
}

void choose_token(Index rows, Index ranks, const float* best, std::int32_t* tokens) {
  for (Index r = 0; r < rows; ++r) {
    const float* most = best + 2 * r;
    for (Index k = 1; k < ranks; ++k) {
      const float* const other = best + 2 * (k * rows + r);
      if (other[0] > most[0]) most = other;
    }
    tokens[r] = static_cast<std::int32_t>(most[1]);
  }
}

}  // namespace orrery::kernels::reference
