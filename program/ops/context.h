// SPDX-License-Identifier: Apache-2.0
//
// Attention of ranks that share sequences (context parallelism, core/plan.h). Of a sequence each of c ranks
// has two of 2c parts, one counted from the front and one from the back, so that all see as many keys
// (zig-zag). c = ring * ulysses, and ulysses ranks stand next to each other in both of their parts.
//
//   HeadsPack           reads {qkv}                               writes {q, kv}
//   HeadsPackGrad       reads {dq, dkv}                           writes {dqkv}
//   HeadsUnpack         reads {ctx by heads}                      writes {ctx}
//   HeadsUnpackGrad     reads {dctx}                              writes {dctx by heads}
//   ContextAttention    reads {q, kv, sums?, lse?, first?}        writes {ctx or sums, lse}
//   ContextAttentionGrad   reads {q, kv, ctx, lse, dctx, first?}  writes {dq, dkv}
//
// `first` as of Attention, of all tokens of the sequences.
//
// By heads, rows stand in `parts`, one for each of the ranks that exchange heads: all tokens, with that
// rank's share of the heads; after the exchange, all of its heads, with each rank's tokens.
//
// ContextAttention is of keys of all `ring` ranks at once, one rank's behind the other's (`steps` 1); or of
// keys of one rank in each of `ring` steps, of which step i has those of the rank i before. Steps before the
// last leave sums of values in fp32, which the next one adds to; the first reads neither these nor lse. The
// gradient's steps give dq summed over steps, and dkv of the keys that they read.
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct HeadsShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t tokens = 0, heads = 0, kv_heads = 0, head = 0, value = 0,
               parts = 1;  // heads before the exchange
  static constexpr auto fields() {
    using S = HeadsShape;
    return std::tuple(&S::tokens, &S::heads, &S::kv_heads, &S::head, &S::value, &S::parts);
  }
  constexpr std::int64_t queries() const { return tokens * heads * head; }
  constexpr std::int64_t keys() const { return tokens * kv_heads * (head + value); }
  constexpr std::int64_t context() const { return tokens * heads * value; }
};

struct HeadsPack : HeadsShape {
  static constexpr std::string_view kName = "heads-pack";
  constexpr Operands operands() const { return {{queries() + keys()}, {queries(), keys()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return 2 * (queries() + keys()) * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct HeadsPackGrad : HeadsShape {
  static constexpr std::string_view kName = "heads-pack-grad";
  constexpr Operands operands() const { return {{queries(), keys()}, {queries() + keys()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return 2 * (queries() + keys()) * e.activation;
  }
};

struct HeadsUnpack : HeadsShape {
  static constexpr std::string_view kName = "heads-unpack";
  constexpr Operands operands() const { return {{context()}, {context()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * context() * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct HeadsUnpackGrad : HeadsShape {
  static constexpr std::string_view kName = "heads-unpack-grad";
  constexpr Operands operands() const { return {{context()}, {context()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * context() * e.activation; }
};

struct ContextShape {
  static constexpr Nature kNature = Nature::kAttention;
  std::int64_t batch = 0, tokens = 0;  // samples; tokens that a rank has of one, before the exchange
  std::int64_t heads = 0, kv_heads = 0, head = 0, value = 0;  // after it
  std::int64_t ring = 1, ulysses = 1;                         // ranks
  std::int64_t steps = 1, step = 0;
  std::int64_t window = 0;  // 0: none
  bool sees_all = false;
  double soft_cap = 0;  // of scores; 0: none
  double scale = 0;     // of scores; 0: 1 / sqrt(head)
  double within = 0;    // as of AttentionShape
  static constexpr auto fields() {
    using S = ContextShape;
    return std::tuple(&S::batch, &S::tokens, &S::heads, &S::kv_heads, &S::head, &S::value, &S::ring,
                      &S::ulysses, &S::steps, &S::step, &S::window, &S::sees_all, &S::soft_cap, &S::scale,
                      &S::within);
  }
  constexpr bool fused() const { return true; }
  constexpr bool of_documents() const { return within > 0; }
  constexpr bool in_steps() const { return steps > 1; }
  constexpr bool first() const { return step == 0; }
  constexpr bool last() const { return step + 1 == steps; }
  constexpr std::int64_t own() const { return tokens * ulysses; }  // tokens of a sample with queries
  constexpr std::int64_t sequence() const { return own() * ring; }
  constexpr std::int64_t seen_by() const { return in_steps() ? own() : sequence(); }  // with keys
  // Pairs of tokens that see each other, of those in the whole square of the sequence: in the mean over
  // ranks, and over steps.
  constexpr double seen() const {
    const double share = window > 0 ? static_cast<double>(window) / static_cast<double>(sequence()) : 1;
    return sees_all ? 1 : share * (1 - share / 2) * (of_documents() ? within : 1);
  }
  constexpr std::int64_t queries() const { return batch * own() * heads * head; }
  constexpr std::int64_t keys() const { return batch * seen_by() * kv_heads * (head + value); }
  constexpr std::int64_t context() const { return batch * own() * heads * value; }
  constexpr std::int64_t sums() const { return batch * own() * heads; }  // of exponentials
  // FLOPs of a product of all scores with heads, in the mean of keys and values.
  constexpr double of_scores(double products) const {
    return products * static_cast<double>(batch * heads * own()) * static_cast<double>(seen_by()) *
           static_cast<double>(head + value) / 2;
  }
};

struct ContextAttention : ContextShape {
  static constexpr std::string_view kName = "context-attention";
  constexpr Operands operands() const {
    const bool more = !first();
    return {{queries(), keys(), more ? context() : 0, more ? sums() : 0}, {context(), sums()}};
  }
  constexpr double flops() const { return seen() * of_scores(4); }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t added = in_steps() ? 4 * context() * ((first() ? 0 : 1) + (last() ? 0 : 1)) : 0;
    return (queries() + keys() + (last() ? context() : 0)) * e.activation + added;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct ContextAttentionGrad : ContextShape {
  static constexpr std::string_view kName = "context-attention-grad";
  constexpr Operands operands() const {
    return {{queries(), keys(), context(), sums(), context()}, {queries(), keys()}};
  }
  constexpr double flops() const { return seen() * of_scores(10); }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (2 * queries() + 2 * keys() + 2 * context() + (first() ? 0 : queries())) * e.activation;
  }
};

template <class Reverse>
void HeadsPack::gradient(Reverse& r) const {
  r.emit("/grad", HeadsPackGrad{*this}, refs(r.d_out(0), r.d_out(1)), refs(r.d_in(0)));
}

template <class Reverse>
void HeadsUnpack::gradient(Reverse& r) const {
  r.emit("/grad", HeadsUnpackGrad{*this}, refs(r.d_out(0)), refs(r.d_in(0)));
}

template <class Reverse>
void ContextAttention::gradient(Reverse& r) const {
  const auto q = r.again(0), kv = r.again(1);
  const auto dq = r.d_in(0), dkv = r.d_in(1);
  auto reads = refs(q, kv, r.out(0), r.out(1), r.d_out(0));
  if (of_documents()) reads.push_back(r.in(2));
  r.emit_context("/grad", ContextAttentionGrad{*this}, std::move(reads), refs(dq, dkv));
}

}  // namespace orrery::program::ops
