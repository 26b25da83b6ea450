// SPDX-License-Identifier: Apache-2.0
//
// Matrix product u[m,n] (+)= op(A)[m,k] op(B)[k,n], with an epilogue:
//   kPlain      reads {A, B, bias?}  writes {u}
//   kGelu       reads {A, B, bias?}  writes {gelu(u), u}
//   kGeluGrad   reads {A, B, x}      writes {u gelu'(x)}
//   kBiasGrad   reads {A, B}         writes {u, the sums of op(A)'s rows}
#pragma once

#include "program/ops/common.h"
#include "program/ops/residual.h"

namespace orrery::program::ops {

struct Gemm {
  enum class Epilogue : std::uint8_t { kPlain, kGelu, kGeluGrad, kBiasGrad };
  // The format of the operands: as stored, or rounded as the training's math has it (core/rounding.h), both
  // as values or the first one as a gradient.
  enum class Format : std::uint8_t { kAsStored, kRoundedValues, kRoundedGradient };
  static constexpr std::string_view kName = "gemm";
  static constexpr Nature kNature = Nature::kProduct;

  std::int64_t m = 0, n = 0, k = 0;
  Epilogue epilogue = Epilogue::kPlain;
  Format format = Format::kAsStored;
  bool transpose_a = false, transpose_b = false;
  std::int64_t rounding = 0;  // of operands that are rounded: rounding_number

  static constexpr auto fields() {
    return std::tuple(&Gemm::m, &Gemm::n, &Gemm::k, &Gemm::epilogue, &Gemm::format, &Gemm::transpose_a,
                      &Gemm::transpose_b, &Gemm::rounding);
  }

  constexpr bool rounds() const { return format != Format::kAsStored; }
  constexpr std::int64_t operand_elements() const { return m * k + k * n; }
  constexpr std::int64_t result_elements() const { return m * n; }
  constexpr Operands operands() const {
    return {{m * k, k * n, epilogue == Epilogue::kGeluGrad ? m * n : n},
            {m * n, epilogue == Epilogue::kBiasGrad ? m : m * n}};
  }
  // Matrices of the result's size that its kernel writes, or reads, beside u.
  constexpr std::int64_t others() const {
    return epilogue == Epilogue::kGelu || epilogue == Epilogue::kGeluGrad ? 1 : 0;
  }
  constexpr double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  // Of products that round their operands, that too; the product then reads what is rounded.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t sums = epilogue == Epilogue::kBiasGrad ? m : 0;
    const std::int64_t results = ((1 + others()) * m * n + sums) * e.activation;
    if (!rounds()) return operand_elements() * e.activation + results;
    return results +
           static_cast<std::int64_t>(static_cast<double>(operand_elements()) * (e.rounded + e.rounding));
  }

  // How its operands stand in memory: rows x columns, of which the product sums along the columns or the
  // rows.
  struct Stored {
    std::int64_t rows = 0, columns = 0;
    bool sums_columns = true, weight = false;
  };
  constexpr std::array<Stored, 2> stored() const {
    return {transpose_a ? Stored{k, m, false} : Stored{m, k, true},
            transpose_b ? Stored{n, k, true, !transpose_a} : Stored{k, n, false, !transpose_a}};
  }

  // Whether the product of its weight's gradient sums its bias's: those that round have no epilogue.
  constexpr bool sums_bias_gradients(const Stack& s) const { return s.fused_bias_gradients && !rounds(); }

  // Of u = x W' + b, with x and the gradient of u rows: dx = du W, dW = du' x, db = the sums of du's columns.
  template <class Reverse>
  void gradient(Reverse& r) const;
  template <class Reverse>
  void weight_gradient(Reverse& r) const;

 private:
  Format of_gradient() const { return rounds() ? Format::kRoundedGradient : Format::kAsStored; }
  std::size_t result() const { return epilogue == Epilogue::kGelu ? 1 : 0; }  // u, in the order of writes
};

template <class Reverse>
void Gemm::gradient(Reverse& r) const {
  if (!r.wants(0)) return;
  Gemm d{.m = m, .n = k, .k = n, .format = of_gradient(), .rounding = rounding};
  auto reads = refs(r.d_out(result()), r.in(1));
  // Where x is gelu(u) of the product before, this product's kernel goes on to that u.
  if (const auto before = r.before_activation(0)) {
    d.epilogue = Epilogue::kGeluGrad;
    reads.push_back(*before);
    r.emit("/dgrad", d, std::move(reads), refs(r.d_before_activation(0)));
  } else {
    r.emit("/dgrad", d, std::move(reads), refs(r.d_in(0)));
  }
}

template <class Reverse>
void Gemm::weight_gradient(Reverse& r) const {
  Gemm d{.m = n, .n = k, .k = m, .format = of_gradient(), .transpose_a = true, .rounding = rounding};
  const auto x = r.again(0);
  auto writes = refs(r.d_weight(1));
  const bool fuses = r.has(2) && sums_bias_gradients(r.stack()) && r.accumulates(1) == r.accumulates(2);
  if (fuses) {
    d.epilogue = Epilogue::kBiasGrad;
    writes.push_back(r.d_weight(2));
  }
  r.emit("/wgrad", d, refs(r.d_out(result()), x), std::move(writes)).accumulate = r.accumulates(1);
  if (!r.has(2) || fuses) return;
  r.emit("/bias-grad", BiasGrad{{m, n}}, refs(r.d_out(result())), refs(r.d_weight(2))).accumulate =
      r.accumulates(2);
}

}  // namespace orrery::program::ops
