// SPDX-License-Identifier: Apache-2.0
//
// Rounding of fp32 to bf16 that is right on average: up with the probability that is how far up x lies
// between its neighbours. So updates that are smaller than half a step of bf16 are not lost where no fp32
// copy of a parameter is kept (Gupta et al., "Deep learning with limited numerical precision", ICML 2015).
// Which way an element goes is a function of a seed, a tensor, the element's place in it and the step
// (Philox4x32-10, as for dropout): replicas and shards of a tensor round alike.
#pragma once

#include <cstdint>

#include "kernels/cpu/dropout.h"

namespace orrery::kernels {

struct StochasticRounding {
  bool on = false;
  std::uint64_t seed = 0;
  std::uint32_t site = 0;  // of the tensor
  Index first = 0;         // place in the tensor of the first element at hand
};

// x becomes a number that bf16 has. What bf16 has already, infinities and NaN stay; what would round to
// infinity is rounded down.
void round_to_bfloat16(const StochasticRounding& r, Index step, Index n, float* x);

}  // namespace orrery::kernels
