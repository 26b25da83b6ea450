// SPDX-License-Identifier: Apache-2.0
//
// Dynamic tree quantisation (Dettmers 2015, arXiv:1511.04561): 256 numbers of which a byte names one, by the
// arithmetic of bitsandbytes.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace orrery::kernels {

// In order: seven decades within [-1, 1] with 1, 2, 4, .. 64 numbers of each sign; within [0, 1] with 2, 4,
// .. 128 numbers.
const std::array<float, 256>& dynamic_numbers();
const std::array<float, 256>& unsigned_dynamic_numbers();

// The index of the nearest of numbers in order.
std::size_t nearest(std::span<const float> numbers, float x);

}  // namespace orrery::kernels
