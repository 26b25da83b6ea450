// SPDX-License-Identifier: Apache-2.0
//
// 4-bit weights (core/nf4.h), by the arithmetic of bitsandbytes.
#pragma once

#include <array>
#include <cstddef>

#include "core/nf4.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

// The 16 numbers: quantiles of a normal distribution within [-1, 1] (QLoRA, appendix E).
inline constexpr std::array<float, 16> kNf4{-1.0F,
                                            -0.6961928009986877F,
                                            -0.5250730514526367F,
                                            -0.39491748809814453F,
                                            -0.28444138169288635F,
                                            -0.18477343022823334F,
                                            -0.09105003625154495F,
                                            0.0F,
                                            0.07958029955625534F,
                                            0.16093020141124725F,
                                            0.24611230194568634F,
                                            0.33791524171829224F,
                                            0.44070982933044434F,
                                            0.5626170039176941F,
                                            0.7229568362236023F,
                                            1.0F};

// From elements to Nf4Layout::bytes(), and back.
void quantise(const Nf4Layout& layout, const float* x, std::byte* stored);
void dequantise(const Nf4Layout& layout, const std::byte* stored, float* x);

}  // namespace orrery::kernels
