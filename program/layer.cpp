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

// Of the scores, in memory: none with FlashAttention; the softmax; with dropout also what is left of it.
std::int64_t Emitter::score_copies() const {
  return stack.flash_attention ? 0 : training.drops() ? 2 : 1;
}

void Emitter::attention_forward(const std::string& base, LayerTensors& s) {
  const std::int64_t scores = z.b * z.heads * z.s * z.s;
  const bool flash = stack.flash_attention;
  std::vector<Ref> writes{{s.ctx}};
  if (flash) {
    s.softmax = activation(base + "/lse", z.b * z.heads * z.s, DType::kFloat32);
  } else {
    // Softmax output; with dropout also its mask and the dropped-out copy.
    s.softmax = activation(base + "/scores", scores * score_copies());
    if (training.drops()) s.scores_mask = activation(base + "/scores-mask", scores, DType::kByte);
  }
  writes.push_back({s.softmax});
  if (s.scores_mask >= 0) writes.push_back({s.scores_mask});
  Op& o = op(OpKind::kAttention, base, {z.b, z.s, z.heads, z.kv, z.head, score_copies()}, {{s.qkv}},
             std::move(writes));
  const double full = 4.0 * static_cast<double>(scores) * static_cast<double>(z.head);
  o.flops = flash ? 0.5 * full : full;
  const std::int64_t passes = training.drops() ? 8 : 5;  // scores written, softmax, dropout, read
  o.traffic = Bytes{z.tokens * (z.qkv + z.q) * z.beta + (flash ? 0 : passes * scores * z.beta)};
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
  gemm(name("attn/qkv"), z.tokens, z.qkv, z.h, kTransB, std::move(reads), {{projected}});
  if (model.qk_norm) {
    s.qkv_raw = projected;
    elementwise(OpKind::kHeadNorm, name("attn/qk_norm"), {z.tokens, z.qkv, z.heads, z.head, z.kv},
                {{projected}, weight(w.qk_norm)}, {{s.qkv}}, 2 * z.tokens * z.qkv * z.beta);
  }
  if (model.positions == Positions::kRotary) {
    elementwise(OpKind::kRope, name("attn/rope"), {z.tokens, z.qkv, z.heads + z.kv, z.head, z.s, unturned()},
                {{s.qkv}}, {{s.qkv}}, 2 * z.tokens * (z.heads + z.kv) * z.head * z.beta);
  }
  s.ctx = activation(name("attn/core/out"), z.tokens * z.q);
  attention_forward(name("attn/core"), s);

  const std::int32_t o = activation(name("attn/out/partial"), z.tokens * z.h);
  gemm(name("attn/out"), z.tokens, z.h, z.q, kTransB, {{s.ctx}, weight(w.out)}, {{o}});
  const std::int32_t o_sum = sum_over_tp(name("attn/out"), o, name("attn/out/sum"));

  const auto residual = [&](const char* op_name, std::int32_t from, std::int32_t branch, std::int32_t bias,
                            std::int32_t to, std::int32_t& mask, const char* mask_name, std::int64_t which) {
    std::vector<Ref> in{{from}, {branch}};
    if (bias >= 0) in.push_back(weight(bias));
    std::vector<Ref> out{{to}};
    std::int64_t bytes = 3 * z.rows * z.h * z.beta;
    if (training.drops()) {
      mask = activation(name(mask_name), z.rows * z.h, DType::kByte);
      out.push_back({mask});
      bytes += z.rows * z.h;
    }
    elementwise(OpKind::kResidual, name(op_name), {z.rows, z.h, bias >= 0, which, z.s, z.sp}, std::move(in),
                std::move(out), bytes);
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
  if (fuses_gelu()) {
    fuse(gemm(name("mlp/fc1"), z.tokens, z.fc1, z.h, kTransB, std::move(reads), {{s.v}, {s.u}}), kGelu);
  } else {
    gemm(name("mlp/fc1"), z.tokens, z.fc1, z.h, kTransB, std::move(reads), {{s.u}});
    elementwise(OpKind::kActivation, name("mlp/act"), {z.tokens, z.f, model.gated()}, {{s.u}}, {{s.v}},
                z.tokens * (z.fc1 + z.f) * z.beta);
  }
  const std::int32_t r = activation(name("mlp/fc2/partial"), z.tokens * z.h);
  gemm(name("mlp/fc2"), z.tokens, z.h, z.f, kTransB, {{s.v}, weight(w.fc2)}, {{r}});
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
      elementwise(OpKind::kDropoutGrad, name(base) + "/dropout-grad", {z.rows, z.h}, {{d}, {mask}}, {{g}},
                  z.rows * z.h * (2 * z.beta + 1));
    }
    if (bias >= 0) {
      elementwise(OpKind::kBiasGrad, name(base) + "/bias-grad", {z.rows, z.h}, {{g}}, {gradient(bias)},
                  z.rows * z.h * z.beta)
          .flags |= accumulate();
    }
    return gather_rows(name(base) + "/grad", g);
  };
  // dgrad of a column-parallel layer, its sum over tp, and beside that sum the weight gradient.
  const auto column_grad = [&](const char* base, std::int32_t dy, std::int64_t out, std::int32_t weight_index,
                               std::int32_t bias_index, std::int32_t input, const char* input_name) {
    const std::int32_t whole = split ? -1 : gather_rows(name(input_name), input);
    const std::int32_t dx = activation(name(base) + "/dgrad/partial", z.tokens * z.h);
    gemm(name(base) + "/dgrad", z.tokens, z.h, out, 0, {{dy}, weight(weight_index)}, {{dx}});
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
  if (fuses_gelu()) {
    fuse(gemm(name("mlp/fc2/dgrad"), z.tokens, z.f, z.h, 0, {{dz}, weight(w.fc2), {s.u}}, {{du}}), kGeluGrad);
    fc2_weights();
  } else {
    const std::int32_t dv = activation(name("mlp/act/grad"), z.tokens * z.f);
    gemm(name("mlp/fc2/dgrad"), z.tokens, z.f, z.h, 0, {{dz}, weight(w.fc2)}, {{dv}});
    fc2_weights();
    elementwise(OpKind::kActivationGrad, name("mlp/act/grad"), {z.tokens, z.f, model.gated()}, {{s.u}, {dv}},
                {{du}}, z.tokens * (2 * z.fc1 + z.f) * z.beta);
  }
  const std::int32_t dn2 = column_grad("mlp/fc1", du, z.fc1, w.fc1, w.fc1_bias, s.n2, "mlp/fc1/input/again");
  const std::int32_t dy = activation(name("attn/residual/grad"), z.rows * z.h);
  norm_grad(name("mlp/norm/grad"), w.norm2, w.norm2_bias, s.y, dn2, d_out, dy);

  // Attention.
  const std::int32_t dp = branch("attn/out", dy, s.mask1, w.out_bias);
  later.d_proj = dp;
  const std::int32_t dctx = activation(name("attn/core/out-grad"), z.tokens * z.q);
  gemm(name("attn/out/dgrad"), z.tokens, z.q, z.h, 0, {{dp}, weight(w.out)}, {{dctx}});
  if (!split) linear_weight_grad(name("attn/out"), w.out, -1, z.h, z.q, dp, s.ctx);
  std::int32_t dqkv = activation(name("attn/qkv/grad"), z.tokens * z.qkv);
  std::vector<Ref> reads{{s.qkv}, {s.ctx}, {s.softmax}, {dctx}};
  if (s.scores_mask >= 0) reads.push_back({s.scores_mask});
  const bool flash = stack.flash_attention;
  Op& attention = op(OpKind::kAttentionGrad, name("attn/core/grad"),
                     {z.b, z.s, z.heads, z.kv, z.head, score_copies()}, std::move(reads), {{dqkv}});
  const std::int64_t scores = z.b * z.heads * z.s * z.s;
  attention.flops = (flash ? 5.0 : 8.0) * static_cast<double>(scores) * static_cast<double>(z.head);
  attention.traffic = Bytes{z.tokens * (2 * z.qkv + 2 * z.q) * z.beta + (flash ? 0 : 7 * scores * z.beta)};
  if (model.positions == Positions::kRotary) {
    elementwise(OpKind::kRopeGrad, name("attn/rope/grad"),
                {z.tokens, z.qkv, z.heads + z.kv, z.head, z.s, unturned()}, {{dqkv}}, {{dqkv}},
                2 * z.tokens * (z.heads + z.kv) * z.head * z.beta);
  }
  if (model.qk_norm) {
    const std::int32_t raw = activation(name("attn/qkv/raw-grad"), z.tokens * z.qkv);
    elementwise(OpKind::kHeadNormGrad, name("attn/qk_norm/grad"), {z.tokens, z.qkv, z.heads, z.head, z.kv},
                {{s.qkv_raw}, weight(w.qk_norm), {dqkv}}, {{raw}, gradient(w.qk_norm)},
                3 * z.tokens * z.qkv * z.beta)
        .flags |= accumulate();
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
