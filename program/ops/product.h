// SPDX-License-Identifier: Apache-2.0
//
// Matrix product u[m,n] (+)= op(A)[m,k] op(B)[k,n], with an epilogue:
//   kPlain      reads {A, B, bias?}  writes {u}
//   kGelu       reads {A, B, bias?}  writes {gelu(u), u}
//   kGeluGrad   reads {A, B, x}      writes {u gelu'(x)}
#pragma once

#include "program/ops/common.h"

namespace orrery::program::ops {

struct Gemm {
  enum class Epilogue : std::uint8_t { kPlain, kGelu, kGeluGrad };
  // The format of the operands: as stored, or rounded to 8 bits, both as values or the first one as a
  // gradient (kernels/cpu/fp8.h).
  enum class Format : std::uint8_t { kAsStored, kFp8Values, kFp8Gradient };
  static constexpr std::string_view kName = "gemm";
  static constexpr Nature kNature = Nature::kProduct;

  std::int64_t m = 0, n = 0, k = 0;
  Epilogue epilogue = Epilogue::kPlain;
  Format format = Format::kAsStored;
  bool transpose_a = false, transpose_b = false;

  static constexpr auto fields() {
    return std::tuple(&Gemm::m, &Gemm::n, &Gemm::k, &Gemm::epilogue, &Gemm::format, &Gemm::transpose_a,
                      &Gemm::transpose_b);
  }

  constexpr bool in_fp8() const { return format != Format::kAsStored; }
  constexpr std::int64_t operand_elements() const { return m * k + k * n; }
  constexpr Operands operands() const {
    return {{m * k, k * n, epilogue == Epilogue::kGeluGrad ? m * n : n}, {m * n, m * n}};
  }
  constexpr double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  // Of products in 8 bits, the operands' rounding too: an operand is read for its largest magnitude, read
  // again, and written in 8 bits; the product then reads a byte an element.
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t results = (epilogue == Epilogue::kPlain ? 1 : 2) * m * n * e.activation;
    if (!in_fp8()) return operand_elements() * e.activation + results;
    const auto rounding = static_cast<double>(operand_elements() * (2 * e.activation + 1)) * e.fp8_rounding;
    return operand_elements() + results + static_cast<std::int64_t>(rounding);
  }
};

}  // namespace orrery::program::ops
