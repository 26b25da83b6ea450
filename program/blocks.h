// SPDX-License-Identifier: Apache-2.0
//
// The kinds of blocks that models are made of, as graphs. Internal to program/.
#pragma once

#include "program/builder.h"

namespace orrery::program {

// Branches of a layer: attention and MLP, without the norm before and the sum after.
Branch attention(Builder& g, ValueId x);
Branch mlp(Builder& g, ValueId x);

//   y = x + attention(norm(x))     z = y + mlp(norm(y))
Graph transformer_layer(const Model& m, const Plan& p, const Training& t, const Stack& s);

// The model's ends. Ports of the embedding: tokens. Ports of the head: its input, targets, the loss. The
// embedding's weight, its positions, the head's norm and its weight are a piece each.
Graph embedding(const Model& m, const Plan& p, const Training& t, const Stack& s);
Graph head(const Model& m, const Plan& p, const Training& t, const Stack& s);

}  // namespace orrery::program
