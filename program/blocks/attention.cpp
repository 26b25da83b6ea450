// SPDX-License-Identifier: Apache-2.0
//
// Attention with grouped query heads, to the layer's own tower and to another, and latent attention: heads
// are split over tensor ranks.
//
//   qkv = x Wqkv' + b              ctx = attention(rope(norm(qkv)))     o = sum over ranks of ctx Wout'
//   q = x Wq' + b, kv = y Wkv' + b   ctx = attention(q, kv)               likewise
//   q = norm(x Wdq') Wuq', kv = norm(x Wdkv') Wukv', r = x Wkr'   ctx = attention(pack(rope(q), kv, rope(r)))
//
// Ranks that share sequences exchange what passes between their tokens in attention alone: heads of queries,
// keys and values by all-to-alls, keys and values by an all-gather or around a ring (core/plan.h).
#include <algorithm>
#include <stdexcept>

#include "program/blocks.h"

namespace orrery::program {
namespace {

ops::Scores kept_scores(const Builder& g) {
  using enum ops::Scores;
  return g.stack.flash_attention ? kNone : g.training.drops() ? kSoftmaxAndDropped : kSoftmax;
}

// Of what attention sees of its own tower, the share that lies within documents; 0: there are none.
double within_documents(const Builder& g, std::int64_t window) {
  return g.training.packs() ? g.training.within_documents(window) : 0;
}
std::vector<Operand> with_documents(Builder& g, const ops::AttentionShape& core, std::vector<Operand> reads) {
  if (core.of_documents()) reads.push_back(g.use(g.documents()));
  return reads;
}

// Where each head has a learned score of its own, what attention comes to with it.
ValueId with_sinks(Builder& g, const std::string& base, ops::SinkShape shape, ValueId ctx, ValueId lse,
                   std::int32_t sinks) {
  if (sinks < 0) return ctx;
  if (!g.stack.flash_attention) throw std::logic_error("sinks are of attention that keeps no scores");
  const ValueId after = g.taken_over(ctx, 0);
  g.node(base + "/core/sinks", ops::AttentionSink{shape}, {g.use(ctx), g.use(lse), g.weight(sinks)},
         {after, g.taken_over(lse, 1)});
  return after;
}

// What heads make of the values that they see, of that width in all. `heads` are all ranks'; `keys`: tokens
// that a head looks at.
template <class Core>
ValueId core_of(Builder& g, const std::string& base, const Core& core, std::int64_t heads, std::int64_t keys,
                std::vector<Operand> reads, std::int64_t width, std::int32_t sinks = -1) {
  const Placements columns = g.placed(Placement::kColumns);
  const ValueId ctx = g.value(base + "/core/out", width, columns);
  std::vector<ValueId> writes{ctx};
  if (core.fused()) {
    writes.push_back(g.value(base + "/core/lse", g.tokens, heads, columns, DType::kFloat32));
  } else {
    // The softmax's output; with dropout also its mask and the dropped-out copy.
    const std::int64_t scores = heads * keys, copies = core.kept_scores() / core.scores();
    writes.push_back(g.value(base + "/core/scores", scores * copies, columns));
    if (g.training.drops())
      writes.push_back(g.value(base + "/core/scores-mask", g.tokens, scores, columns, DType::kByte));
  }
  const Builder::InPart part(g, RecomputePart::kCoreAttention);
  const ValueId lse = writes.back();
  g.node(base + "/core", core, std::move(reads), std::move(writes));
  return with_sinks(g, base, {core.batch, core.sequence, core.heads, width / heads}, ctx, lse, sinks);
}

// Of ranks that share sequences: no scores are in memory.
ValueId context_core(Builder& g, const std::string& base, const ops::Attention& core, std::int64_t heads,
                     std::int64_t kv_heads, ValueId qkv, std::int32_t sinks) {
  const Plan& p = g.plan;
  const std::int64_t parts = p.ulysses, value = core.value_head();
  const auto by_heads = [&](std::int64_t columns, const char* name, DType type) {
    return g.value(base + name, g.all_tokens * parts, columns / parts, g.placed(Placement::kColumns), type);
  };
  const ops::HeadsShape shape{g.tokens, core.heads, core.kv_heads, core.head, value, parts};
  const DType type = g.training.activation_type();
  const ValueId q = by_heads(heads * core.head, "/core/q", type);
  const ValueId kv = by_heads(kv_heads * (core.head + value), "/core/kv", type);
  {
    const Builder::InPart part(g, g.parts_of(qkv));
    g.node(base + "/core/pack", ops::HeadsPack{shape}, {g.use(qkv)}, {q, kv});
  }

  Placements at_heads = g.placed(Placement::kColumns);
  if (parts > 1) at_heads[GraphAxis::kUlysses] = Placement::kParts;
  Placements of_keys = at_heads;
  if (p.ring() > 1 && !p.rings()) of_keys[GraphAxis::kRing] = Placement::kReplicated;
  ValueId ctx = by_heads(heads * value, "/core/out", type);
  const ValueId lse = by_heads(heads, "/core/lse", DType::kFloat32);
  g.of(ctx).placement = g.of(lse).placement = at_heads;
  {
    const Builder::InPart part(g, RecomputePart::kCoreAttention);
    g.node(base + "/core",
           ops::ContextAttention{{.batch = g.micro_batch,
                                  .tokens = g.sequence,
                                  .heads = core.heads / parts,
                                  .kv_heads = core.kv_heads / parts,
                                  .head = core.head,
                                  .value = value,
                                  .ring = p.ring(),
                                  .ulysses = parts,
                                  .steps = p.rings() ? p.ring() : 1,
                                  .window = core.window,
                                  .sees_all = core.sees_all,
                                  .soft_cap = core.soft_cap,
                                  .scale = core.scale,
                                  .within = core.within}},
           with_documents(g, core, {g.use(q, at_heads), g.use(kv, of_keys)}), {ctx, lse});
    ctx = with_sinks(g, base, {g.micro_batch, g.sequence, core.heads, value, true}, ctx, lse, sinks);
  }
  if (parts == 1) return ctx;
  const ValueId whole = g.value(base + "/core/unpacked", heads * value, g.placed(Placement::kColumns));
  g.node(base + "/core/unpack", ops::HeadsUnpack{shape}, {g.use(ctx, g.placed(Placement::kColumns))},
         {whole});
  return whole;
}

DType cache_type(const Builder& g) {
  const DType type = g.training.activation_type();
  return static_cast<std::int64_t>(bytes_of(type)) == g.training.cache->element_bytes ? type : DType::kByte;
}
ValueId cache_port(Builder& g, const std::string& base, std::int64_t room, std::int64_t columns,
                   Placements placement) {
  return g.port(base + "/cache", Port::Is::kCache, 0, g.micro_batch * room, columns, placement,
                cache_type(g));
}
// What heads make of the tokens in the cache and of the pass's own, which join the cache.
template <class Core>
ValueId cached_core(Builder& g, const std::string& base, const Core& core, std::int64_t heads,
                    std::vector<Operand> reads, ValueId cache, std::int32_t sinks = -1) {
  const Placements columns = g.placed(Placement::kColumns);
  const ValueId ctx = g.value(base + "/core/out", heads * core.value, columns);
  const ValueId lse = g.value(base + "/core/lse", g.tokens, heads, columns, DType::kFloat32);
  reads.push_back(g.use(cache));
  const ValueId after = g.taken_over(cache, static_cast<std::int32_t>(reads.size() - 1));
  g.node(base + "/core", core, std::move(reads), {ctx, lse, after});
  return with_sinks(g, base, {core.batch, core.queries, core.heads, core.value}, ctx, lse, sinks);
}
ValueId cached_core(Builder& g, const std::string& base, const ops::Attention& a, std::int64_t heads,
                    std::int64_t kv_heads, ValueId qkv, std::int32_t sinks) {
  const KvCache& kept = *g.training.cache;
  // Of a layer with a window no more tokens are needed.
  const std::int64_t room = a.window > 0 ? std::min(a.window, kept.room) : kept.room;
  const ops::CachedAttention core{{.batch = a.batch,
                                   .queries = a.sequence,
                                   .cached = kept.cached,
                                   .room = room,
                                   .heads = a.heads,
                                   .kv_heads = a.kv_heads,
                                   .head = a.head,
                                   .value = a.value_head(),
                                   .window = a.window,
                                   .soft_cap = a.soft_cap,
                                   .scale = a.scale,
                                   .element_bytes = kept.element_bytes}};
  const ValueId cache =
      cache_port(g, base, room, kv_heads * (core.head + core.value), g.placed(Placement::kColumns));
  return cached_core(g, base, core, heads, {g.use(qkv)}, cache, sinks);
}

// Of the layer's own tower. `heads` as of core_of.
ValueId own_core(Builder& g, const std::string& base, const ops::Attention& core, std::int64_t heads,
                 std::int64_t kv_heads, ValueId qkv, std::int32_t sinks = -1) {
  if (g.training.serves()) return cached_core(g, base, core, heads, kv_heads, qkv, sinks);
  if (g.plan.cp > 1) return context_core(g, base, core, heads, kv_heads, qkv, sinks);
  return core_of(g, base, core, heads, core.sequence, with_documents(g, core, {g.use(qkv)}),
                 heads * core.value_head(), sinks);
}

// With queries and keys normed as the layer says.
ValueId normed_heads(Builder& g, const std::string& base, const AttentionLayer& a, ValueId qkv) {
  const bool together = a.qk_norm == QkNorm::kAllHeads, weighted = a.qk_norm != QkNorm::kUnweighted;
  const std::int64_t heads = a.heads / g.ranks, kv_heads = a.kv_heads / g.ranks;
  if (together && g.ranks > 1) throw std::logic_error("a norm over the heads of several ranks");
  ops::HeadNormShape shape{.rows = g.tokens,
                           .width = (heads + 2 * kv_heads) * a.head_dim,
                           .heads = heads,
                           .head = a.head_dim,
                           .kv_heads = kv_heads,
                           .kv_head = a.head_dim,
                           .weighted = weighted};
  if (together) {
    shape.heads = shape.kv_heads = 1;
    shape.head = a.query_width();
    shape.kv_head = a.key_width();
  }
  std::vector<Operand> reads{g.use(qkv)};
  if (weighted)
    reads.push_back(g.weight(
        g.vector(base + "/weight", a.query_norm_width() + a.key_norm_width(), Parameter::Init::kOnes)));
  const ValueId normed = g.value(base + "/out", a.qkv_width(), g.placed(Placement::kColumns));
  g.node(base, ops::HeadNorm{shape}, std::move(reads), {normed});
  return normed;
}

}  // namespace

ValueId context(Builder& g, const std::string& base, const AttentionLayer& a, ValueId x) {
  const std::int64_t hidden = g.model.hidden, head = a.head_dim, q = a.query_width(), k = a.key_width();
  const std::int64_t heads = a.heads / g.ranks, kv_heads = a.kv_heads / g.ranks;  // of this rank
  const std::int64_t width = (heads + 2 * kv_heads) * head;

  const std::vector<std::int64_t> blocks{q, k, k};
  const std::int32_t w_qkv =
      g.matrix(base + "/qkv/weight", a.qkv_width(), hidden, Parameter::Split::kRows, blocks);
  const std::int32_t b_qkv =
      a.bias || a.qkv_bias ? g.split_vector(base + "/qkv/bias", a.qkv_width(), blocks) : -1;
  using enum AdapterTarget;
  ValueId qkv = g.linear(base + "/qkv", x, w_qkv, b_qkv, {kQuery, kKey, kValue});
  if (a.qk_norm != QkNorm::kNone) qkv = normed_heads(g, base + "/qk_norm", a, qkv);
  const std::int64_t longest = g.training.serves() ? g.training.cache->room : g.sequence * g.plan.cp;
  ops::RopeShape turn{.rows = g.tokens, .width = width, .heads = heads, .head = head, .sequence = g.sequence};
  if (a.positions == Positions::kRotary) {
    turn.heads += kv_heads;
    turn.turned = a.rotary.turned(head);
    turn.table = g.rotary_table({a.rotary, head});
    qkv = g.in_place(base + "/rope", ops::Rope{turn}, {g.use(qkv)});
  } else if (a.query_growth.rate > 0 && longest >= a.query_growth.positions) {
    turn.turned = head;
    turn.table = g.rotary_table({{}, head, a.query_growth});
    qkv = g.in_place(base + "/growth", ops::Rope{turn}, {g.use(qkv)});
  }

  // Chunks are sequences of their own.
  const std::int64_t reach = a.reach(g.sequence);
  if (g.sequence % reach != 0) throw std::logic_error("a sequence that chunks do not fill");
  ops::Attention core{{.batch = g.micro_batch * (g.sequence / reach),
                       .sequence = reach,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .head = head,
                       .kept = kept_scores(g),
                       .window = a.windowed(longest) ? a.sliding_window : 0,
                       .sees_all = !a.causal,
                       .soft_cap = a.soft_cap,
                       .scale = a.query_scale}};
  core.within = within_documents(g, core.window);
  const std::int32_t sinks = a.sinks ? g.split_vector(base + "/sinks", a.heads, {a.heads}) : -1;
  return own_core(g, base, core, a.heads, a.kv_heads, qkv, sinks);
}

Branch project(Builder& g, const std::string& base, std::int64_t width, bool bias, ValueId context) {
  const std::int32_t w = g.matrix(base + "/out/weight", g.model.hidden, width, Parameter::Split::kCols);
  return g.last_product(base + "/out", context, w, bias, {AdapterTarget::kOutput});
}

Branch branch(Builder& g, const std::string& base, const AttentionLayer& a, ValueId x) {
  return project(g, base, a.query_width(), a.bias, context(g, base, a, x));
}

Branch branch(Builder& g, const std::string& base, const CrossAttentionLayer& a, ValueId x) {
  using Split = Parameter::Split;
  const TowerIndex other = g.model.tower(a.reads);
  const std::int64_t hidden = g.model.hidden, width = a.query_width(), k = a.kv_width() / 2;
  const std::vector<std::int64_t> blocks{k, k};
  const auto bias = [&](const char* name, std::int64_t n, std::vector<std::int64_t> of) {
    return a.bias ? g.split_vector(base + name, n, std::move(of)) : -1;
  };
  const std::int32_t w_q = g.matrix(base + "/q/weight", width, hidden, Split::kRows);
  using enum AdapterTarget;
  const ValueId q = g.linear(base + "/q", x, w_q, bias("/q/bias", width, {width}), {kQuery});
  const std::int32_t w_kv = g.matrix(base + "/kv/weight", 2 * k, hidden, Split::kRows, blocks);
  const ValueId kv =
      g.linear(base + "/kv", g.input(other), w_kv, bias("/kv/bias", 2 * k, blocks), {kKey, kValue});
  const std::int64_t keys = g.tokens_of(other) / g.micro_batch;
  const ops::CrossAttention core{{.batch = g.micro_batch,
                                  .sequence = g.sequence,
                                  .keys = keys,
                                  .heads = a.heads / g.ranks,
                                  .kv_heads = a.kv_heads / g.ranks,
                                  .head = a.head_dim,
                                  .kept = kept_scores(g),
                                  .scale = a.query_scale}};
  const ValueId ctx = core_of(g, base, core, a.heads, keys, {g.use(q), g.use(kv)}, width);
  return project(g, base, width, a.bias, ctx);
}

namespace {

// The cache has latents, and all tensor ranks have all of it.
Branch cached_latent(Builder& g, const std::string& base, const LatentAttentionLayer& a, ValueId q,
                     ValueId latent, ValueId x, ops::RopeShape turn) {
  const Placements whole = g.placed(Placement::kReplicated);
  const std::int32_t up = g.matrix(base + "/kv/weight", a.key_width(), a.kv_rank, Parameter::Split::kRows);
  const std::int32_t down =
      g.matrix(base + "/turned/weight", a.turned, g.columns_of(x), Parameter::Split::kNone);
  turn.width = turn.head = a.turned;
  turn.heads = 1;
  const ValueId turned =
      g.in_place(base + "/turned/rope", ops::Rope{turn},
                 {g.use(g.linear(base + "/turned", x, down, -1, {AdapterTarget::kKeyValueDown}), whole)});
  const KvCache& kept = *g.training.cache;
  const ops::CachedLatentAttention core{{.batch = g.micro_batch,
                                         .queries = g.sequence,
                                         .cached = kept.cached,
                                         .room = kept.room,
                                         .heads = a.heads / g.ranks,
                                         .turned = a.turned,
                                         .plain = a.plain,
                                         .value = a.value,
                                         .rank = a.kv_rank,
                                         .scale = a.query_scale,
                                         .element_bytes = kept.element_bytes}};
  const ValueId cache = cache_port(g, base, kept.room, core.row(), whole);
  const ValueId ctx = cached_core(g, base, core, a.heads,
                                  {g.use(q), g.use(latent, whole), g.use(turned), g.weight(up)}, cache);
  return project(g, base, a.context_width(), false, ctx);
}

}  // namespace

// Tensor ranks make latents of the tokens that they have, alike of those that all have, and gather them: they
// are narrower than x.
Branch branch(Builder& g, const std::string& base, const LatentAttentionLayer& a, ValueId x) {
  using Split = Parameter::Split;
  using enum AdapterTarget;
  const auto product = [&](const char* name, ValueId of, std::int64_t rows, Split split,
                           AdapterTarget target) {
    const std::int32_t w = g.matrix(base + name + "/weight", rows, g.columns_of(of), split);
    return g.linear(base + name, of, w, -1, {target});
  };
  const auto projected = [&](const auto& make) -> ValueId {
    const Builder::InPart part(g, RecomputePart::kLatentProjection);
    return make();
  };
  const std::int64_t heads = a.heads / g.ranks;
  ops::RopeShape turn{.rows = g.tokens,
                      .width = heads * a.head(),
                      .heads = heads,
                      .head = a.head(),
                      .sequence = g.sequence,
                      .turned = a.rotary.turned(a.turned),
                      .table = g.rotary_table({a.rotary, a.turned})};

  const ValueId q_latent = a.q_rank == 0 ? x : product("/q_down", x, a.q_rank, Split::kNone, kQueryDown);
  const ValueId q = projected([&] {
    const ValueId of_q = a.q_rank == 0 ? x : g.norm(base + "/q_norm", q_latent);
    const ValueId of_heads = product("/q", of_q, a.query_width(), Split::kRows, kQuery);
    return g.in_place(base + "/rope", ops::Rope{turn}, {g.use(of_heads)});
  });
  const ValueId kv_latent = product("/kv_down", x, a.kv_rank, Split::kNone, kKeyValueDown);
  if (g.training.serves()) return cached_latent(g, base, a, q, g.norm(base + "/kv_norm", kv_latent), x, turn);
  const ValueId kv = projected([&] {
    return product("/kv", g.norm(base + "/kv_norm", kv_latent), a.key_width(), Split::kRows, kKeyValue);
  });
  ValueId turned = product("/turned", x, a.turned, Split::kNone, kKeyValueDown);
  turn.width = turn.head = a.turned;
  turn.heads = 1;
  g.pass_sums(true);  // each rank's heads give a part of the gradient
  turned =
      g.in_place(base + "/turned/rope", ops::Rope{turn}, {g.use(turned, g.placed(Placement::kReplicated))});
  g.pass_sums(false);

  const Placements columns = g.placed(Placement::kColumns);
  const ValueId qkv = g.value(base + "/qkv", 2 * a.query_width() + a.context_width(), columns);
  projected([&] {
    g.node(base + "/pack", ops::LatentPack{{g.tokens, heads, a.turned, a.plain, a.value}},
           {g.use(q), g.use(kv), g.use(turned)}, {qkv});
    return qkv;
  });
  const ops::Attention core{{.batch = g.micro_batch,
                             .sequence = g.sequence,
                             .heads = heads,
                             .kv_heads = heads,
                             .head = a.head(),
                             .kept = kept_scores(g),
                             .scale = a.query_scale,
                             .value = a.value == a.head() ? 0 : a.value,
                             .within = within_documents(g, 0)}};
  const ValueId ctx = own_core(g, base, core, a.heads, a.heads, qkv);
  return project(g, base, a.context_width(), false, ctx);
}

}  // namespace orrery::program
