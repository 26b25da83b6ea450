// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fp8.h"

#include <algorithm>

namespace orrery::kernels {

void round_to_fp8(Fp8 f, Index n, float* x) {
  std::uint32_t most = 0;  // as bits, which are in the order of magnitudes, NaN above all
  for (Index i = 0; i < n; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffff);
  const float factor = fp8_factor(f, std::bit_cast<float>(most));
  for (Index i = 0; i < n; ++i) x[i] = from_fp8(f, to_fp8(f, x[i] * factor)) / factor;
}

}  // namespace orrery::kernels
