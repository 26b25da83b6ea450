// SPDX-License-Identifier: Apache-2.0
//
// Between the patches of images and the tokens of a tower. A sample has `patches` of them, and before them a
// token of its own where it has a class token. A tensor rank has a part of the sum that x is: the first adds
// the bias and the class token to its part, the others nothing.
//   Patches       reads {x, bias, class?}   writes {y}   y = x + bias, behind the class token
//   PatchesGrad   reads {dy}                writes {dx, dbias, dclass?}
// What stands for a sample: the row of its first token, or the mean of its rows. `sharded`: the rows are a
// tensor rank's share of the tokens, and its result a part of the sum.
//   Pool       reads {x}    writes {y}
//   PoolGrad   reads {dy}   writes {dx}
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct PatchesShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t batch = 0, patches = 0, width = 0;
  bool class_token = false;
  static constexpr auto fields() {
    using S = PatchesShape;
    return std::tuple(&S::batch, &S::patches, &S::width, &S::class_token);
  }
  constexpr std::int64_t in() const { return batch * patches * width; }
  constexpr std::int64_t out() const { return batch * (patches + (class_token ? 1 : 0)) * width; }
};

struct Patches : PatchesShape {
  static constexpr std::string_view kName = "patches";
  constexpr Operands operands() const { return {{in(), width, class_token ? width : 0}, {out()}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return (in() + out()) * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct PatchesGrad : PatchesShape {
  static constexpr std::string_view kName = "patches-grad";
  constexpr Operands operands() const { return {{out()}, {in(), width, class_token ? width : 0}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return (in() + 2 * out()) * e.activation; }
};

struct PoolShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t batch = 0, sequence = 0, rows = 0, width = 0;
  bool mean = false, sharded = false;
  static constexpr auto fields() {
    using S = PoolShape;
    return std::tuple(&S::batch, &S::sequence, &S::rows, &S::width, &S::mean, &S::sharded);
  }
  // Rows that count.
  constexpr std::int64_t seen() const { return mean ? rows : batch; }
};

struct Pool : PoolShape {
  static constexpr std::string_view kName = "pool";
  constexpr Operands operands() const { return {{rows * width}, {batch * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (seen() + batch) * width * e.activation;
  }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct PoolGrad : PoolShape {
  static constexpr std::string_view kName = "pool-grad";
  constexpr Operands operands() const { return {{batch * width}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return (rows + batch) * width * e.activation; }
};

template <class Reverse>
void Patches::gradient(Reverse& r) const {
  const auto dx = r.d_in(0);
  auto writes = refs(dx, r.d_weight(1));
  if (class_token) writes.push_back(r.d_weight(2));
  r.emit("/grad", PatchesGrad{*this}, refs(r.d_out(0)), std::move(writes)).accumulate = r.accumulates(1);
}

template <class Reverse>
void Pool::gradient(Reverse& r) const {
  r.emit("/grad", PoolGrad{*this}, refs(r.d_out(0)), refs(r.d_in(0)));
}

}  // namespace orrery::program::ops
