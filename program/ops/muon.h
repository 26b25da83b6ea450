// SPDX-License-Identifier: Apache-2.0
//
// Muon's update (core/muon.h) of a unit whose parameters are matrices. `elements`: of the shard that the rank
// updates. U is the update of the unit, of which a rank makes its shard; ZeRO's shards of it are gathered,
// and so are tensor ranks' parts where they compute with whole matrices.
//   MuonMomentum   reads {gradient, state, norm?}             writes {U's shard, state}
//   Orthogonalise  reads {U, or all tensor ranks' U}          writes {U, scratch}
//                  the rank's parts of the matrices of one shape that its shard has a part of
//   MuonUpdate     reads {U's shard, parameter, state, norm?} writes {parameter, state}
#pragma once

#include <algorithm>

#include "core/muon.h"
#include "program/ops/update.h"

namespace orrery::program::ops {

struct MuonMomentum : ShardShape {
  static constexpr std::string_view kName = "muon-momentum";
  constexpr Operands operands() const { return {{elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return elements * (e.parameter.gradient + 2 * with_muon(e.parameter).moments + e.parameter.parameter);
  }
};

struct Orthogonalise {
  static constexpr std::string_view kName = "orthogonalise";
  static constexpr Nature kNature = Nature::kProduct;
  std::int64_t unit = 0;
  std::int64_t rows = 0, columns = 0;  // of a matrix
  std::int64_t matrices = 0;           // that the rank with most of them has
  std::int64_t iterations = 0;
  static constexpr auto fields() {
    return std::tuple(&Orthogonalise::unit, &Orthogonalise::rows, &Orthogonalise::columns,
                      &Orthogonalise::matrices, &Orthogonalise::iterations);
  }

  constexpr std::int64_t shorter() const { return std::min(rows, columns); }
  constexpr std::int64_t longer() const { return std::max(rows, columns); }
  // X, what it becomes, A and B, and the exact sum of X's squares: in this order, each from a multiple of 128
  // elements on, which is a place for any kernel.
  struct Scratch {
    std::int64_t next = 0, a = 0, b = 0, squares = 0, elements = 0;  // X stands at 0
  };
  constexpr Scratch scratch() const {
    constexpr auto place = [](std::int64_t n) { return (n + 127) / 128 * 128; };
    const std::int64_t x = place(rows * columns), square = place(shorter() * shorter());
    return {x, 2 * x, 2 * x + square, 2 * (x + square), 2 * (x + square) + kNormBinBytes / 2};
  }

  constexpr Operands operands() const { return {}; }  // matrix by matrix
  constexpr double flops() const {
    const auto n = static_cast<double>(shorter()), k = static_cast<double>(longer());
    return static_cast<double>(matrices * iterations) * 2 * n * n * (2 * k + n);
  }
  // Beside the products: a matrix is copied, summed and scaled before and copied after the iterations; in
  // each of them A and X are scaled.
  constexpr std::int64_t elements_moved() const {
    return matrices * (7 * rows * columns + iterations * 2 * (rows * columns + shorter() * shorter()));
  }
  // X X', A A and B X.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t n = shorter(), k = longer();
    return e.parameter.parameter * (elements_moved() + matrices * iterations * (4 * n * k + 5 * n * n));
  }
};

struct MuonUpdate : ShardShape {
  static constexpr std::string_view kName = "muon-update";
  constexpr Operands operands() const { return {{elements, elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return elements * (2 * e.parameter.parameter +
                       (e.parameter.master > 0 ? 2 * e.parameter.master : e.parameter.parameter));
  }
};

}  // namespace orrery::program::ops
