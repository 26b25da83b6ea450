// SPDX-License-Identifier: Apache-2.0
//
// Normalisation of rows, and of heads inside rows.
//   Norm           reads {x, weight, bias?}               writes {y}
//   NormGrad       reads {x, weight, dy, d residual?}     writes {dx, dweight, dbias?}
//                  dx includes the gradient that the residual path brings
//   ResidualNorm   reads {x, o, weight, bias?, biases}    writes {s, y}
//                  s = x + (o + biases), at most two, and y its norm. The gradient is NormGrad's at s, which
//                  both x and o get
//   HeadNorm       reads {x, weight?}                     writes {y}
//   HeadNormGrad   reads {x, dy, weight?}                 writes {dx, dweight?}
#pragma once

#include "core/model.h"
#include "program/ops/common.h"
#include "program/ops/residual.h"

namespace orrery::program::ops {

struct NormShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t rows = 0, width = 0;
  orrery::Norm type{};
  bool bias = false;
  static constexpr auto fields() {
    return std::tuple(&NormShape::rows, &NormShape::width, &NormShape::type, &NormShape::bias);
  }
};

struct Norm : NormShape {
  static constexpr std::string_view kName = "norm";
  constexpr Operands operands() const { return {{rows * width, width, bias ? width : 0}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * rows * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct NormGrad : NormShape {
  static constexpr std::string_view kName = "norm-grad";
  bool residual = false;
  static constexpr auto fields() {
    return std::tuple_cat(NormShape::fields(), std::tuple(&NormGrad::residual));
  }
  constexpr Operands operands() const {
    const std::int64_t all = rows * width;
    return {{all, width, all, residual ? all : 0}, {all, width, bias ? width : 0}};
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (residual ? 4 : 3) * rows * width * e.activation;
  }
};

template <class Reverse>
void Norm::gradient(Reverse& r) const {
  auto reads = refs(r.in(0), r.in(1), r.d_out(0));
  const auto residual = r.addend(0);
  if (residual) reads.push_back(*residual);
  auto writes = refs(r.d_in(0), r.d_weight(1));
  if (bias) writes.push_back(r.d_weight(2));
  r.emit("/grad", NormGrad{*this, residual.has_value()}, std::move(reads), std::move(writes)).accumulate =
      r.accumulates(1);
}

struct ResidualNorm : NormShape {
  static constexpr std::string_view kName = "residual-norm";
  std::int64_t biases = 0;
  static constexpr auto fields() {
    return std::tuple_cat(NormShape::fields(), std::tuple(&ResidualNorm::biases));
  }
  constexpr std::size_t first_bias() const { return bias ? 4 : 3; }  // of the branch's, among what it reads
  constexpr Operands operands() const {
    const std::int64_t all = rows * width;
    return {{all, all, width, width, width, width}, {all, all}};
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 4 * rows * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

template <class Reverse>
void ResidualNorm::gradient(Reverse& r) const {
  auto reads = refs(r.out(0), r.in(2), r.d_out(1));
  const bool goes_on = r.given(0);  // others than the norm read the sum
  if (goes_on) reads.push_back(r.d_out(0));
  const auto d = r.scratch(0, "/residual/grad");
  auto writes = refs(d, r.d_weight(2));
  if (bias) writes.push_back(r.d_weight(3));
  r.emit("/grad", NormGrad{*this, goes_on}, std::move(reads), std::move(writes)).accumulate =
      r.accumulates(2);
  r.pass(0, d);
  emit_branch_bias_gradients(r, rows, width, first_bias(), biases, d);
  r.pass(1, d);
}

// Query heads of `head` elements and the KV heads of `kv_head` behind them stand first in a row of `width`;
// what follows is copied. All query heads may count as one, and all KV heads as another.
struct HeadNormShape {
  static constexpr Nature kNature = Nature::kPointwise;
  std::int64_t rows = 0, width = 0, heads = 0, head = 0, kv_heads = 0, kv_head = 0;
  bool weighted = true;  // of one query head, and of one KV head behind it
  static constexpr auto fields() {
    using S = HeadNormShape;
    return std::tuple(&S::rows, &S::width, &S::heads, &S::head, &S::kv_heads, &S::kv_head, &S::weighted);
  }
  constexpr std::int64_t weights() const { return weighted ? head + kv_head : 0; }
};

struct HeadNorm : HeadNormShape {
  static constexpr std::string_view kName = "head-norm";
  constexpr Operands operands() const { return {{rows * width, weights()}, {rows * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * rows * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse& r) const;
};

struct HeadNormGrad : HeadNormShape {
  static constexpr std::string_view kName = "head-norm-grad";
  constexpr Operands operands() const {
    return {{rows * width, rows * width, weights()}, {rows * width, weights()}};
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 3 * rows * width * e.activation; }
};

template <class Reverse>
void HeadNorm::gradient(Reverse& r) const {
  auto reads = refs(r.in(0), r.d_out(0));
  auto writes = refs(r.d_in(0));
  if (!weighted) {
    r.emit("/grad", HeadNormGrad{*this}, std::move(reads), std::move(writes));
    return;
  }
  reads.push_back(r.in(1));
  writes.push_back(r.d_weight(1));
  r.emit("/grad", HeadNormGrad{*this}, std::move(reads), std::move(writes)).accumulate = r.accumulates(1);
}

}  // namespace orrery::program::ops
