// SPDX-License-Identifier: Apache-2.0
//
// Where a low-rank adapter joins its matrix (core/adapter.h). The matrix holds up to three blocks of rows, so
// u has as many blocks of columns; those that are chosen have an adapter, and h has r columns of each, one
// behind the other, as B has rows:
//   kResult   reads {u, h, B}    writes {u}     u_j += scale h_j B_j'
//   kInput    reads {du, B}      writes {dh}    dh_j = scale du_j B_j
//   kWeight   reads {du, h}      writes {dB}    dB_j (+)= scale du_j' h_j
#pragma once

#include <bit>

#include "program/ops/common.h"

namespace orrery::program::ops {

struct AdapterProduct {
  enum class Of : std::uint8_t { kResult, kInput, kWeight };
  static constexpr std::string_view kName = "adapter-product";
  static constexpr Nature kNature = Nature::kProduct;
  static constexpr std::size_t kMostBlocks = 3;

  std::int64_t rows = 0, rank = 0;
  std::int64_t first = 0, second = 0, third = 0;  // columns of u's blocks
  std::uint8_t chosen = 0;                        // a bit for each of them
  double scale = 1;
  Of of = Of::kResult;

  static constexpr auto fields() {
    using A = AdapterProduct;
    return std::tuple(&A::rows, &A::rank, &A::first, &A::second, &A::third, &A::chosen, &A::scale, &A::of);
  }
  constexpr std::array<std::int64_t, kMostBlocks> widths() const { return {first, second, third}; }
  constexpr bool has(std::size_t block) const { return (chosen >> block & 1U) != 0; }
  constexpr std::int64_t columns() const { return first + second + third; }  // of u
  constexpr std::int64_t adapters() const { return std::popcount(chosen); }
  constexpr std::int64_t adapted() const {  // columns of u, and rows of B
    return (has(0) ? first : 0) + (has(1) ? second : 0) + (has(2) ? third : 0);
  }
  constexpr Operands operands() const {
    const std::int64_t u = rows * columns(), h = rows * adapters() * rank, b = adapted() * rank;
    switch (of) {
      case Of::kResult:
        return {{u, h, b}, {u}};
      case Of::kInput:
        return {{u, b}, {h}};
      case Of::kWeight:
        break;
    }
    return {{u, h}, {b}};
  }
  constexpr double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(rank) * static_cast<double>(adapted());
  }
  // Of the columns that are chosen: u is read and written where it is added to.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t u = rows * adapted();
    return ((of == Of::kResult ? 2 : 1) * u + rows * adapters() * rank + adapted() * rank) * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const {
    r.emit("/grad", gradient_of(Of::kInput), refs(r.d_out(0), r.in(2)), refs(r.d_in(1)));
    r.pass(0, r.d_out(0));
  }
  template <class Reverse>
  void weight_gradient(Reverse& r) const {
    const auto h = r.again(1);
    r.emit("/wgrad", gradient_of(Of::kWeight), refs(r.d_out(0), h), refs(r.d_weight(2))).accumulate =
        r.accumulates(2);
  }

 private:
  constexpr AdapterProduct gradient_of(Of what) const {
    AdapterProduct d = *this;
    d.of = what;
    return d;
  }
};

}  // namespace orrery::program::ops
