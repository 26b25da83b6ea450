// SPDX-License-Identifier: Apache-2.0
#include "core/layers/mlp.h"

namespace orrery {

void MlpLayer::resolve(std::int64_t hidden) {
  if (ffn_hidden == 0) ffn_hidden = 4 * hidden;
}

std::int64_t MlpLayer::parameters(std::int64_t hidden) const {
  return matrix_elements(hidden) + (bias ? fc1_width() + hidden : 0);
}

}  // namespace orrery
