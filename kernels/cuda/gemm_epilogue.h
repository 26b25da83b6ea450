// SPDX-License-Identifier: Apache-2.0
//
// What is left of an epilogue when the library's product is done: all of it where the library does not have
// it, and of bias gradients their sum with what is there, since libraries write them over it. Internal to
// kernels/cuda, and to what stands for the library on an emulated device.
#pragma once

#include "kernels/cuda/gemm.h"

namespace orrery::kernels::cuda {

// Where the library's product leaves its result, or its bias gradients.
inline void* result_of_product(const GemmShape& s, bool fused, const GemmOperands& o) {
  return s.epilogue == Epilogue::kGelu && !fused ? o.before_gelu : o.c;
}
inline void* sums_of_product(const GemmShape& s, const GemmOperands& o) {
  return s.accumulate ? o.workspace.memory : o.bias_gradient;
}

// `fused`: the library computed the epilogue.
inline void finish_product(Stream stream, const GemmShape& s, bool fused, const GemmOperands& o) {
  switch (s.epilogue) {
    case Epilogue::kNone:
      return;
    case Epilogue::kGelu:
      if (!fused) activation(stream, s.result, s.m, s.n, reference::Act::kGelu, o.before_gelu, o.c);
      return;
    case Epilogue::kGeluGrad:
      if (!fused) activation_grad(stream, s.result, s.m, s.n, reference::Act::kGelu, o.before_gelu, o.c, o.c);
      return;
    case Epilogue::kBiasGrad:
      if (!fused)
        bias_grad(stream, s.operands, s.result, s.k, s.m, o.a, o.bias_gradient, s.accumulate, o.workspace);
      else if (s.accumulate)
        add(stream, s.result, s.m, sums_of_product(s, o), o.bias_gradient);
      return;
  }
}

}  // namespace orrery::kernels::cuda
