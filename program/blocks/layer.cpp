// SPDX-License-Identifier: Apache-2.0
//
// One transformer layer.
//
// What the backward pass reads, and so what is kept, in bytes for 16-bit elements and dropout
// (Korthikanti et al. 2022, section 4): x, n1, y, n2 2sbh each and two masks sbh: 10 sbh; qkv, ctx, u, v
// 6+2+8+8 = 24 sbh/t; scores 5 a s^2 b / t. tests/program/memory_test.cpp adds them up.
#include "program/blocks.h"

namespace orrery::program {

Graph transformer_layer(const Model& m, const Plan& p, const Training& t, const Stack& s) {
  Builder g(m, p, t, s, Builder::Part::kLayer);
  const ValueId x = g.input();
  const ValueId y = g.residual("attn", x, attention(g, g.norm("attn/norm", x)), "attn/residual/out", 1);
  return g.finish(g.residual("mlp", y, mlp(g, g.norm("mlp/norm", y)), "out", 2));
}

}  // namespace orrery::program
