// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over a vocabulary of which a tensor rank has `columns`. Each rank finds three numbers a row:
// the largest logit, the sum of exponentials below it, and the target's logit if it has that (else 0); they
// are gathered, and give the two numbers that normalise the row: the largest of all logits, and the sum.
//   LossStatistics   reads {logits, targets}                 writes {statistics, exponentials?}
//   Loss             reads {statistics, exponentials?}       writes {normalizers, loss, probabilities?}
//   LossGrad         reads {logits, targets, normalizers} or {probabilities, targets}
//                    writes {dlogits}, or {dlogits, dprobabilities}
// The stack says what is kept for the gradient (Stack::loss_keeps): the logits, or what is behind the
// question marks.
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct LogitsShape {
  std::int64_t tokens = 0, columns = 0, vocabulary = 0;
  static constexpr Nature kNature = Nature::kPointwise;
  static constexpr auto fields() {
    return std::tuple(&LogitsShape::tokens, &LogitsShape::columns, &LogitsShape::vocabulary);
  }
  constexpr std::int64_t logits() const { return tokens * columns; }
};

// Numbers of a row.
inline constexpr std::int64_t kLossStatistics = 3, kLossNormalizers = 2;

struct LossStatistics : LogitsShape {
  static constexpr std::string_view kName = "loss-statistics";
  constexpr Operands operands() const { return {{logits()}, {}}; }
  // Software that keeps exponentials reads the logits once for the largest, and again.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return logits() * (e.probability > 0 ? 2 * e.activation + e.probability : e.activation);
  }
  // Loss has the gradient of both ops.
  template <class Reverse>
  void gradient(Reverse&) const {}
};

// `ranks`: that found statistics. `weight`: of the loss, in what is differentiated; what is printed is
// without.
struct Loss : LogitsShape {
  static constexpr std::string_view kName = "loss";
  std::int64_t ranks = 1;
  double weight = 1;
  static constexpr auto fields() {
    return std::tuple_cat(LogitsShape::fields(), std::tuple(&Loss::ranks, &Loss::weight));
  }
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return tokens * (kLossStatistics * ranks + kLossNormalizers) * 4 + 2 * logits() * e.probability;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct LossGrad : LogitsShape {
  static constexpr std::string_view kName = "loss-grad";
  double weight = 1;
  static constexpr auto fields() {
    return std::tuple_cat(LogitsShape::fields(), std::tuple(&LossGrad::weight));
  }
  constexpr Operands operands() const { return {{logits()}, {logits()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return logits() * ((e.probability > 0 ? e.probability : e.activation) + e.activation);
  }
};

// The node names the logits and the targets beside its operands. Where probabilities have memory of their
// own, their gradient does too.
template <class Reverse>
void Loss::gradient(Reverse& r) const {
  const LossGrad d{{tokens, columns, vocabulary}, weight};
  const LossKeeps keeps = r.stack().loss_keeps;
  auto writes = refs(keeps == LossKeeps::kLogits ? r.d_also_in_place(0) : r.d_also(0));
  if (keeps_logits(keeps)) {
    r.emit("/grad", d, refs(r.also(0), r.also(1), r.out(0)), writes);
    return;
  }
  if (keeps == LossKeeps::kBoth) writes.push_back(r.scratch(1, "/of-probabilities"));
  r.emit("/grad", d, refs(r.out(2), r.also(1)), writes);
}

}  // namespace orrery::program::ops
