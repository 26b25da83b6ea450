// SPDX-License-Identifier: Apache-2.0
//
// The gradient noise scale (McCandlish et al. 2018, arXiv:1812.06162): how many samples a batch may have
// before more of them hardly make its gradient better. Of gradients g_i of n batches of b samples each:
//
//   |G|^2 = (n |mean g|^2 - mean |g_i|^2) / (n - 1)                     of the true gradient
//   S = (mean |g_i|^2 - |mean g|^2) / (1/b - 1/(n b))                   of a sample's noise, in all elements
//   B = S / |G|^2                                                       samples
//
// Both are free of bias (appendix A.1 there, for batches of b and n b samples). A batch of B samples needs
// twice the steps of the largest batches, and twice the samples of the smallest.
#pragma once

#include <cstdint>

#include "exec/checkpoint.h"
#include "exec/run.h"

namespace orrery::exec {

class Dataset;

struct GradientNoise {
  std::int64_t samples = 0;        // of a batch
  std::int64_t batches = 0;        // whose gradients are compared
  std::int64_t repeats = 0;        // how often, with others
  double loss = 0;                 // the mean of all
  double gradient = 0, noise = 0;  // |G|^2 and S, means of the repeats
  double scale = 0;                // B; infinity where no gradient is seen above the noise
  double error = 0;                // standard error of B, by leaving out a repeat at a time; zero: of one
};

// `program` has one rank, and its batch is b. From `state`, or what the options begin with. Throws Error when
// a gradient is not finite.
GradientNoise measure_noise(const program::Program& program, const RunOptions& options, const Dataset& data,
                            const RestoredState* state, std::int64_t batches, std::int64_t repeats);

}  // namespace orrery::exec
