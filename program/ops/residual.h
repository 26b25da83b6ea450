// SPDX-License-Identifier: Apache-2.0
//
// The end of a residual branch.
//   Residual      reads {x, o, biases}  writes {y, mask?}   y = x + drop(o + biases); at most two
//   Sum           reads {a, b}          writes {c}          c = a + b
//   DropoutGrad   reads {dy, mask}     writes {do}
//   BiasGrad      reads {dy}           writes {dbias}      sums of columns
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

// `site` tells the random numbers of a layer's branches apart. `sharded`: the rows are a tensor rank's share
// of the tokens. A mask has a byte an element.
struct Residual {
  static constexpr std::string_view kName = "residual";
  static constexpr Nature kNature = Nature::kPointwise;
  static constexpr std::size_t kMostBiases = 2;
  std::int64_t rows = 0, width = 0, site = 0, sequence = 0, biases = 0;
  bool drops = false, sharded = false;
  static constexpr auto fields() {
    return std::tuple(&Residual::rows, &Residual::width, &Residual::site, &Residual::sequence,
                      &Residual::biases, &Residual::drops, &Residual::sharded);
  }
  constexpr Operands operands() const {
    return {{rows * width, rows * width, biases > 0 ? width : 0, biases > 1 ? width : 0}, {rows * width}};
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return rows * width * (3 * e.activation + (drops ? 1 : 0));
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct Sum {
  static constexpr std::string_view kName = "sum";
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t elements = 0;
  static constexpr auto fields() { return std::tuple(&Sum::elements); }
  constexpr Operands operands() const { return {{elements, elements}, {elements}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 3 * elements * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const {
    r.pass(0, r.d_out(0));
    r.pass(1, r.d_out(0));
  }
};

struct RowsShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t rows = 0, width = 0;
  static constexpr auto fields() { return std::tuple(&RowsShape::rows, &RowsShape::width); }
};

struct DropoutGrad : RowsShape {
  static constexpr std::string_view kName = "dropout-grad";
  constexpr Operands operands() const { return {{rows * width}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return rows * width * (2 * e.activation + 1); }
};

struct BiasGrad : RowsShape {
  static constexpr std::string_view kName = "bias-grad";
  constexpr Operands operands() const { return {{rows * width}, {width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return rows * width * e.activation; }
};

// Of biases that are added to a branch, the second operand: `first` is the operand that the first of them is.
template <class Reverse, class Ref>
void emit_branch_bias_gradients(Reverse& r, std::int64_t rows, std::int64_t width, std::size_t first,
                                std::int64_t biases, Ref d) {
  for (std::size_t i = first; i < first + static_cast<std::size_t>(biases); ++i)
    if (r.trains(i))
      r.emit_for(1, "/bias-grad", BiasGrad{{rows, width}}, refs(d), refs(r.d_weight(i))).accumulate =
          r.accumulates(i);
}

template <class Reverse>
void Residual::gradient(Reverse& r) const {
  r.pass(0, r.d_out(0));
  auto d = r.d_out(0);
  if (drops) {
    d = r.scratch(1, "/dropped-grad");
    r.emit_for(1, "/dropout-grad", DropoutGrad{{rows, width}}, refs(r.d_out(0), r.out(1)), refs(d));
  }
  emit_branch_bias_gradients(r, rows, width, 2, biases, d);
  r.pass(1, d);
}

}  // namespace orrery::program::ops
