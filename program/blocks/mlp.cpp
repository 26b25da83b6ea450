// SPDX-License-Identifier: Apache-2.0
//
// Two products with an activation between them, gated or not: its width is split over tensor ranks.
//
//   u = x W1' + b     v = act(u)     r = sum over ranks of v W2'
#include "program/blocks.h"

namespace orrery::program {

Branch mlp(Builder& g, ValueId x) {
  const Model& m = g.model;
  const std::vector<std::int64_t> blocks(m.gated() ? 2 : 1, m.ffn());
  const std::int32_t w1 =
      g.matrix("mlp/fc1/weight", m.fc1_width(), m.hidden, Parameter::Split::kRows, blocks);
  const std::int32_t b1 = m.bias ? g.split_vector("mlp/fc1/bias", m.fc1_width(), blocks) : -1;
  const bool fuses = g.stack.fused_gelu && m.activation == Activation::kGelu && g.training.math != Math::kFp8;
  ValueId v;
  if (fuses) {
    v = g.linear_gelu("mlp/fc1", x, w1, b1);
  } else {
    const ValueId u = g.linear("mlp/fc1", x, w1, b1);
    v = g.value("mlp/act/out", m.ffn(), g.placed(Placement::kColumns));
    g.node("mlp/act", ops::Activation{{g.tokens, m.ffn() / g.ranks, m.gated()}}, {g.use(u)}, {v});
  }
  const std::int32_t w2 = g.matrix("mlp/fc2/weight", m.hidden, m.ffn(), Parameter::Split::kCols);
  const std::int32_t b2 = m.bias ? g.vector("mlp/fc2/bias", m.hidden, Parameter::Init::kZeros) : -1;
  return {g.linear("mlp/fc2", v, w2), b2};
}

}  // namespace orrery::program
