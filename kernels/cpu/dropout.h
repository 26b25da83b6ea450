// SPDX-License-Identifier: Apache-2.0
//
// Dropout by counter-based randomness: whether an element is kept is a function of a seed and of what the
// element is (which op of the model, sample, row, column), by Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). So every plan drops the same elements, in recomputation and in
// backward passes too, and no state is kept. What is kept is divided by the probability of being kept.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cpu/token_share.h"

namespace orrery::kernels {

using Index = std::int64_t;

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

struct Dropout {
  double probability = 0;  // of being dropped
  std::uint64_t seed = 0;
  std::uint32_t site = 0;  // of the op in the model
  Index first_sample = 0;  // of the micro-batch, counted over the whole run
  float scale() const { return static_cast<float>(1 / (1 - probability)); }
};

// mask[j] = 1 where element (row, j) of a sample is kept, else 0.
void keep(const Dropout& d, Index sample, Index row, Index columns, std::uint8_t* mask);

// y = x + drop(branch (+ bias)) over rows of `width`, the first of which is row `first_row` of samples of
// `seq` rows, whose tokens `share` says; `mask` gets what was kept.
struct DroppedRows {
  Index rows, width, seq, first_row;
  TokenShare share{};
};
void dropout_residual(const Dropout& d, const DroppedRows& s, const float* x, const float* branch,
                      const float* bias, float* y, std::uint8_t* mask);
// dx = mask dy / (1 - p).
void dropout_grad(const Dropout& d, Index n, const float* dy, const std::uint8_t* mask, float* dx);

}  // namespace orrery::kernels
