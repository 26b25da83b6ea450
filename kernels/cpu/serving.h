// SPDX-License-Identifier: Apache-2.0
//
// Kernels of serving in fp32, in their plainest form: attention of a pass's tokens to those in a cache and to
// each other, and the choice of a token. A cache has `room` rows for each sequence; token t of it has row
// t mod room.
#pragma once

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {

// As AttentionShape, of rows [q heads | k heads | v heads]. `cached` tokens of each sequence are in the
// cache, in rows [k heads | v heads], and the pass's own join them; of a layer with a window the last `room`.
// `out` is [batch, queries, heads, value], `lse` the log-sum-exp of scores [batch, heads, queries].
// Precondition: what the queries see is there: cached <= room, or window <= room + 1.
struct CachedShape {
  Index batch, queries, cached, room;
  Index heads, kv, head, value;
  Index window = 0;
  float cap = 0;
  float explicit_scale = 0;
  float scale() const {
    return explicit_scale > 0 ? explicit_scale : 1.0F / std::sqrt(static_cast<float>(head));
  }
  Index row() const { return kv * (head + value); }
  Index first_seen(Index query) const {
    return window > 0 && cached + query >= window ? cached + query + 1 - window : 0;
  }
};
void cached_attention(const CachedShape& s, const float* qkv, float* cache, float* out, float* lse);

// Of latent attention: rows of q are [heads, turned | plain], the latents `rank` long, and the turned
// elements of all heads; the up weight is [heads, plain | value, rank]. A row of the cache is [latent |
// turned].
struct CachedLatentShape {
  Index batch, queries, cached, room;
  Index heads, turned, plain, value, rank;
  float explicit_scale = 0;
};
void cached_latent_attention(const CachedLatentShape& s, const float* q, const float* latent,
                             const float* turned, const float* up, float* cache, float* out, float* lse);

// The last of every `queries` rows.
void last_tokens(Index batch, Index queries, Index width, const float* x, float* y);

// Of each row of logits, the columns [first, first + columns) of a vocabulary, the largest and its place in
// the vocabulary, the first of equal ones; and of all ranks' best ones [rank, row, 2] the token of each row.
void best_logit(Index rows, Index columns, Index first, Index vocabulary, const float* logits, float* best);
void choose_token(Index rows, Index ranks, const float* best, std::int32_t* tokens);

}  // namespace orrery::kernels::reference
