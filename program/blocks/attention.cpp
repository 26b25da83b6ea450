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

ValueId context(Builder& g, const std::string& base, const AttentionLayer& a, ValueId x) {
  const std::int64_t hidden = g.model.hidden, head = a.head_dim, q = a.query_width(), k = a.kv_heads * head;
  const std::int64_t heads = a.heads / g.ranks, kv_heads = a.kv_heads / g.ranks;  // of this rank
  const std::int64_t width = (heads + 2 * kv_heads) * head;
  const Placements columns = g.placed(Placement::kColumns);

  const std::vector<std::int64_t> blocks{q, k, k};
  const std::int32_t w_qkv =
      g.matrix(base + "/qkv/weight", a.qkv_width(), hidden, Parameter::Split::kRows, blocks);
  const std::int32_t b_qkv =
      a.bias || a.qkv_bias ? g.split_vector(base + "/qkv/bias", a.qkv_width(), blocks) : -1;
  ValueId qkv = g.linear(base + "/qkv", x, w_qkv, b_qkv);
  if (a.qk_norm) {
    const std::int32_t w = g.vector(base + "/qk_norm/weight", 2 * head, Parameter::Init::kOnes);
    const ValueId normed = g.value(base + "/qk_norm/out", a.qkv_width(), columns);
    g.node(base + "/qk_norm", ops::HeadNorm{{g.tokens, width, heads, head, kv_heads}},
           {g.use(qkv), g.weight(w)}, {normed});
    qkv = normed;
  }
  if (a.positions == Positions::kRotary) {
    const ops::RopeShape shape{.rows = g.tokens,
                               .width = width,
                               .heads = heads + kv_heads,
                               .head = head,
                               .sequence = g.sequence,
                               .turned = a.rotary.turned(head),
                               .table = g.rotary_table({a.rotary, head})};
    qkv = g.in_place(base + "/rope", ops::Rope{shape}, {g.use(qkv)});
  }

  const ops::Attention core{{.batch = g.micro_batch,
                             .sequence = g.sequence,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head = head,
                             .kept = kept_scores(g),
                             .window = a.windowed(g.sequence) ? a.sliding_window : 0,
                             .sees_all = !a.causal,
                             .soft_cap = a.soft_cap,
                             .scale = a.query_scale}};
  const ValueId ctx = g.value(base + "/core/out", q, columns);
  std::vector<ValueId> writes{ctx};
  if (core.fused()) {
    writes.push_back(g.value(base + "/core/lse", g.tokens, a.heads, columns, DType::kFloat32));
  } else {
    // The softmax's output; with dropout also its mask and the dropped-out copy.
    const std::int64_t scores = a.heads * g.sequence, copies = core.kept_scores() / core.scores();
    writes.push_back(g.value(base + "/core/scores", scores * copies, columns));
    if (g.training.drops())
      writes.push_back(g.value(base + "/core/scores-mask", g.tokens, scores, columns, DType::kByte));
  }
  g.node(base + "/core", core, {g.use(qkv)}, std::move(writes)).repeated_selectively = true;
  return ctx;
}

Branch project(Builder& g, const std::string& base, const AttentionLayer& a, ValueId context) {
  const std::int32_t w =
      g.matrix(base + "/out/weight", g.model.hidden, a.query_width(), Parameter::Split::kCols);
  return {g.linear(base + "/out", context, w), g.bias_if(a.bias, base + "/out/bias")};
}

Branch branch(Builder& g, const std::string& base, const AttentionLayer& a, ValueId x) {
  return project(g, base, a, context(g, base, a, x));
}

}  // namespace orrery::program
