// SPDX-License-Identifier: Apache-2.0
//
// Elements times a factor, and elements that are kept within a cap: cap tanh(x / cap).
//   Scale         reads {x}      writes {y}
//   SoftCap       reads {x}      writes {y}
//   SoftCapGrad   reads {y, dy}  writes {dx}
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct Scale {
  static constexpr std::string_view kName = "scale";
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t elements = 0;
  double factor = 1;
  static constexpr auto fields() { return std::tuple(&Scale::elements, &Scale::factor); }
  constexpr Operands operands() const { return {{elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * elements * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const {
    r.emit("/grad", *this, refs(r.d_out(0)), refs(r.d_in(0)));
  }
};

struct CapShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t elements = 0;
  double cap = 1;
  static constexpr auto fields() { return std::tuple(&CapShape::elements, &CapShape::cap); }
};

struct SoftCap : CapShape {
  static constexpr std::string_view kName = "soft-cap";
  constexpr Operands operands() const { return {{elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * elements * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct SoftCapGrad : CapShape {
  static constexpr std::string_view kName = "soft-cap-grad";
  constexpr Operands operands() const { return {{elements, elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 3 * elements * e.activation; }
};

template <class Reverse>
void SoftCap::gradient(Reverse& r) const {
  r.emit("/grad", SoftCapGrad{*this}, refs(r.out(0), r.d_out(0)), refs(r.d_in(0)));
}

}  // namespace orrery::program::ops
