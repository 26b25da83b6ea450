// SPDX-License-Identifier: Apache-2.0
//
// Rotary positions, in place: `turned` elements of each of the first `heads` heads of a row of `width`.
// The gradient turns back.
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct RopeShape {
  std::int64_t rows = 0, width = 0, heads = 0, head = 0, sequence = 0, turned = 0;
  std::int64_t table = 0;  // in Program::rotary
  static constexpr Nature kNature = Nature::kPointwise;
  static constexpr auto fields() {
    return std::tuple(&RopeShape::rows, &RopeShape::width, &RopeShape::heads, &RopeShape::head,
                      &RopeShape::sequence, &RopeShape::turned, &RopeShape::table);
  }
  constexpr Operands operands() const { return {{rows * width}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * rows * heads * head * e.activation; }
};

struct Rope : RopeShape {
  static constexpr std::string_view kName = "rope";
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct RopeGrad : RopeShape {
  static constexpr std::string_view kName = "rope-grad";
};

template <class Reverse>
void Rope::gradient(Reverse& r) const {
  r.emit("/grad", RopeGrad{*this}, refs(r.d_out(0)), refs(r.d_out(0)));
  r.pass(0, r.d_out(0));
}

}  // namespace orrery::program::ops
