// SPDX-License-Identifier: Apache-2.0
//
// The kernels that memory limits, compiled for several instruction sets; the best the processor has is taken
// at run time. Same meaning and arguments as in reference.h. Every element is computed by the same operations
// wherever it stands in its array, and sums over a row run in sixteen interleaved lanes whatever the
// instruction set: shards of any size give the bits of the whole.
#pragma once

#include "kernels/cpu/reference.h"

namespace orrery::kernels {

struct Pointwise {
  const char* isa;
  void (*norm)(const reference::NormShape& s, const float* x, const float* w, const float* b, float* y);
  void (*norm_grad)(const reference::NormShape& s, const float* x, const float* w, const float* dy,
                    const float* residual, float* dx, float* dw, float* db, bool accumulate);
  void (*rope)(const reference::RopeShape& s, const float* cosine, const float* sine, float* x);
  void (*activation)(Index rows, Index width, reference::Act act, const float* u, float* v);
  void (*activation_grad)(Index rows, Index width, reference::Act act, const float* u, const float* dv,
                          float* du);
  // These three may write over what they read.
  void (*scale)(Index n, float factor, const float* x, float* y);
  void (*soft_cap)(Index n, float cap, const float* x, float* y);
  void (*soft_cap_grad)(Index n, float cap, const float* y, const float* dy, float* dx);
  void (*residual)(Index rows, Index width, const float* x, const float* branch, const float* bias, float* y);
  void (*bias_grad)(Index rows, Index width, const float* dy, float* db, bool accumulate);
  void (*loss_statistics)(const reference::LossShape& s, const float* logits, const std::int32_t* targets,
                          float* statistics);
  // May write over what it reads.
  void (*loss_grad)(const reference::LossShape& s, const float* logits, const float* normalizers,
                    const std::int32_t* targets, float scale, float* d_logits);
  void (*adam)(const reference::Adam& a, Index n, const float* gradient, float* parameter, float* m,
               float* v);
  void (*adam_update)(const reference::Adam& a, Index n, const float* gradient, const float* parameter,
                      const float* m, const float* v, float* update);
  void (*sgd)(const reference::Sgd& s, Index n, const float* gradient, float* parameter, float* velocity);
  void (*add)(Index n, const float* x, float* sum);

  // 16-bit floats as bits, to fp32 and back (reference.h).
  void (*from_bfloat16)(Index n, const std::uint16_t* x, float* y);
  void (*from_float16)(Index n, const std::uint16_t* x, float* y);
  void (*to_bfloat16)(Index n, const float* x, std::uint16_t* y);
  void (*to_float16)(Index n, const float* x, std::uint16_t* y);

  // Adds the squares of x to the bins of an exact sum (reference.h).
  void (*add_squares)(Index n, const float* x, double* bins);

  // Of one row of scores in place: exp(x - largest), zero from `valid` to `width`; returns their sum.
  float (*softmax_row)(Index valid, Index width, float* x, float* largest);
  // Probabilities exp(x - lse), zero from `valid` on.
  void (*probabilities_row)(Index valid, Index width, float lse, float* x);
  // d_score = p (d_p - d) scale, over d_p.
  void (*score_grad_row)(Index width, float d, float scale, const float* p, float* d_p);
  void (*scale_row)(Index width, float factor, float* x);
  float (*dot)(Index n, const float* a, const float* b);
};

const Pointwise& pointwise();

}  // namespace orrery::kernels
