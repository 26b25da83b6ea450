// SPDX-License-Identifier: Apache-2.0
//
// Lookups. A tensor rank holds `rows` rows of the vocabulary; a token of another rank gives zeros, and the
// sum over tensor ranks is the lookup.
//   Embedding       reads {tokens, weight}  writes {x}
//   EmbeddingGrad   reads {tokens, dx}      writes {dweight}
//   Positions       reads {x, weight}       writes {x}       x += weight at the token's position
//   PositionsGrad   reads {dx}              writes {dweight}
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct EmbeddingShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t tokens = 0, width = 0, rows = 0, vocabulary = 0;
  static constexpr auto fields() {
    return std::tuple(&EmbeddingShape::tokens, &EmbeddingShape::width, &EmbeddingShape::rows,
                      &EmbeddingShape::vocabulary);
  }
};

// Rows are moved as they are.
struct Embedding : EmbeddingShape {
  static constexpr std::string_view kName = "embedding";
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * tokens * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct EmbeddingGrad : EmbeddingShape {
  static constexpr std::string_view kName = "embedding-grad";
  constexpr Operands operands() const { return {{0, tokens * width}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 3 * tokens * width * e.activation; }
};

// `sharded`: the rows are a tensor rank's share of the tokens. `table`: positions that the weight has.
struct PositionsShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t rows = 0, width = 0, sequence = 0, table = 0;
  bool sharded = false;
  static constexpr auto fields() {
    return std::tuple(&PositionsShape::rows, &PositionsShape::width, &PositionsShape::sequence,
                      &PositionsShape::table, &PositionsShape::sharded);
  }
};

struct Positions : PositionsShape {
  static constexpr std::string_view kName = "positions";
  constexpr Operands operands() const { return {{rows * width, table * width}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 3 * rows * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct PositionsGrad : PositionsShape {
  static constexpr std::string_view kName = "positions-grad";
  constexpr Operands operands() const { return {{rows * width}, {table * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * rows * width * e.activation; }
};

template <class Reverse>
void Embedding::gradient(Reverse& r) const {
  r.emit("/grad", EmbeddingGrad{*this}, refs(r.in(0), r.d_out(0)), refs(r.d_weight(1))).accumulate =
      r.accumulates(1);
}

template <class Reverse>
void Positions::gradient(Reverse& r) const {
  if (r.trains(1))
    r.emit("/grad", PositionsGrad{*this}, refs(r.d_out(0)), refs(r.d_weight(1))).accumulate =
        r.accumulates(1);
  r.pass(0, r.d_out(0));
}

}  // namespace orrery::program::ops
