// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {

void patches(const PatchesShape& s, bool adds, const float* x, const float* bias, const float* cls,
             float* y) {
  for (Index b = 0; b < s.batch; ++b) {
    if (cls != nullptr) {
      for (Index j = 0; j < s.width; ++j) *y++ = adds ? cls[j] : 0.0F;
    }
    for (Index p = 0; p < s.patches; ++p) {
      for (Index j = 0; j < s.width; ++j) *y++ = *x++ + (adds ? bias[j] : 0.0F);
    }
  }
}

void patches_grad(const PatchesShape& s, const float* dy, float* dx, float* d_bias, float* d_cls,
                  bool accumulate) {
  // Summed before they are added, so that what is added does not depend on what is there.
  thread_local std::vector<float> sums;
  sums.assign(static_cast<std::size_t>(2 * s.width), 0.0F);
  float *const bias = sums.data(), *const cls = bias + s.width;
  for (Index b = 0; b < s.batch; ++b) {
    if (d_cls != nullptr) {
      for (Index j = 0; j < s.width; ++j) cls[j] += *dy++;
    }
    for (Index p = 0; p < s.patches; ++p) {
      for (Index j = 0; j < s.width; ++j) bias[j] += * dx++ = *dy++;
    }
  }
  for (Index j = 0; j < s.width; ++j) d_bias[j] = (accumulate ? d_bias[j] : 0.0F) + bias[j];
  for (Index j = 0; j < s.width && d_cls != nullptr; ++j) d_cls[j] = (accumulate ? d_cls[j] : 0.0F) + cls[j];
}

namespace {

// Calls use(row, sample, weight) for the rows that count.
template <class Use>
void for_each_pooled(const PoolShape& s, Use use) {
  const float weight = s.mean ? 1.0F / static_cast<float>(s.seq) : 1.0F;
  for (Index r = 0; r < s.rows; ++r) {
    const Index token = s.first_row + r;
    if (s.mean || token % s.seq == 0) use(r, token / s.seq, weight);
  }
}

}  // namespace

void pool(const PoolShape& s, const float* x, float* y) {
  std::fill_n(y, s.batch * s.width, 0.0F);
  for_each_pooled(s, [&](Index row, Index sample, float weight) {
    for (Index j = 0; j < s.width; ++j) y[sample * s.width + j] += weight * x[row * s.width + j];
  });
}

void pool_grad(const PoolShape& s, const float* dy, float* dx) {
  std::fill_n(dx, s.rows * s.width, 0.0F);
  for_each_pooled(s, [&](Index row, Index sample, float weight) {
    for (Index j = 0; j < s.width; ++j) dx[row * s.width + j] = weight * dy[sample * s.width + j];
  });
}

}  // namespace orrery::kernels::reference
