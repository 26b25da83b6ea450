// SPDX-License-Identifier: Apache-2.0
//
// The MLP's activation; of a gated one, a row of u holds the gate's columns behind the others.
//   Activation       reads {u}      writes {v}
//   ActivationGrad   reads {u, dv}  writes {du}
#pragma once

#include "core/layers/mlp.h"
#include "program/ops/common.h"

namespace orrery::program::ops {

struct ActivationShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t rows = 0, width = 0;
  orrery::Activation type{};
  static constexpr auto fields() {
    return std::tuple(&ActivationShape::rows, &ActivationShape::width, &ActivationShape::type);
  }
  constexpr std::int64_t inputs() const { return rows * width * (is_gated(type) ? 2 : 1); }
};

struct Activation : ActivationShape {
  static constexpr std::string_view kName = "activation";
  constexpr Operands operands() const { return {{inputs()}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (inputs() + rows * width) * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct ActivationGrad : ActivationShape {
  static constexpr std::string_view kName = "activation-grad";
  constexpr Operands operands() const { return {{inputs(), rows * width}, {inputs()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (2 * inputs() + rows * width) * e.activation;
  }
};

template <class Reverse>
void Activation::gradient(Reverse& r) const {
  r.emit("/grad", ActivationGrad{*this}, refs(r.in(0), r.d_out(0)), refs(r.d_in(0)));
}

}  // namespace orrery::program::ops
