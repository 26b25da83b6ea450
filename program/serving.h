// SPDX-License-Identifier: Apache-2.0
//
// Passes of serving as programs. compile() makes one of the layers that training has: where Training::cache
// is there, a program has forwards alone, attention reads and extends a cache, and the head chooses a token
// for each sequence. A prefill is a pass over the tokens of prompts, a decode a pass over one token of each
// sequence.
//
//   Training t = pass_of(training, 1, {.room = 4096, .cached = 1000});    // a decode behind 1,000 tokens
//   Program p = compile(model, plan, t, stack);
//
// The cache of a sequence has, in each layer with attention,
//
//   2 k d b        bytes for each token: k KV heads of d elements of b bytes, on t tensor ranks k/t of them
//   (r + d_r) b    of latent attention, its latent and the elements that positions turn, on every rank
//
// for all its tokens, or for those of the layer's window.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace orrery::program {

// The training as a pass over `tokens` tokens of each sequence. Sequences are Plan::micro_batch.
Training pass_of(Training training, std::int64_t tokens, const KvCache& cache);

// Bytes that a tensor rank's caches of all layers have for a sequence of so many tokens.
std::int64_t cache_bytes(const Model& model, std::int64_t tensor_ranks, std::int64_t tokens,
                         std::int64_t element_bytes);

// Buffers of a rank's caches, layer by layer.
std::vector<std::int32_t> cache_buffers(const RankClass& rank);

// Why a model is not served, or not with the axes of the plan; empty when it is.
std::string serving_problem(const Model& model, const Plan& plan);
// Why it is not served beside the adapters that were trained; empty when it is.
std::string adapter_problem(const Model& model, const Training& training);

}  // namespace orrery::program
