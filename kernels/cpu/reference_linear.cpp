// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {

void gemm(const Gemm& g, const float* a, const float* b, const float* bias, float* c) {
  for (Index i = 0; i < g.m; ++i) {
    float* row = c + i * g.n;
    if (!g.accumulate) {
      for (Index j = 0; j < g.n; ++j) row[j] = bias != nullptr ? bias[j] : 0.0F;
    }
    if (g.transpose_b) {
      for (Index j = 0; j < g.n; ++j) {
        float sum = 0;
        for (Index l = 0; l < g.k; ++l) {
          sum += (g.transpose_a ? a[l * g.m + i] : a[i * g.k + l]) * b[j * g.k + l];
        }
        row[j] += sum;
      }
    } else {
      for (Index l = 0; l < g.k; ++l) {
        const float factor = g.transpose_a ? a[l * g.m + i] : a[i * g.k + l];
        for (Index j = 0; j < g.n; ++j) row[j] += factor * b[l * g.n + j];
      }
    }
  }
}

void residual(Index rows, Index width, const float* x, const float* branch, const float* bias, float* y) {
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < width; ++j) {
      const Index at = r * width + j;
      y[at] = x[at] + (bias != nullptr ? branch[at] + bias[j] : branch[at]);
    }
  }
}

void bias_grad(Index rows, Index width, const float* dy, float* db, bool accumulate) {
  if (!accumulate) std::fill(db, db + width, 0.0F);
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < width; ++j) db[j] += dy[r * width + j];
  }
}

void embedding(Index tokens, Index width, Index first, Index rows, const std::int32_t* ids,
               const float* table, float* y) {
  for (Index t = 0; t < tokens; ++t) {
    const Index row = ids[t] - first;
    if (row >= 0 && row < rows)
      std::copy_n(table + row * width, width, y + t * width);
    else
      std::fill_n(y + t * width, width, 0.0F);
  }
}

void embedding_grad(Index tokens, Index width, Index first, Index rows, const std::int32_t* ids,
                    const float* dy, float* d_table, bool accumulate) {
  if (!accumulate) std::fill_n(d_table, rows * width, 0.0F);
  for (Index t = 0; t < tokens; ++t) {
    const Index row = ids[t] - first;
    if (row < 0 || row >= rows) continue;
    for (Index j = 0; j < width; ++j) d_table[row * width + j] += dy[t * width + j];
  }
}

void positions(const PositionsShape& s, const float* table, float* x) {
  for (Index r = 0; r < s.rows; ++r) {
    const float* const of = table + s.position(r) * s.width;
    for (Index j = 0; j < s.width; ++j) x[r * s.width + j] += of[j];
  }
}

void positions_grad(const PositionsShape& s, Index table_rows, const float* dy, float* d_table,
                    bool accumulate) {
  if (!accumulate) std::fill_n(d_table, table_rows * s.width, 0.0F);
  for (Index r = 0; r < s.rows; ++r) {
    float* const of = d_table + s.position(r) * s.width;
    for (Index j = 0; j < s.width; ++j) of[j] += dy[r * s.width + j];
  }
}

namespace {

// Calls then(i, m, v, update) with the new moments of each element and what they update it by.
template <class Then>
void for_each_update(const Adam& a, Index n, const float* gradient, const float* parameter, const float* m,
                     const float* v, Then then) {
  const auto step = static_cast<float>(a.step);
  const float correct1 = 1.0F - std::pow(a.beta1, step), correct2 = 1.0F - std::pow(a.beta2, step);
  for (Index i = 0; i < n; ++i) {
    const float g = gradient[i] * a.scale;
    const float first = a.beta1 * m[i] + (1 - a.beta1) * g;
    const float second = a.beta2 * v[i] + (1 - a.beta2) * g * g;
    const float update = (first / correct1) / (std::sqrt(second / correct2) + a.epsilon);
    then(i, first, second, update + a.decay * parameter[i]);
  }
}

}  // namespace

void adam(const Adam& a, Index n, const float* gradient, float* parameter, float* m, float* v) {
  for_each_update(a, n, gradient, parameter, m, v, [&](Index i, float first, float second, float update) {
    m[i] = first;
    v[i] = second;
    parameter[i] -= a.lr * update;
  });
}

void adam_update(const Adam& a, Index n, const float* gradient, const float* parameter, const float* m,
                 const float* v, float* update) {
  for_each_update(a, n, gradient, parameter, m, v, [&](Index i, float, float, float by) { update[i] = by; });
}

void step_by_sign(float rate, Index n, const float* gradient, float* parameter) {
  for (Index i = 0; i < n; ++i) {
    if (gradient[i] != 0) parameter[i] -= gradient[i] > 0 ? rate : -rate;
  }
}

void lars(const Lars& l, Index n, const float* gradient, float* parameter, float* velocity) {
  const float rate = l.rate();
  for (Index i = 0; i < n; ++i) {
    velocity[i] = l.momentum * velocity[i] + rate * (gradient[i] * l.scale + l.decay * parameter[i]);
    parameter[i] -= velocity[i];
  }
}

void outer_update(const Outer& o, Index n, const float* sum, float* anchor, float* velocity) {
  for (Index i = 0; i < n; ++i) {
    const float g = sum[i] * o.share;
    if (velocity == nullptr) {
      anchor[i] -= o.learning_rate * g;
      continue;
    }
    velocity[i] = o.momentum * velocity[i] + g;
    anchor[i] -= o.learning_rate * (g + o.momentum * velocity[i]);
  }
}

void sgd(const Sgd& s, Index n, const float* gradient, float* parameter, float* velocity) {
  for (Index i = 0; i < n; ++i) {
    velocity[i] = s.momentum * velocity[i] + gradient[i] * s.scale;
    parameter[i] -= s.lr * velocity[i];
  }
}

// Element by element: every bin from the top, without blocks.
void add_squares(Index n, const float* x, double* bins) {
  for (Index i = 0; i < n; ++i) {
    double rest = static_cast<double>(x[i]) * static_cast<double>(x[i]);
    for (Index j = 0; j < kSquareBins; ++j) {
      const double anchor = 1.5 * std::ldexp(1.0, static_cast<int>(289 - 20 * j));  // 2^52 of the bin's units
      const double part = (rest + anchor) - anchor;
      bins[j] += part;
      rest -= part;
    }
  }
}

double sum_of_bins(const double* bins) {
  // What is not finite may stand in bins beyond those that count.
  const double all = std::accumulate(bins, bins + kSquareBins, 0.0);
  if (!std::isfinite(all)) return all;
  for (Index j = 0; j + 2 < kSquareBins; ++j) {
    if (bins[j] != 0) return bins[j] + (bins[j + 1] + bins[j + 2]);
  }
  return 0;
}

float trust_ratio(const double* weights, const double* update) {
  const double w = std::sqrt(sum_of_bins(weights)), u = std::sqrt(sum_of_bins(update));
  return w > 0 && u > 0 ? static_cast<float>(w / u) : 1.0F;
}

}  // namespace orrery::kernels::reference
