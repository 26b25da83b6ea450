// SPDX-License-Identifier: Apache-2.0
//
// Attention with grouped query heads: heads are split over tensor ranks.
//
//   qkv = x Wqkv' + b     ctx = attention(rope(norm(qkv)))     o = sum over ranks of ctx Wout'
#include "program/blocks.h"

namespace orrery::program {
namespace {

ops::Scores kept_scores(const Builder& g) {
  using enum ops::Scores;
  return g.stack.flash_attention ? kNone : g.training.drops() ? kSoftmaxAndDropped : kSoftmax;
}

}  // namespace

Branch attention(Builder& g, ValueId x) {
  const Model& m = g.model;
  const std::int64_t head = m.head(), q = m.heads * head, k = m.kv() * head;
  const std::int64_t heads = m.heads / g.ranks, kv_heads = m.kv() / g.ranks;  // of this rank
  const std::int64_t width = (heads + 2 * kv_heads) * head;
  const Placements columns = g.placed(Placement::kColumns);

  const std::vector<std::int64_t> blocks{q, k, k};
  const std::int32_t w_qkv =
      g.matrix("attn/qkv/weight", m.qkv_width(), m.hidden, Parameter::Split::kRows, blocks);
  const std::int32_t b_qkv =
      m.bias || m.qkv_bias ? g.split_vector("attn/qkv/bias", m.qkv_width(), blocks) : -1;
  ValueId qkv = g.linear("attn/qkv", x, w_qkv, b_qkv);
  if (m.qk_norm) {
    const std::int32_t w = g.vector("attn/qk_norm/weight", 2 * head, Parameter::Init::kOnes);
    const ValueId normed = g.value("attn/qk_norm/out", m.qkv_width(), columns);
    g.node("attn/qk_norm", ops::HeadNorm{{g.tokens, width, heads, head, kv_heads}}, {g.use(qkv), g.weight(w)},
           {normed});
    qkv = normed;
  }
  if (m.positions == Positions::kRotary) {
    const ops::RopeShape shape{g.tokens, width, heads + kv_heads, head, g.sequence, m.rotary.turned(head)};
    qkv = g.in_place("attn/rope", ops::Rope{shape}, {g.use(qkv)});
  }

  const ops::Attention core{{g.micro_batch, g.sequence, heads, kv_heads, head, kept_scores(g)}};
  const ValueId ctx = g.value("attn/core/out", q, columns);
  std::vector<ValueId> writes{ctx};
  if (core.fused()) {
    writes.push_back(g.value("attn/core/lse", g.tokens, m.heads, columns, DType::kFloat32));
  } else {
    // The softmax's output; with dropout also its mask and the dropped-out copy.
    const std::int64_t scores = m.heads * g.sequence, copies = core.kept_scores() / core.scores();
    writes.push_back(g.value("attn/core/scores", scores * copies, columns));
    if (g.training.drops())
      writes.push_back(g.value("attn/core/scores-mask", g.tokens, scores, columns, DType::kByte));
  }
  g.node("attn/core", core, {g.use(qkv)}, std::move(writes)).repeated_selectively = true;

  const std::int32_t w_out = g.matrix("attn/out/weight", m.hidden, q, Parameter::Split::kCols);
  const std::int32_t b_out = m.bias ? g.vector("attn/out/bias", m.hidden, Parameter::Init::kZeros) : -1;
  return {g.linear("attn/out", ctx, w_out), b_out};
}

}  // namespace orrery::program
