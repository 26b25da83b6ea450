// SPDX-License-Identifier: Apache-2.0
//
// Experts with products from a BLAS and vectorised activations (fast.h).
#include <algorithm>
#include <vector>

#include "kernels/cpu/fast.h"

namespace orrery::kernels {

void grouped_gemm(const reference::GroupedGemm& g, const float* x, const float* w, const std::int32_t* counts,
                  float* u) {
  reference::for_each_expert(g, counts, [&](Index e, Index first, Index rows, Index) {
    if (rows > 0)
      gemm({.m = rows, .n = g.n, .k = g.k, .transpose_b = true}, x + first * g.k, w + e * g.n * g.k, nullptr,
           u + first * g.n);
  });
}

void grouped_gemm_dx(const reference::GroupedGemm& g, const float* du, const float* w,
                     const std::int32_t* counts, float* dx) {
  reference::for_each_expert(g, counts, [&](Index e, Index first, Index rows, Index) {
    if (rows > 0)
      gemm({.m = rows, .n = g.k, .k = g.n}, du + first * g.n, w + e * g.n * g.k, nullptr, dx + first * g.k);
  });
}

void grouped_gemm_dw(const reference::GroupedGemm& g, const float* du, const float* x,
                     const std::int32_t* counts, float* dw) {
  reference::for_each_expert(g, counts, [&](Index e, Index first, Index rows, Index part) {
    float* const of = dw + e * g.n * g.k;
    if (rows > 0)
      gemm({.m = g.n, .n = g.k, .k = rows, .transpose_a = true, .accumulate = g.accumulate || part > 0},
           du + first * g.n, x + first * g.k, nullptr, of);
    else if (!g.accumulate && part == 0)
      std::fill_n(of, g.n * g.k, 0.0F);
  });
}

void expert_activation(Index rows, Index width, reference::Act act, bool weighs_inputs, const float* u,
                       const float* row_weights, float* v) {
  if (weighs_inputs) {
    const Index columns = width * (is_gated(act) ? 2 : 1);
    std::vector<float> inputs(static_cast<std::size_t>(columns));
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c)
        inputs[static_cast<std::size_t>(c)] = row_weights[r] * u[r * columns + c];
      pointwise().activation(1, width, act, inputs.data(), v + r * width);
    }
    return;
  }
  pointwise().activation(rows, width, act, u, v);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = r * width; c < (r + 1) * width; ++c) v[c] *= row_weights[r];
  }
}

void expert_activation_grad(Index rows, Index width, reference::Act act, bool weighs_inputs, const float* u,
                            const float* row_weights, const float* dv, float* du, float* d_row_weights) {
  const Index columns = width * (is_gated(act) ? 2 : 1);
  std::vector<float> v(static_cast<std::size_t>(width)), weighted(v.size()),
      inputs(static_cast<std::size_t>(columns));
  for (Index r = 0; r < rows; ++r) {
    if (weighs_inputs) {
      for (Index c = 0; c < columns; ++c)
        inputs[static_cast<std::size_t>(c)] = row_weights[r] * u[r * columns + c];
      pointwise().activation_grad(1, width, act, inputs.data(), dv + r * width, du + r * columns);
      double of_weight = 0;
      for (Index c = r * columns; c < (r + 1) * columns; ++c) {
        of_weight += static_cast<double>(du[c]) * u[c];
        du[c] *= row_weights[r];
      }
      d_row_weights[r] = static_cast<float>(of_weight);
      continue;
    }
    const float* const d = dv + r * width;
    pointwise().activation(1, width, act, u + r * columns, v.data());
    double sum = 0;
    for (Index c = 0; c < width; ++c) sum += static_cast<double>(d[c]) * v[static_cast<std::size_t>(c)];
    d_row_weights[r] = static_cast<float>(sum);
    for (Index c = 0; c < width; ++c) weighted[static_cast<std::size_t>(c)] = d[c] * row_weights[r];
    pointwise().activation_grad(1, width, act, u + r * columns, weighted.data(), du + r * columns);
  }
}

}  // namespace orrery::kernels
