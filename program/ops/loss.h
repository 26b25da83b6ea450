// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over a vocabulary of which a tensor rank has `columns`. Between the ops, tensor ranks take
// the maximum and the sum of what each found.
//   LossMax    reads {logits}                     writes {largest}
//   LossSum    reads {logits, largest, targets}   writes {exponentials, sums}   sums: of them, and the
//   target's
//                                                                               logit
//   Loss       reads {exponentials, sums}         writes {probabilities, loss}
//   LossGrad   reads {probabilities, targets}     writes {dlogits}, or {dlogits, dprobabilities}
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

struct LossMax : LogitsShape {
  static constexpr std::string_view kName = "loss-max";
  constexpr Operands operands() const { return {{logits()}, {}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return logits() * e.activation; }
  // Loss has the gradient of all three ops.
  template <class Reverse>
  void gradient(Reverse&) const {}
};

struct LossSum : LogitsShape {
  static constexpr std::string_view kName = "loss-sum";
  constexpr Operands operands() const { return {{logits()}, {logits()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return logits() * (e.activation + e.logits); }
  template <class Reverse>
  void gradient(Reverse&) const {}
};

struct Loss : LogitsShape {
  static constexpr std::string_view kName = "loss";
  constexpr Operands operands() const { return {{logits()}, {logits()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * logits() * e.logits; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct LossGrad : LogitsShape {
  static constexpr std::string_view kName = "loss-grad";
  constexpr Operands operands() const { return {{logits()}, {logits()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return logits() * (e.logits + e.activation); }
};

// Of the logits, which a graph names beside the operands, and the targets. Where probabilities have memory of
// their own, their gradient does too.
template <class Reverse>
void Loss::gradient(Reverse& r) const {
  auto writes = refs(r.d_also(0));
  if (!r.stack().loss_in_place) writes.push_back(r.scratch(0, "/of-probabilities"));
  r.emit("/grad", LossGrad{*this}, refs(r.out(0), r.also(1)), writes);
}

}  // namespace orrery::program::ops
