// SPDX-License-Identifier: Apache-2.0
//
// Two products with an activation between them, gated or not: its width is split over tensor ranks.
//
//   u = x W1' + b     v = act(u)     r = sum over ranks of v W2'
#include "program/blocks.h"

namespace orrery::program {

Branch branch(Builder& g, const std::string& base, const MlpLayer& l, ValueId x) {
  const std::int64_t hidden = g.model.hidden, ffn = l.ffn_hidden;
  const std::vector<std::int64_t> blocks(l.gated() ? 2 : 1, ffn);
  const std::int32_t w1 =
      g.matrix(base + "/fc1/weight", l.fc1_width(), g.columns_of(x), Parameter::Split::kRows, blocks);
  if (l.gated()) g.has_gates(w1);
  const std::int32_t b1 = l.bias ? g.split_vector(base + "/fc1/bias", l.fc1_width(), blocks) : -1;
  using enum AdapterTarget;
  const Builder::AdapterBlocks targets =
      l.gated() ? Builder::AdapterBlocks{kGate, kUp} : Builder::AdapterBlocks{kUp};
  // One product alone gives the gradient behind a fused GELU.
  const bool fuses = !g.adapts(targets) && !g.adapts({kDown}) && g.stack.fused_gelu &&
                     l.activation == Activation::kGelu && !rounds(g.training.math);
  ValueId v;
  if (fuses) {
    v = g.linear_gelu(base + "/fc1", x, w1, b1);
  } else {
    const ValueId u = g.linear(base + "/fc1", x, w1, b1, targets);
    v = g.value(base + "/act/out", ffn, g.placed(Placement::kColumns));
    g.node(base + "/act", ops::Activation{{g.tokens, ffn / g.ranks, l.activation}}, {g.use(u)}, {v});
    if (g.stack.eager_activations && l.gated()) g.keep(base + "/act/gate", v, g.training.activation_type());
  }
  const std::int32_t w2 = g.matrix(base + "/fc2/weight", hidden, ffn, Parameter::Split::kCols);
  return g.last_product(base + "/fc2", v, w2, l.bias, {kDown});
}

}  // namespace orrery::program
