// SPDX-License-Identifier: Apache-2.0
//
// Attention of query heads over KV heads. A row of qkv holds all heads of a token, which sees itself and
// those before it: all, or a window of so many; or all of its sequence.
//   Attention       reads {qkv, first?}                            writes {ctx, softmax, mask?}
//   AttentionGrad   reads {qkv, ctx, softmax, dctx, mask?, first?} writes {dqkv}
// `first`: of sequences that are packed from documents, each token's first token of its document, before
// which it sees none. In cross-attention keys and values are of another sequence, all of which a token sees.
//   CrossAttention       reads {q, kv}                            writes {ctx, softmax, mask?}
//   CrossAttentionGrad   reads {q, kv, ctx, softmax, dctx, mask?} writes {dq, dkv}
// Of latent attention, head by head the elements that positions turn stand before those that they do not; a
// key has the turned elements of all heads.
//   LatentPack       reads {q, kv, turned}   writes {qkv}
//   LatentPackGrad   reads {dqkv}            writes {dq, dkv, dturned}
// A learned score of each head beside those of the keys, of which it takes its share, in place.
//   AttentionSink       reads {ctx, softmax, sinks}         writes {ctx, softmax}
//   AttentionSinkGrad   reads {ctx, softmax, sinks, dctx}   writes {dsinks}
// softmax: the scores after it, or with no copy in memory (FlashAttention) their log-sum-exp.
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

// Copies of the scores in memory: none; the softmax; with dropout also what is left of it.
enum class Scores : std::uint8_t { kNone, kSoftmax, kSoftmaxAndDropped };

struct AttentionShape {
  std::int64_t batch = 0, sequence = 0, heads = 0, kv_heads = 0, head = 0;
  Scores kept = Scores::kNone;
  std::int64_t window = 0;  // 0: none
  bool sees_all = false;
  double soft_cap = 0;     // of scores; 0: none
  double scale = 0;        // of scores; 0: 1 / sqrt(head)
  std::int64_t value = 0;  // of a value's head; 0: as of a key's
  double within = 0;       // of what is seen, the share that lies within documents; 0: there are none
  static constexpr Nature kNature = Nature::kAttention;
  static constexpr auto fields() {
    return std::tuple(&AttentionShape::batch, &AttentionShape::sequence, &AttentionShape::heads,
                      &AttentionShape::kv_heads, &AttentionShape::head, &AttentionShape::kept,
                      &AttentionShape::window, &AttentionShape::sees_all, &AttentionShape::soft_cap,
                      &AttentionShape::scale, &AttentionShape::value, &AttentionShape::within);
  }
  constexpr bool fused() const { return kept == Scores::kNone; }
  constexpr bool of_documents() const { return within > 0; }
  constexpr bool drops() const { return kept == Scores::kSoftmaxAndDropped; }
  // Pairs of tokens that see each other, of those in a square.
  constexpr double seen() const {
    const double share = window > 0 ? static_cast<double>(window) / static_cast<double>(sequence) : 1;
    return sees_all ? 1 : share * (1 - share / 2) * (of_documents() ? within : 1);
  }
  constexpr std::int64_t scores() const { return batch * heads * sequence * sequence; }
  constexpr std::int64_t value_head() const { return value > 0 ? value : head; }
  constexpr std::int64_t context() const { return batch * sequence * heads * value_head(); }
  constexpr std::int64_t qkv() const {
    return batch * sequence * (heads * head + kv_heads * (head + value_head()));
  }
  // FLOPs of a product of all scores with heads, in the mean of keys and values.
  constexpr double of_scores(double products) const {
    return products * static_cast<double>(scores()) * static_cast<double>(head + value_head()) / 2;
  }
  constexpr std::int64_t kept_scores() const { return static_cast<std::int64_t>(kept) * scores(); }
};

struct Attention : AttentionShape {
  static constexpr std::string_view kName = "attention";
  constexpr Operands operands() const { return {{qkv()}, {context(), kept_scores()}}; }
  // The fused kernel leaves out what no token sees.
  constexpr double flops() const { return (fused() ? seen() : 1.0) * of_scores(4); }
  // Scores are written, read and written by the softmax, with dropout by it too, and read.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t passes = fused() ? 0 : kept == Scores::kSoftmax ? 5 : 8;
    return (qkv() + context() + passes * scores()) * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct AttentionGrad : AttentionShape {
  static constexpr std::string_view kName = "attention-grad";
  constexpr Operands operands() const { return {{qkv(), context(), kept_scores(), context()}, {qkv()}}; }
  // The fused kernel computes the scores once more.
  constexpr double flops() const { return of_scores(fused() ? 10.0 * seen() : 8.0); }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (2 * qkv() + 2 * context() + (fused() ? 0 : 7 * scores())) * e.activation;
  }
};

// Of attention that keeps log-sums, for each row and head; by row and then head, or by sample and head.
struct SinkShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t batch = 0, sequence = 0, heads = 0, value = 0;
  bool rows_first = false;
  static constexpr auto fields() {
    using S = SinkShape;
    return std::tuple(&S::batch, &S::sequence, &S::heads, &S::value, &S::rows_first);
  }
  constexpr std::int64_t context() const { return batch * sequence * heads * value; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return 2 * context() * e.activation + 8 * batch * sequence * heads;
  }
};

struct AttentionSink : SinkShape {
  static constexpr std::string_view kName = "attention-sink";
  constexpr Operands operands() const { return {{context(), 0, heads}, {context()}}; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct AttentionSinkGrad : SinkShape {
  static constexpr std::string_view kName = "attention-sink-grad";
  constexpr Operands operands() const { return {{context(), 0, heads, context()}, {heads}}; }
};

struct CrossAttentionShape {
  std::int64_t batch = 0, sequence = 0;  // of queries
  std::int64_t keys = 0;                 // tokens of the other sequence
  std::int64_t heads = 0, kv_heads = 0, head = 0;
  Scores kept = Scores::kNone;
  double scale = 0;  // of scores; 0: 1 / sqrt(head)
  static constexpr Nature kNature = Nature::kAttention;
  static constexpr auto fields() {
    using S = CrossAttentionShape;
    return std::tuple(&S::batch, &S::sequence, &S::keys, &S::heads, &S::kv_heads, &S::head, &S::kept,
                      &S::scale);
  }
  constexpr bool fused() const { return kept == Scores::kNone; }
  constexpr std::int64_t scores() const { return batch * heads * sequence * keys; }
  constexpr std::int64_t queries() const { return batch * sequence * heads * head; }
  constexpr std::int64_t others() const { return batch * keys * 2 * kv_heads * head; }
  constexpr std::int64_t kept_scores() const { return static_cast<std::int64_t>(kept) * scores(); }
};

struct CrossAttention : CrossAttentionShape {
  static constexpr std::string_view kName = "cross-attention";
  constexpr Operands operands() const { return {{queries(), others()}, {queries(), kept_scores()}}; }
  constexpr double flops() const { return 4.0 * static_cast<double>(scores()) * static_cast<double>(head); }
  // As of Attention.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t passes = fused() ? 0 : kept == Scores::kSoftmax ? 5 : 8;
    return (2 * queries() + others() + passes * scores()) * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct CrossAttentionGrad : CrossAttentionShape {
  static constexpr std::string_view kName = "cross-attention-grad";
  constexpr Operands operands() const {
    return {{queries(), others(), queries(), kept_scores(), queries()}, {queries(), others()}};
  }
  constexpr double flops() const {
    return (fused() ? 10.0 : 8.0) * static_cast<double>(scores()) * static_cast<double>(head);
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (4 * queries() + 2 * others() + (fused() ? 0 : 7 * scores())) * e.activation;
  }
};

struct LatentShape {
  std::int64_t rows = 0, heads = 0, turned = 0, plain = 0, value = 0;
  static constexpr Nature kNature = Nature::kPointwise;
  static constexpr auto fields() {
    using S = LatentShape;
    return std::tuple(&S::rows, &S::heads, &S::turned, &S::plain, &S::value);
  }
  constexpr std::int64_t queries() const { return rows * heads * (turned + plain); }
  constexpr std::int64_t keys() const { return rows * heads * (plain + value); }
  constexpr std::int64_t packed() const { return 2 * queries() + rows * heads * value; }
};

struct LatentPack : LatentShape {
  static constexpr std::string_view kName = "latent-pack";
  constexpr Operands operands() const { return {{queries(), keys(), rows * turned}, {packed()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (queries() + keys() + rows * turned + packed()) * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct LatentPackGrad : LatentShape {
  static constexpr std::string_view kName = "latent-pack-grad";
  constexpr Operands operands() const { return {{packed()}, {queries(), keys(), rows * turned}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (queries() + keys() + rows * turned + packed()) * e.activation;
  }
};

template <class Reverse>
void LatentPack::gradient(Reverse& r) const {
  const auto dq = r.d_in(0), dkv = r.d_in(1);
  r.emit("/grad", LatentPackGrad{*this}, refs(r.d_out(0)), refs(dq, dkv, r.d_in(2)));
}

template <class Reverse>
void Attention::gradient(Reverse& r) const {
  auto reads = refs(r.in(0), r.out(0), r.out(1), r.d_out(0));
  if (kept == Scores::kSoftmaxAndDropped) reads.push_back(r.out(2));
  if (of_documents()) reads.push_back(r.in(1));
  r.emit("/grad", AttentionGrad{*this}, std::move(reads), refs(r.d_in(0)));
}

template <class Reverse>
void CrossAttention::gradient(Reverse& r) const {
  auto reads = refs(r.in(0), r.in(1), r.out(0), r.out(1), r.d_out(0));
  if (kept == Scores::kSoftmaxAndDropped) reads.push_back(r.out(2));
  const auto d_queries = r.d_in(0);
  r.emit("/grad", CrossAttentionGrad{*this}, std::move(reads), refs(d_queries, r.d_in(1)));
}

// The gradient of attention follows from what it has become: p = exp(score - log-sum), sum p dp = out . dout.
template <class Reverse>
void AttentionSink::gradient(Reverse& r) const {
  if (r.trains(2)) {
    r.emit("/grad", AttentionSinkGrad{*this}, refs(r.out(0), r.out(1), r.in(2), r.d_out(0)),
           refs(r.d_weight(2)))
        .accumulate = r.accumulates(2);
  }
  r.pass(0, r.d_out(0));
}

}  // namespace orrery::program::ops
