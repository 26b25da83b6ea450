// SPDX-License-Identifier: Apache-2.0
//
// From an op to the shapes of its kernel, whichever device it runs on.
// Internal to exec/.
#pragma once

#include <algorithm>
#include <boost/container/static_vector.hpp>
#include <stdexcept>
#include <vector>

#include "core/rotary.h"
#include "exec/placement.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/serving.h"
#include "program/program.h"

namespace orrery::exec {

// One of the products that an AdapterProduct is: C (+)= scale op(A) op(B) of parts of its operands, whose
// first elements and rows' lengths are given.
struct AdapterPart {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, adds;
  std::int64_t a, b, c;  // first elements
  std::int64_t lda, ldb, ldc;
};
using AdapterParts = boost::container::static_vector<AdapterPart, program::ops::AdapterProduct::kMostBlocks>;
inline AdapterParts adapter_parts(const program::ops::AdapterProduct& op, bool accumulate) {
  using enum program::ops::AdapterProduct::Of;
  AdapterParts out;
  const std::int64_t r = op.rank, columns = op.columns(), thin = op.adapters() * r;
  std::int64_t column = 0, adapter = 0, row = 0;  // of u, of h, of B
  for (std::size_t i = 0; const std::int64_t width : op.widths()) {
    if (op.has(i++)) {
      const std::int64_t h = adapter++ * r, b = row * r;
      if (op.of == kResult)
        out.push_back({op.rows, width, r, false, true, true, h, b, column, thin, r, columns});
      else if (op.of == kInput)
        out.push_back({op.rows, r, width, false, false, false, column, b, h, columns, r, thin});
      else
        out.push_back({width, r, op.rows, true, false, accumulate, column, h, b, columns, thin, r});
      row += width;
    }
    column += width;
  }
  return out;
}

// Of Norm and NormGrad, and of HeadNorm and HeadNormGrad.
template <class T>
kernels::reference::NormShape norm_shape(const T& op, const Model& model) {
  return {op.rows, op.width, op.type == Norm::kRmsNorm, static_cast<float>(model.norm_epsilon)};
}
template <class T>
kernels::reference::HeadNormShape head_norm_shape(const T& op, const Model& model) {
  return {op.rows, op.width,   op.heads,    op.kv_heads,
          op.head, op.kv_head, op.weighted, static_cast<float>(model.norm_epsilon)};
}
// Tokens of a pass of serving stand behind the cached ones.
inline kernels::TokenShare behind(kernels::TokenShare share, std::int64_t cached) {
  share.first += cached;
  share.second += cached;
  return share;
}
inline kernels::reference::RopeShape rope_shape(const program::ops::RopeShape& op, const Coordinates& at,
                                                bool back, std::int64_t cached = 0) {
  return {op.rows,     op.width,  op.heads, op.head,
          op.sequence, op.turned, back,     behind(at.token_share(op.sequence), cached)};
}
// Among the tokens, where an op's rows may be a tensor rank's share of them.
template <class T>
std::int64_t first_row(const T& op, std::int64_t tp_rank) {
  return op.sharded ? tp_rank * op.rows : 0;
}
// By RopeShape::table.
inline std::vector<RotaryTables> rope_tables(const program::Program& p) {
  const std::vector<std::int64_t> tokens = tower_tokens(p.model, p.training);
  const std::int64_t longest =
      p.training.serves() ? p.training.cache->room : *std::max_element(tokens.begin(), tokens.end());
  std::vector<RotaryTables> out;
  for (const program::RotaryUse& use : p.rotary)
    out.push_back(use.growth.rate > 0 ? growth_tables(use.growth, use.head, longest)
                                      : rotary_tables(use.rotary, use.head, longest));
  return out;
}
inline std::int64_t rotary_bytes(const std::vector<RotaryTables>& tables) {
  std::int64_t bytes = 0;
  for (const RotaryTables& t : tables) bytes += t.bytes();
  return bytes;
}
// `document`: the operand `first`, where there is one.
inline kernels::reference::AttentionShape attention_shape(const program::ops::AttentionShape& op,
                                                          std::int64_t tp_rank,
                                                          const kernels::Dropout& dropout,
                                                          const std::int32_t* document = nullptr) {
  return {.batch = op.batch,
          .seq = op.sequence,
          .heads = op.heads,
          .kv = op.kv_heads,
          .head = op.head,
          .materialised = !op.fused(),
          .first_head = tp_rank * op.heads,
          .dropout = dropout,
          .window = op.window,
          .sees_all = op.sees_all,
          .cap = static_cast<float>(op.soft_cap),
          .explicit_scale = static_cast<float>(op.scale),
          .value = op.value,
          .packed = op.of_documents(),
          .document = document};
}
inline kernels::HeadsShape heads_shape(const program::ops::HeadsShape& op) {
  return {op.tokens, op.heads, op.kv_heads, op.head, op.value, op.parts};
}
inline kernels::ContextShape context_shape(const program::ops::ContextShape& op, const Coordinates& at,
                                           const kernels::Dropout& dropout, const std::int32_t* document) {
  return {.batch = op.batch,
          .tokens = op.tokens,
          .heads = op.heads,
          .kv = op.kv_heads,
          .head = op.head,
          .value = op.value,
          .ring = op.ring,
          .ulysses = op.ulysses,
          .rank = at.ring,
          .source = (at.ring - op.step + op.ring) % op.ring,
          .gathered = !op.in_steps(),
          .window = op.window,
          .sees_all = op.sees_all,
          .cap = static_cast<float>(op.soft_cap),
          .explicit_scale = static_cast<float>(op.scale),
          .first_head = (at.tp * op.ulysses + at.ulysses) * op.heads,
          .dropout = dropout,
          .more = !op.first(),
          .packed = op.of_documents(),
          .document = document};
}
inline kernels::reference::PositionsShape positions_shape(const program::ops::PositionsShape& op,
                                                          const Coordinates& at, std::int64_t cached = 0) {
  return {op.rows, op.width, op.sequence, first_row(op, at.tp), behind(at.token_share(op.sequence), cached)};
}
inline kernels::reference::CachedShape cached_shape(const program::ops::CachedShape& op,
                                                    std::int64_t cached) {
  return {.batch = op.batch,
          .queries = op.queries,
          .cached = cached,
          .room = op.room,
          .heads = op.heads,
          .kv = op.kv_heads,
          .head = op.head,
          .value = op.value,
          .window = op.window,
          .cap = static_cast<float>(op.soft_cap),
          .explicit_scale = static_cast<float>(op.scale)};
}
inline kernels::reference::CachedLatentShape cached_shape(const program::ops::CachedLatentShape& op,
                                                          std::int64_t cached) {
  return {.batch = op.batch,
          .queries = op.queries,
          .cached = cached,
          .room = op.room,
          .heads = op.heads,
          .turned = op.turned,
          .plain = op.plain,
          .value = op.value,
          .rank = op.rank,
          .explicit_scale = static_cast<float>(op.scale)};
}
inline kernels::DroppedRows dropped_rows(const program::ops::Residual& op, const Coordinates& at) {
  return {op.rows, op.width, op.sequence, first_row(op, at.tp), at.token_share(op.sequence)};
}
inline kernels::reference::LatentShape latent_shape(const program::ops::LatentShape& op) {
  return {op.rows, op.heads, op.turned, op.plain, op.value};
}
inline kernels::reference::AttentionShape attention_shape(const program::ops::CrossAttentionShape& op,
                                                          std::int64_t tp_rank,
                                                          const kernels::Dropout& dropout) {
  return {.batch = op.batch,
          .seq = op.sequence,
          .heads = op.heads,
          .kv = op.kv_heads,
          .head = op.head,
          .materialised = !op.fused(),
          .first_head = tp_rank * op.heads,
          .dropout = dropout,
          .sees_all = true,
          .explicit_scale = static_cast<float>(op.scale),
          .other_seq = op.keys};
}
inline kernels::reference::BagsShape bags_shape(const program::ops::BagsShape& op, std::int64_t tp_rank) {
  kernels::reference::BagsShape s{.batch = op.batch,
                                  .width = op.width,
                                  .all_tables = op.tables,
                                  .ids = op.ids,
                                  .tables = op.tables,
                                  .rows = op.rows,
                                  .columns = op.width};
  const auto share = [&](std::int64_t& n, std::int64_t& first) {
    n /= op.ranks;
    first = tp_rank * n;
  };
  switch (op.split) {
    case TableSplit::kRows:
      share(s.rows, s.first_row);
      break;
    case TableSplit::kColumns:
      share(s.columns, s.first_column);
      break;
    case TableSplit::kTables:
      share(s.tables, s.first_table);
      break;
  }
  return s;
}
inline kernels::reference::PatchesShape patches_shape(const program::ops::PatchesShape& op) {
  return {op.batch, op.patches, op.width};
}
inline kernels::reference::PoolShape pool_shape(const program::ops::PoolShape& op, std::int64_t tp_rank) {
  return {op.batch, op.sequence, op.rows, op.width, first_row(op, tp_rank), op.mean};
}
// A loss of tokens that all tensor ranks have alike counts on the first.
inline kernels::reference::RouterShape router_shape(const program::ops::RouterShape& op,
                                                    std::int64_t tp_rank) {
  const bool counts = !op.first || tp_rank == 0;
  return {op.tokens, op.experts, op.score == RouterScore::kSigmoid,
          counts ? static_cast<float>(op.z_loss) : 0};
}
inline kernels::reference::RouteShape route_shape(const program::ops::RouteShape& op, std::int64_t tp_rank) {
  return {.tokens = op.tokens,
          .seq = op.sequence,
          .samples = op.samples,
          .experts = op.experts,
          .top_k = op.top_k,
          .groups = op.groups,
          .top_groups = op.top_groups,
          .capacity = op.capacity,
          .parts = op.parts,
          .room = op.room,
          .normalised = op.normalised,
          .scale = static_cast<float>(op.scale),
          .first = op.sharded ? tp_rank * op.tokens : 0};
}
inline kernels::reference::BalanceShape balance_shape(const program::ops::BalanceShape& op,
                                                      std::int64_t tp_rank) {
  const bool counts = !op.first || tp_rank == 0;
  return {op.tokens,
          op.sequence,
          op.experts,
          op.top_k,
          op.normalises,
          counts ? static_cast<float>(op.factor) : 0,
          op.sharded ? tp_rank * op.tokens : 0};
}
inline kernels::reference::PermuteShape permute_shape(const program::ops::PermuteShape& op) {
  return {op.tokens, op.width, op.top_k};
}
inline kernels::reference::GroupedGemm grouped_gemm(const program::ops::GroupedGemm& op, bool accumulate) {
  return {op.n, op.k, op.experts, accumulate, op.parts, op.rows / op.parts};
}
inline kernels::reference::Act act_of(Activation a) {
  using enum kernels::reference::Act;
  switch (a) {
    case Activation::kGelu:
      return kGelu;
    case Activation::kSwiglu:
      return kSwiglu;
    case Activation::kSquaredRelu:
      return kSquaredRelu;
    case Activation::kGeglu:
      return kGeglu;
    case Activation::kClampedSwiglu:
      return kClampedSwiglu;
  }
  throw std::logic_error("an activation has no kernel");
}
inline kernels::reference::SinkShape sink_shape(const program::ops::SinkShape& op) {
  return {op.batch, op.sequence, op.heads, op.value, op.rows_first};
}
inline kernels::reference::ExpertBiasShape expert_bias_shape(const program::ops::ExpertBiasShape& op,
                                                             const Coordinates& at) {
  const std::int64_t first = op.width < op.columns ? at.etp * op.width : 0;
  return {op.columns, first, op.width, op.experts, op.parts, op.rows / op.parts};
}
inline kernels::reference::LossShape loss_shape(const program::ops::LogitsShape& op, std::int64_t tp_rank) {
  return {op.tokens, op.columns, tp_rank * op.columns, op.vocabulary};
}

}  // namespace orrery::exec
