// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/blas.h"

namespace orrery::kernels {
namespace {

void round_to_storage(DType type, Index n, float* x) {
  if (type != DType::kBfloat16) return;
  for (Index i = 0; i < n; ++i) x[i] = reference::from_bfloat16(reference::to_bfloat16(x[i]));
}

}  // namespace

void muon_momentum(const Muon& muon, float factor, Index n, const float* gradient, float* moment,
                   float* update) {
  const auto momentum = static_cast<float>(muon.momentum);
  for (Index i = 0; i < n; ++i) {
    const float g = gradient[i] * factor;
    moment[i] = momentum * moment[i] + g;
    update[i] = muon.nesterov ? g + momentum * moment[i] : moment[i];
  }
}

void orthogonalise(Index rows, Index columns, std::int64_t iterations, DType type, float* x,
                   std::vector<float>& scratch) {
  const Index all = rows * columns, n = std::min(rows, columns);
  double squares = 0;
  for (Index i = 0; i < all; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  if (squares == 0) return;
  const auto factor = static_cast<float>(1 / std::sqrt(squares));
  for (Index i = 0; i < all; ++i) x[i] *= factor;
  round_to_storage(type, all, x);
  scratch.resize(static_cast<std::size_t>(all + 2 * n * n));
  float* const next = scratch.data();
  float* const a = next + all;
  float* const b = a + n * n;
  const bool wide = rows <= columns;
  for (std::int64_t i = 0; i < iterations; ++i) {
    multiply({.m = n,
              .n = n,
              .k = std::max(rows, columns),
              .transpose_a = !wide,
              .transpose_b = wide,
              .lda = columns,
              .ldb = columns,
              .ldc = n},
             x, x, a);
    round_to_storage(type, n * n, a);
    for (Index j = 0; j < n * n; ++j) b[j] = static_cast<float>(kMuonB) * a[j];
    round_to_storage(type, n * n, b);
    multiply({.m = n,
              .n = n,
              .k = n,
              .alpha = static_cast<float>(kMuonC),
              .beta = 1,
              .lda = n,
              .ldb = n,
              .ldc = n},
             a, a, b);
    round_to_storage(type, n * n, b);
    for (Index j = 0; j < all; ++j) next[j] = static_cast<float>(kMuonA) * x[j];
    round_to_storage(type, all, next);
    if (wide)
      multiply({.m = rows, .n = columns, .k = n, .beta = 1, .lda = n, .ldb = columns, .ldc = columns}, b, x,
               next);
    else
      multiply({.m = rows, .n = columns, .k = n, .beta = 1, .lda = columns, .ldb = n, .ldc = columns}, x, b,
               next);
    round_to_storage(type, all, next);
    std::copy_n(next, all, x);
  }
}

void muon_update(float rate, float decay, Index n, const float* update, float* weights) {
  for (Index i = 0; i < n; ++i) weights[i] = (1 - rate * decay) * weights[i] - rate * update[i];
}

}  // namespace orrery::kernels
