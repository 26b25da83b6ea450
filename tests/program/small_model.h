// SPDX-License-Identifier: Apache-2.0
//
// A model whose parameters, FLOPs and bytes are counted by hand.
#pragma once

#include "core/model.h"

namespace orrery::program {

// Two layers of width 64: 4 heads and 2 of keys and values of 16, a gated MLP of 128; 8 tokens a sequence.
inline Model small_llama() {
  Model m = preset_model("tiny-llama");
  m.hidden = 64;
  m.layers = 2;
  m.heads = 4;
  m.kv_heads = 2;
  m.ffn_hidden = 128;
  m.vocab = 256;
  return m;
}

}  // namespace orrery::program
