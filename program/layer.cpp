// SPDX-License-Identifier: Apache-2.0
//
// One transformer layer as ops. Forward, for tensor ranks t (Megatron's f and g; with sequence
// parallelism the all-reduce becomes reduce-scatter after and all-gather before):
//
//   n1 = norm(x)   qkv = n1 Wqkv'   ctx = attention(rope(qkv))   y = x + sum_t(ctx Wout') + b
//   n2 = norm(y)   u = n2 W1'       v = act(u)                   z = y + sum_t(v W2') + b
//
// What the backward pass reads, and so what is kept, in bytes for 16-bit elements and dropout
// (Korthikanti et al. 2022, section 4): x, n1, y, n2 2sbh each and two masks sbh: 10 sbh; qkv, ctx, u, v
// 6+2+8+8 = 24 sbh/t; scores 5 a s^2 b / t. tests/program/memory_test.cpp adds them up.
#include "program/emitter.h"

namespace orrery::program {

ops::AttentionShape Emitter::attention_shape() const {
  using enum ops::Scores;
  const ops::Scores kept = stack.flash_attention ? kNone : training.drops() ? kSoftmaxAndDropped : kSoftmax;
  return {z.b, z.s, z.heads, z.kv, z.head, kept};
}

ops::RopeShape Emitter::rope_shape() const {
  return {z.tokens, z.qkv, z.heads + z.kv, z.head, z.s, model.rotary.turned(z.head)};
}

void Emitter::attention_forward(const std::string& base, LayerTensors& s) {
  const ops::Attention shape{attention_shape()};
  std::vector<Ref> writes{{s.ctx}};
  if (shape.fused()) {
    s.softmax = activation(base + "/lse", z.b * z.heads * z.s, DType::kFloat32);
  } else {
    // Softmax output; with dropout also its mask and the dropped-out copy.
    s.softmax = activation(base + "/scores", shape.kept_scores());
    if (training.drops()) s.scores_mask = activation(base + "/scores-mask", shape.scores(), DType::kByte);
  }
  writes.push_back({s.softmax});
  if (s.scores_mask >= 0) writes.push_back({s.scores_mask});
  add(shape, base, {{s.qkv}}, std::move(writes));
}

LayerTensors Emitter::layer_forward(std::int64_t layer, const LayerParameters& w, std::int32_t x) {
  layer_ = static_cast<std::int32_t>(layer);
  const auto name = [&](const char* rest) { return layer_name(layer, rest); };
  LayerTensors s;
  s.x = x;
  s.n1 = activation(name("attn/norm/out"), z.rows * z.h);
  norm_op(name("attn/norm"), w.norm1, w.norm1_bias, x, s.n1);
  const std::int32_t g1 = gather_rows(name("attn/qkv/input"), s.n1);

  s.qkv = activation(name("attn/qkv/out"), z.tokens * z.qkv);
  const std::int32_t projected = model.qk_norm ? activation(name("attn/qkv/raw"), z.tokens * z.qkv) : s.qkv;
  std::vector<Ref> reads{{g1}, weight(w.qkv)};
  if (w.qkv_bias >= 0) reads.push_back(weight(w.qkv_bias));
  gemm(name("attn/qkv"), {.m = z.tokens, .n = z.qkv, .k = z.h, .transpose_b = true}, std::move(reads),
       {{projected}});
  if (model.qk_norm) {
    s.qkv_raw = projected;
    add(ops::HeadNorm{z.tokens, z.qkv, z.heads, z.head, z.kv}, name("attn/qk_norm"),
        {{projected}, weight(w.qk_norm)}, {{s.qkv}});
  }
  if (model.positions == Positions::kRotary)
    add(ops::Rope{rope_shape()}, name("attn/rope"), {{s.qkv}}, {{s.qkv}});
  s.ctx = activation(name("attn/core/out"), z.tokens * z.q);
  attention_forward(name("attn/core"), s);

  const std::int32_t o = activation(name("attn/out/partial"), z.tokens * z.h);
  gemm(name("attn/out"), {.m = z.tokens, .n = z.h, .k = z.q, .transpose_b = true}, {{s.ctx}, weight(w.out)},
       {{o}});
  const std::int32_t o_sum = sum_over_tp(name("attn/out"), o, name("attn/out/sum"));

  const auto residual = [&](const char* op_name, std::int32_t from, std::int32_t branch, std::int32_t bias,
                            std::int32_t to, std::int32_t& mask, const char* mask_name, std::int64_t site) {
    std::vector<Ref> in{{from}, {branch}};
    if (bias >= 0) in.push_back(weight(bias));
    std::vector<Ref> out{{to}};
    if (training.drops()) {
      mask = activation(name(mask_name), z.rows * z.h, DType::kByte);
      out.push_back({mask});
    }
    add(ops::Residual{.rows = z.rows,
                      .width = z.h,
                      .site = site,
                      .sequence = z.s,
                      .bias = bias >= 0,
                      .drops = training.drops(),
                      .sharded = z.sp},
        name(op_name), std::move(in), std::move(out));
  };
  s.y = activation(name("attn/residual/out"), z.rows * z.h);
  residual("attn/residual", x, o_sum, w.out_bias, s.y, s.mask1, "attn/dropout-mask", 1);

  s.n2 = activation(name("mlp/norm/out"), z.rows * z.h);
  norm_op(name("mlp/norm"), w.norm2, w.norm2_bias, s.y, s.n2);
  const std::int32_t g2 = gather_rows(name("mlp/fc1/input"), s.n2);
  s.u = activation(name("mlp/fc1/out"), z.tokens * z.fc1);
  reads = {{g2}, weight(w.fc1)};
  if (w.fc1_bias >= 0) reads.push_back(weight(w.fc1_bias));
  s.v = activation(name("mlp/act/out"), z.tokens * z.f);
  ops::Gemm fc1{.m = z.tokens, .n = z.fc1, .k = z.h, .transpose_b = true};
  if (fuses_gelu()) {
    fc1.epilogue = ops::Gemm::Epilogue::kGelu;
    gemm(name("mlp/fc1"), fc1, std::move(reads), {{s.v}, {s.u}});
  } else {
    gemm(name("mlp/fc1"), fc1, std::move(reads), {{s.u}});
    add(ops::Activation{z.tokens, z.f, model.gated()}, name("mlp/act"), {{s.u}}, {{s.v}});
  }
  const std::int32_t r = activation(name("mlp/fc2/partial"), z.tokens * z.h);
  gemm(name("mlp/fc2"), {.m = z.tokens, .n = z.h, .k = z.f, .transpose_b = true}, {{s.v}, weight(w.fc2)},
       {{r}});
  const std::int32_t r_sum = sum_over_tp(name("mlp/fc2"), r, name("mlp/fc2/sum"));
  s.out = activation(name("out"), z.rows * z.h);
  residual("mlp/residual", s.y, r_sum, w.fc2_bias, s.out, s.mask2, "mlp/dropout-mask", 2);
  return s;
}

void Emitter::recompute_attention(std::int64_t layer, LayerTensors& s) {
  layer_ = static_cast<std::int32_t>(layer);
  recomputing_ = true;
  const LayerTensors kept = s;
  // The context is kept (it is the projection's input), so the repeated core writes to scratch.
  s.ctx = activation(layer_name(layer, "attn/core/again"), z.tokens * z.q);
  attention_forward(layer_name(layer, "attn/core"), s);
  s.ctx = kept.ctx;
  recomputing_ = false;
}

void Emitter::layer_backward(std::int64_t layer, const LayerParameters& w, const LayerTensors& s,
                             std::int32_t d_out, std::int32_t d_in, bool split, WeightGradInputs& later) {
  layer_ = static_cast<std::int32_t>(layer);
  const auto name = [&](const char* rest) { return layer_name(layer, rest); };
  // The gradient of a residual branch: masked by dropout, its bias summed, gathered over rows.
  const auto branch = [&](const char* base, std::int32_t d, std::int32_t mask, std::int32_t bias) {
    std::int32_t g = d;
    if (training.drops()) {
      g = activation(name(base) + "/dropped-grad", z.rows * z.h);
      add(ops::DropoutGrad{z.rows, z.h}, name(base) + "/dropout-grad", {{d}, {mask}}, {{g}});
    }
    if (bias >= 0)
      add(ops::BiasGrad{z.rows, z.h}, name(base) + "/bias-grad", {{g}}, {gradient(bias)}).accumulate =
          accumulates();
    return gather_rows(name(base) + "/grad", g);
  };
  // dgrad of a column-parallel layer, its sum over tp, and beside that sum the weight gradient.
  const auto column_grad = [&](const char* base, std::int32_t dy, std::int64_t out, std::int32_t weight_index,
                               std::int32_t bias_index, std::int32_t input, const char* input_name) {
    const std::int32_t whole = split ? -1 : gather_rows(name(input_name), input);
    const std::int32_t dx = activation(name(base) + "/dgrad/partial", z.tokens * z.h);
    gemm(name(base) + "/dgrad", {.m = z.tokens, .n = z.h, .k = out}, {{dy}, weight(weight_index)}, {{dx}});
    const auto weights = [&] {
      if (!split) linear_weight_grad(name(base), weight_index, bias_index, out, z.h, dy, whole);
    };
    if (!stack.overlap_tp) weights();
    const std::int32_t sum = sum_over_tp(name(base) + "/dgrad", dx, name(base) + "/dgrad/sum");
    if (stack.overlap_tp) weights();
    return sum;
  };

  // MLP.
  const std::int32_t dz = branch("mlp/fc2", d_out, s.mask2, w.fc2_bias);
  later.d_out = dz;
  const std::int32_t du = activation(name("mlp/fc1/grad"), z.tokens * z.fc1);
  later.d_u = du;
  const auto fc2_weights = [&] {
    if (!split) linear_weight_grad(name("mlp/fc2"), w.fc2, -1, z.h, z.f, dz, s.v);
  };
  ops::Gemm fc2{.m = z.tokens, .n = z.f, .k = z.h};
  if (fuses_gelu()) {
    fc2.epilogue = ops::Gemm::Epilogue::kGeluGrad;
    gemm(name("mlp/fc2/dgrad"), fc2, {{dz}, weight(w.fc2), {s.u}}, {{du}});
    fc2_weights();
  } else {
    const std::int32_t dv = activation(name("mlp/act/grad"), z.tokens * z.f);
    gemm(name("mlp/fc2/dgrad"), fc2, {{dz}, weight(w.fc2)}, {{dv}});
    fc2_weights();
    add(ops::ActivationGrad{z.tokens, z.f, model.gated()}, name("mlp/act/grad"), {{s.u}, {dv}}, {{du}});
  }
  const std::int32_t dn2 = column_grad("mlp/fc1", du, z.fc1, w.fc1, w.fc1_bias, s.n2, "mlp/fc1/input/again");
  const std::int32_t dy = activation(name("attn/residual/grad"), z.rows * z.h);
  norm_grad(name("mlp/norm/grad"), w.norm2, w.norm2_bias, s.y, dn2, d_out, dy);

  // Attention.
  const std::int32_t dp = branch("attn/out", dy, s.mask1, w.out_bias);
  later.d_proj = dp;
  const std::int32_t dctx = activation(name("attn/core/out-grad"), z.tokens * z.q);
  gemm(name("attn/out/dgrad"), {.m = z.tokens, .n = z.q, .k = z.h}, {{dp}, weight(w.out)}, {{dctx}});
  if (!split) linear_weight_grad(name("attn/out"), w.out, -1, z.h, z.q, dp, s.ctx);
  std::int32_t dqkv = activation(name("attn/qkv/grad"), z.tokens * z.qkv);
  std::vector<Ref> reads{{s.qkv}, {s.ctx}, {s.softmax}, {dctx}};
  if (s.scores_mask >= 0) reads.push_back({s.scores_mask});
  add(ops::AttentionGrad{attention_shape()}, name("attn/core/grad"), std::move(reads), {{dqkv}});
  if (model.positions == Positions::kRotary)
    add(ops::RopeGrad{rope_shape()}, name("attn/rope/grad"), {{dqkv}}, {{dqkv}});
  if (model.qk_norm) {
    const std::int32_t raw = activation(name("attn/qkv/raw-grad"), z.tokens * z.qkv);
    add(ops::HeadNormGrad{z.tokens, z.qkv, z.heads, z.head, z.kv}, name("attn/qk_norm/grad"),
        {{s.qkv_raw}, weight(w.qk_norm), {dqkv}}, {{raw}, gradient(w.qk_norm)})
        .accumulate = accumulates();
    dqkv = raw;
  }
  later.d_qkv = dqkv;
  const std::int32_t dn1 =
      column_grad("attn/qkv", dqkv, z.qkv, w.qkv, w.qkv_bias, s.n1, "attn/qkv/input/again");
  norm_grad(name("attn/norm/grad"), w.norm1, w.norm1_bias, s.x, dn1, dy, d_in);
}

void Emitter::layer_weight_grad(std::int64_t layer, const LayerParameters& w, const LayerTensors& s,
                                const WeightGradInputs& g) {
  layer_ = static_cast<std::int32_t>(layer);
  const auto name = [&](const char* rest) { return layer_name(layer, rest); };
  linear_weight_grad(name("mlp/fc2"), w.fc2, -1, z.h, z.f, g.d_out, s.v);
  linear_weight_grad(name("mlp/fc1"), w.fc1, w.fc1_bias, z.fc1, z.h, g.d_u,
                     gather_rows(name("mlp/fc1/input/again"), s.n2));
  linear_weight_grad(name("attn/out"), w.out, -1, z.h, z.q, g.d_proj, s.ctx);
  linear_weight_grad(name("attn/qkv"), w.qkv, w.qkv_bias, z.qkv, z.h, g.d_qkv,
                     gather_rows(name("attn/qkv/input/again"), s.n1));
}

}  // namespace orrery::program
