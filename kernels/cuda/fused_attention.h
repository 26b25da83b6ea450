// SPDX-License-Identifier: Apache-2.0
//
// Attention by cuDNN's fused kernels (its graph API): 16-bit floats, without caps on scores or dropout on
// them. Plans are made for a shape when a thread first asks for it, on the thread's device; equal inputs give
// equal bits. Built where cuDNN's frontend is; the library is looked for at run time. Internal to
// kernels/cuda.
#pragma once

#include <optional>
#include <string>

#include "kernels/cuda/kernels.h"

namespace orrery::kernels::cuda {

// Of the library that serves attention: "9.19.0"; empty where it is not there.
std::string fused_attention_version();

enum class AttentionPass : std::uint8_t { kForward, kBackward };

// Bytes of scratch memory; nothing where cuDNN is not there, or does not serve the shape.
std::optional<std::size_t> fused_attention_workspace(AttentionPass pass, DType type,
                                                     const reference::AttentionShape& s);

// For shapes that are served. `lse` is fp32 [batch, heads, seq].
void fused_attention(Stream stream, DType type, const reference::AttentionShape& s,
                     reference::AttentionRows<const void*> rows, void* out, float* lse, Workspace workspace);
void fused_attention_grad(Stream stream, DType type, const reference::AttentionShape& s,
                          reference::AttentionRows<const void*> rows, const void* out, const float* lse,
                          const void* d_out, reference::AttentionRows<void*> d_rows, Workspace workspace);

}  // namespace orrery::kernels::cuda
