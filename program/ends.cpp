// SPDX-License-Identifier: Apache-2.0
//
// The two ends of the model: vocabulary-parallel embedding, and head with cross-entropy. A tensor rank
// holds V/t rows of the embedding; looking up a token of another rank gives zeros, and the sum over
// ranks is the lookup. The loss needs the maximum, the sum of exponentials and the target's logit over
// all ranks: three small all-reduces instead of gathering logits.
#include "program/emitter.h"

namespace orrery::program {

std::int32_t Emitter::embedding_forward(std::int32_t weight_index, std::int32_t positions) {
  layer_ = -1;
  std::int32_t x = activation("embedding/out", z.tokens * z.h);
  add(ops::Embedding{z.tokens, z.h, z.vocab, model.vocab}, "embedding",
      {{tokens_buffer}, weight(weight_index)}, {{x}});
  x = sum_over_tp("embedding", x, "embedding/sum");
  if (positions >= 0) {
    add(ops::Positions{z.rows, z.h, z.s, model.max_positions, z.sp}, "embedding/positions",
        {{x}, weight(positions)}, {{x}});
  }
  return x;
}

void Emitter::embedding_backward(std::int32_t weight_index, std::int32_t positions, std::int32_t d_x) {
  layer_ = -1;
  if (positions >= 0) {
    add(ops::PositionsGrad{z.rows, z.h, z.s, model.max_positions, z.sp}, "embedding/positions/grad", {{d_x}},
        {gradient(positions)})
        .accumulate = accumulates();
  }
  const std::int32_t whole = gather_rows("embedding/grad", d_x);
  add(ops::EmbeddingGrad{z.tokens, z.h, z.vocab, model.vocab}, "embedding/grad", {{tokens_buffer}, {whole}},
      {gradient(weight_index)})
      .accumulate = accumulates();
}

Emitter::HeadTensors Emitter::head_forward(const HeadParameters& w, std::int32_t x) {
  layer_ = -1;
  HeadTensors s;
  s.x = x;
  s.n = activation("head/norm/out", z.rows * z.h);
  norm_op("head/norm", w.norm, w.norm_bias, x, s.n);
  const std::int32_t g = gather_rows("head/input", s.n);
  const std::int32_t logits = activation("head/logits", z.tokens * z.vocab);
  gemm("head", {.m = z.tokens, .n = z.vocab, .k = z.h, .transpose_b = true}, {{g}, weight(w.weight)},
       {{logits}});

  const DType kept = stack.fp32_logits ? DType::kFloat32 : training.activation_type();
  s.probabilities = activation("head/probabilities", z.tokens * z.vocab, kept);
  const std::int32_t largest = activation("head/max", z.tokens, DType::kFloat32);
  const std::int32_t sums = activation("head/sums", 2 * z.tokens, DType::kFloat32);
  const auto over_tp = [&](CollectiveKind kind, const char* name, std::int32_t buffer,
                           std::int64_t elements) {
    if (z.t > 1) collective({kind, elements}, name, tp_, 4, {{buffer}}, {{buffer}});
  };
  add(ops::LossMax{logits_shape()}, "loss/max", {{logits}}, {{largest}});
  over_tp(CollectiveKind::kAllReduceMax, "loss/max/all-reduce", largest, z.tokens);
  add(ops::LossSum{logits_shape()}, "loss/sum", {{logits}, {largest}, {targets_buffer}},
      {{s.probabilities}, {sums}});
  over_tp(CollectiveKind::kAllReduce, "loss/sum/all-reduce", sums, 2 * z.tokens);
  add(ops::Loss{logits_shape()}, "loss", {{s.probabilities}, {sums}}, {{s.probabilities}, {loss_buffer}});
  return s;
}

std::int32_t Emitter::head_backward(const HeadParameters& w, const HeadTensors& s, bool split,
                                    std::int32_t& d_logits) {
  layer_ = -1;
  d_logits = activation("head/logits-grad", z.tokens * z.vocab);
  add(ops::LossGrad{logits_shape()}, "loss/grad", {{s.probabilities}, {targets_buffer}}, {{d_logits}});
  const std::int32_t dn = activation("head/dgrad/partial", z.tokens * z.h);
  const std::int32_t whole = split ? -1 : gather_rows("head/input/again", s.n);
  gemm("head/dgrad", {.m = z.tokens, .n = z.h, .k = z.vocab}, {{d_logits}, weight(w.weight)}, {{dn}});
  const std::int32_t sum = sum_over_tp("head/dgrad", dn, "head/dgrad/sum");
  if (!split) linear_weight_grad("head", w.weight, -1, z.vocab, z.h, d_logits, whole);
  const std::int32_t d_x = activation("head/norm/input-grad", z.rows * z.h);
  norm_grad("head/norm/grad", w.norm, w.norm_bias, s.x, sum, -1, d_x);
  return d_x;
}

void Emitter::head_weight_grad(const HeadParameters& w, const HeadTensors& s, std::int32_t d_logits) {
  layer_ = -1;
  linear_weight_grad("head", w.weight, -1, z.vocab, z.h, d_logits, gather_rows("head/input/again", s.n));
}

}  // namespace orrery::program
