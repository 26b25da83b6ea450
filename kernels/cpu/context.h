// SPDX-License-Identifier: Apache-2.0
//
// Attention of ranks that share sequences (program/ops/context.h), fp32.
#pragma once

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/token_share.h"

namespace orrery::kernels {

// Rows of queries stand as [ulysses, batch, tokens], `heads` heads of `head` elements each; those of keys as
// [places, ulysses, batch, tokens] with `kv` keys of `head` and then `kv` values of `value` elements, for
// `places` ranks of the ring.
struct ContextShape {
  Index batch, tokens;  // samples; of each, tokens that a rank has before the exchange of heads
  Index heads, kv, head, value;
  Index ring, ulysses;
  Index rank;            // along the ring
  Index source = 0;      // whose keys they are, along the ring, where they are of one place
  bool gathered = true;  // keys are of all places, in order
  Index window = 0;
  bool sees_all = false;
  float cap = 0;             // none
  float explicit_scale = 0;  // 0: 1 / sqrt(head)
  Index first_head = 0;      // of all tensor ranks' heads
  Dropout dropout{};
  bool more = false;  // adds to what other keys gave
  // As of reference::AttentionShape, for each of [batch, sequence].
  bool packed = false;
  const std::int32_t* document = nullptr;
  float scale() const;
  Index sequence() const { return ring * ulysses * tokens; }
  Index places() const { return gathered ? ring : 1; }
  Index rows() const { return ulysses * batch * tokens; }
  Index key_rows() const { return places() * rows(); }
  Index key_width() const { return kv * (head + value); }
};

// `out` [rows, heads, value] and the log-sum-exp of scores, in the order of (row, head): of these keys, or,
// with `more`, of these and those that gave `sums` and what stands in `lse`. `sums` and `out` may be the
// same.
void context_attention(const ContextShape& s, const float* q, const float* kv, const float* sums, float* out,
                       float* lse);
// `out` and `lse` are of all keys. With `more` dq is added to; dkv is of these keys.
void context_attention_grad(const ContextShape& s, const float* q, const float* kv, const float* out,
                            const float* lse, const float* d_out, float* dq, float* dkv);

// Rows [q heads | k heads | v heads] of tokens become rows of q and of kv in `parts`, each with all tokens
// and its share of the heads; and rows of what heads made in such parts become whole ones.
struct HeadsShape {
  Index tokens, heads, kv, head, value, parts;
};
void heads_pack(const HeadsShape& s, const float* qkv, float* q, float* kv);
void heads_pack_grad(const HeadsShape& s, const float* dq, const float* dkv, float* d_qkv);
void heads_unpack(const HeadsShape& s, const float* parts, float* whole);
void heads_unpack_grad(const HeadsShape& s, const float* d_whole, float* d_parts);

}  // namespace orrery::kernels
