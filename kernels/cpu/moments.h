// SPDX-License-Identifier: Apache-2.0
//
// An optimizer's moments from how they are stored (core/moments.h) to fp32, and back. In 8 bits the first
// moment is stored by numbers of both signs, the second by numbers from zero (kernels/cpu/dynamic_numbers.h).
#pragma once

#include <cstddef>

#include "core/moments.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

// Elements [first, first + n) of the i-th moment; in 8 bits they begin a block, and end one or the array.
void widen_moments(const MomentLayout& layout, Index i, const std::byte* stored, Index first, Index n,
                   float* x);
void narrow_moments(const MomentLayout& layout, Index i, const float* x, Index first, Index n,
                    std::byte* stored);

}  // namespace orrery::kernels
