// SPDX-License-Identifier: Apache-2.0
//
// Embedding bags: of each sample the sum of the rows that its ids name, `ids` of them in each of `tables`
// tables of `rows` rows. Tensor ranks split the tables by rows, by columns, or table by table, and each makes
// a part of the sum: what it has no rows of, or columns, counts as zero.
//   Bags       reads {ids, weight}   writes {y}
//   BagsGrad   reads {ids, dy}       writes {dweight}
// The loss of two towers: the cross-entropy of a label, 1 with the probability of a logistic function of the
// towers' dot product.
//   PairLoss       reads {u, v, labels}                  writes {probabilities, loss}
//   PairLossGrad   reads {u, v, labels, probabilities}   writes {du, dv}
#pragma once

#include "core/plan.h"
#include "program/ops/common.h"

namespace orrery::program::ops {

struct BagsShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t batch = 0, width = 0, tables = 0, rows = 0, ids = 0;
  std::int64_t ranks = 1;  // that split the tables
  TableSplit split = TableSplit::kRows;
  static constexpr auto fields() {
    using S = BagsShape;
    return std::tuple(&S::batch, &S::width, &S::tables, &S::rows, &S::ids, &S::ranks, &S::split);
  }
  constexpr std::int64_t out() const { return batch * width; }
  constexpr std::int64_t weights() const { return tables * rows * width / ranks; }
  // Elements of rows that a rank looks up, on average.
  constexpr std::int64_t looked_up() const { return batch * tables * ids * width / ranks; }
};

struct Bags : BagsShape {
  static constexpr std::string_view kName = "bags";
  constexpr Operands operands() const { return {{0, weights()}, {out()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return (looked_up() + out()) * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

// Each row that is named is read, added to and written.
struct BagsGrad : BagsShape {
  static constexpr std::string_view kName = "bags-grad";
  constexpr Operands operands() const { return {{0, out()}, {weights()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (2 * looked_up() + out()) * e.activation;
  }
};

struct PairShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t batch = 0, width = 0;
  static constexpr auto fields() { return std::tuple(&PairShape::batch, &PairShape::width); }
};

struct PairLoss : PairShape {
  static constexpr std::string_view kName = "pair-loss";
  constexpr Operands operands() const { return {{batch * width, batch * width}, {}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * batch * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct PairLossGrad : PairShape {
  static constexpr std::string_view kName = "pair-loss-grad";
  constexpr Operands operands() const {
    return {{batch * width, batch * width}, {batch * width, batch * width}};
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 4 * batch * width * e.activation; }
};

template <class Reverse>
void Bags::gradient(Reverse& r) const {
  r.emit("/grad", BagsGrad{*this}, refs(r.in(0), r.d_out(0)), refs(r.d_weight(1))).accumulate =
      r.accumulates(1);
}

template <class Reverse>
void PairLoss::gradient(Reverse& r) const {
  const auto du = r.d_in(0);
  r.emit("/grad", PairLossGrad{*this}, refs(r.in(0), r.in(1), r.in(2), r.out(0)), refs(du, r.d_in(1)));
}

}  // namespace orrery::program::ops
