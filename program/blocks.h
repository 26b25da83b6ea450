// SPDX-License-Identifier: Apache-2.0
//
// The blocks that models are made of, as graphs. Internal to program/.
#pragma once

#include "program/builder.h"

namespace orrery::program {

// A block between the model's ends. Its layers are resolved.
Graph model_block(const Model& m, const ModelBlock& block, const BlockTowers& towers, const Plan& p,
                  const Training& t, const Stack& s, std::vector<RotaryUse>& rotary);

// The layers, one overload each, without norms and the sum with what went in. `base` begins their names.
Branch branch(Builder& g, const std::string& base, const AttentionLayer& layer, ValueId x);
Branch branch(Builder& g, const std::string& base, const CrossAttentionLayer& layer, ValueId x);
Branch branch(Builder& g, const std::string& base, const LatentAttentionLayer& layer, ValueId x);
Branch branch(Builder& g, const std::string& base, const ExpertsLayer& layer, ValueId x);
Branch branch(Builder& g, const std::string& base, const MlpLayer& layer, ValueId x);

// The two halves of attention: what heads make of the values that they see, with heads split over tensor
// ranks, and the product that brings that width back to the model's.
ValueId context(Builder& g, const std::string& base, const AttentionLayer& layer, ValueId x);
Branch project(Builder& g, const std::string& base, std::int64_t width, bool bias, ValueId context);

// The model's ends: what its inputs make of their data, and the head with the loss. The embedding's weight,
// positions, the head's norm and its weight are a piece each. `further`: the head of a module of multi-token
// prediction, for tokens that many further; its weight is the model's.
Graph embedding(const Model& m, const Plan& p, const Training& t, const Stack& s);
Graph head(const Model& m, const Plan& p, const Training& t, const Stack& s, std::int64_t further = 0);
// What the block of such a module begins with: W_h norm(h) + W_e norm(embedding of the token before the one
// that it predicts), of what the head before it came to, h, normed. The two matrices are halves of the
// paper's one. The embedding's weight is the first parameter, and a piece of its own.
Graph mtp_input(const Model& m, const Plan& p, const Training& t, const Stack& s, std::int64_t further);
// Where rows go through the loss in parts (Plan::loss_chunks), the head ends behind its norm, and this is the
// rest of it, for one part of the rows.
inline bool loss_is_apart(const Plan& p, const Training& t) {
  return p.loss_chunks > 1 && !t.serves();
}
Graph part_of_loss(const Model& m, const Plan& p, const Training& t, const Stack& s);

}  // namespace orrery::program
