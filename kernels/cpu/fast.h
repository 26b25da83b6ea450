// SPDX-License-Identifier: Apache-2.0
//
// The kernels that a run uses: matrix products from a BLAS (blas.h), what memory limits from pointwise.h, and
// attention here. Same arguments as reference.h, which has the meaning of each.
#pragma once

#include "core/dtype.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

void gemm(const reference::Gemm& g, const float* a, const float* b, const float* bias, float* c);

// FlashAttention's memory: scores exist for one block of queries of one head at a time, in a workspace of the
// thread of at most 2 x 64 floats for each key. Materialised probabilities take the reference's way.
void attention(const reference::AttentionShape& s, reference::AttentionRows<const float*> rows, float* out,
               float* softmax, std::uint8_t* mask);
void attention_grad(const reference::AttentionShape& s, reference::AttentionRows<const float*> rows,
                    const float* out, const float* softmax, const std::uint8_t* mask, const float* d_out,
                    reference::AttentionRows<float*> d_rows);

void grouped_gemm(const reference::GroupedGemm& g, const float* x, const float* w, const std::int32_t* counts,
                  float* u);
void grouped_gemm_dx(const reference::GroupedGemm& g, const float* du, const float* w,
                     const std::int32_t* counts, float* dx);
void grouped_gemm_dw(const reference::GroupedGemm& g, const float* du, const float* x,
                     const std::int32_t* counts, float* dw);
void expert_activation(Index rows, Index width, reference::Act act, bool weighs_inputs, const float* u,
                       const float* row_weights, float* v);
void expert_activation_grad(Index rows, Index width, reference::Act act, bool weighs_inputs, const float* u,
                            const float* row_weights, const float* dv, float* du, float* d_row_weights);

// As reference::embedding, for elements of any type: rows of `row_bytes`.
void embedding(Index tokens, Index row_bytes, Index first, Index rows, const std::int32_t* ids,
               const void* table, void* y);

// 16-bit floats of `type` to fp32, and back.
void widen(DType type, Index n, const void* x, float* y);
void narrow(DType type, Index n, const float* x, void* y);

// Gradients of parameters. With `accumulate` a call adds one number to each element: the sum over its own
// rows, made first. So a gradient is the sum of its micro-batches' in their order, whoever computed them.
void norm_grad(const reference::NormShape& s, const float* x, const float* w, const float* dy,
               const float* residual, float* dx, float* dw, float* db, bool accumulate);
void head_norm_grad(const reference::HeadNormShape& s, const float* x, const float* w, const float* dy,
                    float* dx, float* dw, bool accumulate);
void bias_grad(Index rows, Index width, const float* dy, float* db, bool accumulate);
void embedding_grad(Index tokens, Index width, Index first, Index rows, const std::int32_t* ids,
                    const float* dy, float* d_table, bool accumulate);
void positions_grad(const reference::PositionsShape& s, Index table_rows, const float* dy, float* d_table,
                    bool accumulate);

}  // namespace orrery::kernels
