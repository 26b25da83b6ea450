// SPDX-License-Identifier: Apache-2.0
//
// An optimizer's moments from how they are stored (core/moments.h) to fp32, and back. In 8 bits the first
// moment is stored by numbers of both signs, the second by numbers from zero (kernels/cpu/dynamic_numbers.h).
//
// And a master copy that is parted (precision "precision-aware"): a parameter in bf16, and 16 bits beside it.
// The bits of the master are those of the parameter, times 2^16, plus those beside it, from -2^15 to 2^15
// - 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/moments.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

// Elements [first, first + n) of the i-th moment; in 8 bits they begin a block, and end one or the array.
void widen_moments(const MomentLayout& layout, Index i, const std::byte* stored, Index first, Index n,
                   float* x);
void narrow_moments(const MomentLayout& layout, Index i, const float* x, Index first, Index n,
                    std::byte* stored);

// The parameter is the nearest in bf16, of two that are as near the one with the greater magnitude.
void part_master(Index n, const float* master, float* parameter, std::int16_t* beside);
void join_master(Index n, const float* parameter, const std::int16_t* beside, float* master);

}  // namespace orrery::kernels
