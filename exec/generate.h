// SPDX-License-Identifier: Apache-2.0
//
// Answers of a model on the processor: a prefill of the prompts, and a decode for each token behind the
// first, every one a pass through a compiled program (Training::cache). The programs hold parameters of their
// own, as a prefill and a decode on devices of their own do; between them keys and values pass from one cache
// to the other. The token with the largest logit is chosen.
//
//   Generated g = generate(model, plan, training, stack, {{5, 6, 7}, {1, 2, 3}}, {.tokens = 4});
//   g.tokens[0];    // four successors of 5, 6, 7
//
// Ranks that share tensors (tp) are threads. Plans have no other axis.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/run.h"

namespace orrery::exec {

struct GenerateOptions {
  std::int64_t tokens = 1;                  // of each answer
  std::uint64_t seed = 1;                   // of weights, where there are no others
  const LogicalTensors* weights = nullptr;  // of a checkpoint
  std::chrono::milliseconds deadline{60000};
};

struct Generated {
  std::vector<std::vector<std::int32_t>> tokens;  // by prompt
  double prefill_s = 0;
  std::vector<double> decode_s;  // of each pass
  Bytes cache;                   // of a rank
};

// Prompts are of equal length, at least 1, of a model that is served (program/serving.h) on an executable
// stack in a precision that the processor computes in. Throws Error.
Generated generate(const Model& model, const Plan& plan, const Training& training, const Stack& stack,
                   const std::vector<std::vector<std::int32_t>>& prompts, const GenerateOptions& options);

}  // namespace orrery::exec
