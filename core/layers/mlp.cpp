// SPDX-License-Identifier: Apache-2.0
#include "core/layers/mlp.h"

namespace orrery {

void MlpLayer::resolve(std::int64_t hidden) {
  if (ffn_hidden == 0) ffn_hidden = 4 * hidden;
}

std::int64_t MlpLayer::parameters(std::int64_t hidden) const {
  return matrix_elements(hidden) + (bias ? fc1_width() + hidden : 0);
}

std::vector<AdapterMatrix> MlpLayer::adapter_matrices(std::int64_t hidden) const {
  using enum AdapterTarget;
  std::vector<AdapterMatrix> out{{kUp, ffn_hidden, hidden}, {kDown, hidden, ffn_hidden}};
  if (gated()) out.insert(out.begin(), {kGate, ffn_hidden, hidden});
  return out;
}

}  // namespace orrery
