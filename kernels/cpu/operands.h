// SPDX-License-Identifier: Apache-2.0
//
// Operands of matrix products, rounded as number formats have it (core/rounding.h): each block of elements is
// divided by its factor, rounded to the nearest number of the format, ties to even, and multiplied again, so
// that a product of what is left is what a device computes that multiplies narrow numbers and sums in fp32.
#pragma once

#include "core/rounding.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

// How an operand stands in memory: matrices of rows x columns one behind the other. A product sums along its
// columns, or its rows.
struct StoredOperand {
  Index matrices = 1, rows = 0, columns = 0;
  bool sums_columns = true;
  bool weight = false, gradient = false;
};

// Throws std::logic_error for formats that do not round, and for fp8-delayed, whose factors are of earlier
// steps.
void round_operand(Math format, const StoredOperand& shape, float* x);

}  // namespace orrery::kernels
