// SPDX-License-Identifier: Apache-2.0
//
// Single-precision matrix products through OpenBLAS, opened at run time. OpenBLAS chooses its kernels when it
// is opened, and Debian's does not know processors newer than itself: it would take the slowest ones. So the
// core type is named from the processor's features first (OPENBLAS_CORETYPE, unless the user has set it).
// Each call runs on the calling thread: ranks are the parallelism. Without the library the reference kernel
// is used.
#pragma once

#include "kernels/cpu/reference.h"

namespace orrery::kernels {

// C[m,n] = alpha op(A) op(B) + beta C, row-major, with leading dimensions in elements.
struct Product {
  Index m, n, k;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1, beta = 0;
  Index lda, ldb, ldc;
};
void multiply(const Product& p, const float* a, const float* b, float* c);

// "OpenBLAS 0.3.21 SkylakeX", or "reference".
const char* blas_name();

}  // namespace orrery::kernels
