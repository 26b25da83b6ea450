// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {
namespace {

// Where an id's row stands among the rank's rows, or -1.
Index row_of(const BagsShape& s, Index table, std::int32_t id) {
  const Index row = id - s.first_row, at = table - s.first_table;
  if (row < 0 || row >= s.rows || at < 0 || at >= s.tables) return -1;
  return at * s.rows + row;
}

}  // namespace

void bags(const BagsShape& s, const std::int32_t* ids, const float* weight, float* y) {
  std::fill_n(y, s.batch * s.width, 0.0F);
  const Index each = s.all_tables * s.ids;
  for (Index b = 0; b < s.batch; ++b) {
    for (Index i = 0; i < each; ++i) {
      const Index row = row_of(s, i / s.ids, ids[b * each + i]);
      if (row < 0) continue;
      for (Index j = 0; j < s.columns; ++j)
        y[b * s.width + s.first_column + j] += weight[row * s.columns + j];
    }
  }
}

void bags_grad(const BagsShape& s, const std::int32_t* ids, const float* dy, float* d_weight,
               bool accumulate) {
  if (!accumulate) std::fill_n(d_weight, s.tables * s.rows * s.columns, 0.0F);
  // Samples of equal rows one after the other: their sum is added once.
  thread_local std::vector<std::pair<Index, Index>> named;
  thread_local std::vector<float> sum;
  named.clear();
  sum.resize(static_cast<std::size_t>(s.columns));
  const Index each = s.all_tables * s.ids;
  for (Index i = 0; i < s.batch * each; ++i) {
    const Index row = row_of(s, i % each / s.ids, ids[i]);
    if (row >= 0) named.emplace_back(row, i / each);
  }
  std::sort(named.begin(), named.end());
  for (std::size_t i = 0; i < named.size();) {
    const Index row = named[i].first;
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (; i < named.size() && named[i].first == row; ++i) {
      const float* const d = dy + named[i].second * s.width + s.first_column;
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += d[j];
    }
    for (std::size_t j = 0; j < sum.size(); ++j) d_weight[row * s.columns + static_cast<Index>(j)] += sum[j];
  }
}

// log(1 + exp(x)) - label x, without overflow.
double pair_loss(Index batch, Index width, const float* u, const float* v, const std::int32_t* labels,
                 float* probabilities) {
  double loss = 0;
  for (Index b = 0; b < batch; ++b) {
    float x = 0;
    for (Index j = 0; j < width; ++j) x += u[b * width + j] * v[b * width + j];
    loss += static_cast<double>(std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x)))) -
            (labels[b] != 0 ? static_cast<double>(x) : 0.0);
    probabilities[b] = 1 / (1 + std::exp(-x));
  }
  return loss;
}

void pair_loss_grad(Index batch, Index width, const float* u, const float* v, const std::int32_t* labels,
                    const float* probabilities, float weight, float* du, float* dv) {
  for (Index b = 0; b < batch; ++b) {
    const float d = (probabilities[b] - (labels[b] != 0 ? 1.0F : 0.0F)) * weight;
    for (Index j = b * width; j < (b + 1) * width; ++j) {
      du[j] = d * v[j];
      dv[j] = d * u[j];
    }
  }
}

}  // namespace orrery::kernels::reference
