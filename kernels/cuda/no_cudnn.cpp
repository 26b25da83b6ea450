// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "kernels/cuda/fused_attention.h"

namespace orrery::kernels::cuda {

std::string fused_attention_version() {
  return {};
}
std::optional<std::size_t> fused_attention_workspace(AttentionPass, DType, const reference::AttentionShape&) {
  return std::nullopt;
}
void fused_attention(Stream, DType, const reference::AttentionShape&, reference::AttentionRows<const void*>,
                     void*, float*, Workspace) {
  throw Error("built without cuDNN");
}
void fused_attention_grad(Stream, DType, const reference::AttentionShape&,
                          reference::AttentionRows<const void*>, const void*, const float*, const void*,
                          reference::AttentionRows<void*>, Workspace) {
  throw Error("built without cuDNN");
}

}  // namespace orrery::kernels::cuda
