// SPDX-License-Identifier: Apache-2.0
//
// The kernels that a run uses: matrix products from a BLAS (blas.h), what memory limits from pointwise.h, and
// attention here. Same arguments as reference.h, which has the meaning of each.
#pragma once

#include "kernels/cpu/blas.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

void gemm(const reference::Gemm& g, const float* a, const float* b, const float* bias, float* c);

// FlashAttention's memory: scores exist for one block of queries of one head at a time, in a workspace of the
// thread of at most 2 x 64 x seq floats. Materialised probabilities take the reference's way.
void attention(const reference::AttentionShape& s, const float* qkv, float* out, float* softmax);
void attention_grad(const reference::AttentionShape& s, const float* qkv, const float* out,
                    const float* softmax, const float* d_out, float* d_qkv);

void rope(Index rows, Index width, Index heads, Index head, Index seq, bool inverse, float* x);

}  // namespace orrery::kernels
