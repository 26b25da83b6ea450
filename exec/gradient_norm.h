// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "program/program.h"

namespace orrery::exec {

// What kNormFinish writes and the optimizer reads.
struct GradientNorm {
  double norm;
  float factor;             // takes the loss scale from gradients, and their norm to the largest allowed
  std::int32_t overflowed;  // gradients are not finite: the update is left out
};
static_assert(sizeof(GradientNorm) == program::kNormBytes);

}  // namespace orrery::exec
