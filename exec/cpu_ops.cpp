// SPDX-License-Identifier: Apache-2.0
#include "exec/cpu_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <variant>

#include "core/error.h"
#include "exec/gradient_norm.h"
#include "exec/op_shapes.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/muon.h"
#include "kernels/cpu/nf4.h"

namespace orrery::exec {
namespace ref = kernels::reference;
namespace ops = program::ops;

namespace {

const std::int32_t* ids(const float* p) {
  return reinterpret_cast<const std::int32_t*>(p);
}

std::int32_t* ids(float* p) {
  return reinterpret_cast<std::int32_t*>(p);
}

std::uint8_t* mask(float* p) {
  return reinterpret_cast<std::uint8_t*>(p);
}
const std::uint8_t* mask(const float* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}
double* doubles(float* p) {
  return reinterpret_cast<double*>(p);
}
const double* doubles(const float* p) {
  return reinterpret_cast<const double*>(p);
}

// State of an optimizer: {velocity}, {m, v}, or {master copy, m, v}, of which all but the velocity may be
// narrower than fp32.
struct AdamState {
  AdamState(const OpArguments& a, std::int64_t elements, float* parameter, float* state)
      : has_master(bytes_per_parameter(a.precision).master > 0),
        weights(has_master ? state : parameter),
        m(has_master ? state + elements : state),
        v(m + elements) {}
  bool has_master;
  float *weights, *m, *v;  // where all of it is in fp32
};

// State that is narrower than fp32 is made wide some blocks at a time, and narrow again.
// `step(weights, m, v, first, n)` moves elements [first, first + n), whose state this is.
template <class Step>
void with_wide_state(const OpArguments& a, const MomentLayout& layout, Step step) {
  constexpr std::int64_t kAtATime = 16 * MomentLayout::kBlock;
  const BytesPerParameter per = bytes_per_parameter(a.precision);
  auto* const state = reinterpret_cast<std::byte*>(a.out[1]);
  std::byte* const moments = state + layout.elements() * per.master;
  auto* const beside = per.splits_master() ? reinterpret_cast<std::int16_t*>(state) : nullptr;
  float* const whole = per.master > 0 && beside == nullptr ? a.out[1] : a.out[0];
  std::array<float, kAtATime> w, m, v;
  for (std::int64_t at = 0; at < layout.elements(); at += kAtATime) {
    const std::int64_t n = std::min(kAtATime, layout.elements() - at);
    if (beside != nullptr) kernels::join_master(n, a.in[1] + at, beside + at, w.data());
    kernels::widen_moments(layout, 0, moments, at, n, m.data());
    kernels::widen_moments(layout, 1, moments, at, n, v.data());
    step(beside != nullptr ? w.data() : whole + at, m.data(), v.data(), at, n);
    kernels::narrow_moments(layout, 0, m.data(), at, n, moments);
    kernels::narrow_moments(layout, 1, v.data(), at, n, moments);
    if (beside != nullptr) kernels::part_master(n, w.data(), a.out[0] + at, beside + at);
  }
}

// Parameters are rounded from the master copy. With LAMB and LARS each tensor has a learning rate of its own.
// Padding behind the last tensor is zero, and an update leaves it zero.
void run(const ops::Optimizer& op, const OpArguments& a) {
  const std::int64_t n = op.elements;
  const auto* norm = reinterpret_cast<const GradientNorm*>(op.by_tensor ? a.in[4] : a.in[3]);
  if (norm != nullptr && norm->overflowed != 0) return;
  const kernels::Pointwise& fast = kernels::pointwise();
  ref::Adam adam = a.adam;
  if (norm != nullptr) adam.scale = norm->factor;
  const bool sgd = a.precision == Precision::kSgd;
  const BytesPerParameter per = bytes_per_parameter(a.precision);
  const AdamState s(a, n, a.out[0], a.out[1]);
  const MomentLayout layout = per.moments_of(n);
  // Elements [first, first + count), whose weights and moments begin at w, m and v.
  const auto run = [&](float rate, bool decays, double sign_rate, std::int64_t first, std::int64_t count,
                       float* w, float* m, float* v) {
    if (sign_rate > 0)
      return ref::step_by_sign(static_cast<float>(sign_rate), count, a.in[0] + first,
                               sgd ? a.out[0] + first : w);
    if (sgd)
      return fast.sgd({adam.lr, adam.beta1, adam.scale}, count, a.in[0] + first, a.out[0] + first,
                      a.out[1] + first);
    adam.lr = rate;
    adam.decay = decays ? a.adam.decay : 0;
    fast.adam(adam, count, a.in[0] + first, w, m, v);
  };
  if (op.by_tensor) {
    for (const TensorPart& part : a.parts) {
      const float ratio = a.in[3][part.tensor];
      if (sgd && part.sign_rate == 0)
        ref::lars({adam.lr, adam.beta1, part.decays ? a.adam.decay : 0, a.trust, ratio, adam.scale},
                  part.count, a.in[0] + part.first, a.out[0] + part.first, a.out[1] + part.first);
      else
        run(a.adam.lr * ratio, part.decays, part.sign_rate, part.first, part.count, s.weights + part.first,
            s.m + part.first, s.v + part.first);
    }
  } else if (layout.value_bytes() == 4) {
    for (const UpdateRange& r : a.update_ranges)
      run(a.adam.lr, r.decays, r.sign_rate, r.first, r.count, s.weights + r.first, s.m + r.first,
          s.v + r.first);
  } else {
    with_wide_state(a, layout, [&](float* w, float* m, float* v, std::int64_t at, std::int64_t count) {
      for (const UpdateRange& r : a.update_ranges) {
        const std::int64_t first = std::max(r.first, at), end = std::min(r.first + r.count, at + count);
        if (first < end)
          run(a.adam.lr, r.decays, r.sign_rate, first, end - first, w + (first - at), m + (first - at),
              v + (first - at));
      }
    });
  }
  if (sgd || per.splits_master()) return;
  if (s.has_master) std::copy_n(s.weights, n, a.out[0]);
  if (a.rounding.on) kernels::round_to_bfloat16(a.rounding, adam.step, n, a.out[0]);
}

void run(const ops::TrustSquares& op, const OpArguments& a) {
  const auto* norm = reinterpret_cast<const GradientNorm*>(a.in[3]);
  if (norm != nullptr && norm->overflowed != 0) return;
  const kernels::Pointwise& fast = kernels::pointwise();
  ref::Adam adam = a.adam;
  if (norm != nullptr) adam.scale = norm->factor;
  const AdamState s(a, op.elements, const_cast<float*>(a.in[1]), const_cast<float*>(a.in[2]));
  std::array<float, 4096> by;
  for (const TensorPart& part : a.parts) {
    if (part.sign_rate > 0) continue;
    adam.decay = part.decays ? a.adam.decay : 0;
    double* const bins = doubles(a.out[0]) + part.tensor * program::kTrustBins;
    if (op.of_gradient) {
      fast.add_squares(part.count, a.in[1] + part.first, bins);
      for (std::int64_t at = part.first, end = at + part.count; at < end; at += std::ssize(by)) {
        const std::int64_t count = std::min(end - at, std::ssize(by));
        for (std::int64_t i = 0; i < count; ++i)
          by[static_cast<std::size_t>(i)] = a.in[0][at + i] * adam.scale;
        fast.add_squares(count, by.data(), bins + program::kNormBins);
      }
      continue;
    }
    fast.add_squares(part.count, s.weights + part.first, bins);
    for (std::int64_t at = part.first, end = at + part.count; at < end; at += std::ssize(by)) {
      const std::int64_t count = std::min(end - at, std::ssize(by));
      fast.adam_update(adam, count, a.in[0] + at, s.weights + at, s.m + at, s.v + at, by.data());
      fast.add_squares(count, by.data(), bins + program::kNormBins);
    }
  }
}

// Padding behind the last matrix is zero, and stays zero.
void run(const ops::MuonMomentum& op, const OpArguments& a) {
  const auto* norm = reinterpret_cast<const GradientNorm*>(a.in[2]);
  if (norm != nullptr && norm->overflowed != 0) return;
  const AdamState s(a, op.elements, nullptr, a.out[1]);
  kernels::muon_momentum(*a.muon, norm != nullptr ? norm->factor : 1.0F, op.elements, a.in[0], s.m, a.out[0]);
}

void to_floats(DType type, std::int64_t n, const std::byte* from, float* to) {
  if (is_half(type))
    kernels::widen(type, n, from, to);
  else
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}
void from_floats(DType type, std::int64_t n, const float* from, std::byte* to) {
  if (is_half(type))
    kernels::narrow(type, n, from, to);
  else
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}

// U is in memory as it is stored.
void run(const ops::Orthogonalise& op, const OpArguments& a) {
  thread_local std::vector<float> matrix, scratch;
  const auto size = static_cast<std::int64_t>(bytes_of(a.type));
  const auto* const from = reinterpret_cast<const std::byte*>(a.in[0]);
  auto* const to = reinterpret_cast<std::byte*>(a.out[0]);
  const float factor = muon_factor(*a.muon, op);
  matrix.resize(static_cast<std::size_t>(op.rows * op.columns));
  for (const MuonMatrix& m : a.matrices) {
    for (const RowCopy& part : m.load) {
      for (std::int64_t r = 0; r < part.rows; ++r) {
        to_floats(a.type, part.width, from + (part.from + r * part.from_stride) * size,
                  matrix.data() + part.to + r * part.to_stride);
      }
    }
    kernels::orthogonalise(op.rows, op.columns, op.iterations, a.type, matrix.data(), scratch);
    for (float& x : matrix) x *= factor;
    for (std::int64_t r = 0; r < m.store.rows; ++r) {
      from_floats(a.type, m.store.width, matrix.data() + m.store.from + r * m.store.from_stride,
                  to + (m.store.to + r * m.store.to_stride) * size);
    }
  }
}

void run(const ops::MuonUpdate& op, const OpArguments& a) {
  const auto* norm = reinterpret_cast<const GradientNorm*>(a.in[3]);
  if (norm != nullptr && norm->overflowed != 0) return;
  const AdamState s(a, op.elements, a.out[0], a.out[1]);
  kernels::muon_update(a.adam.lr, a.adam.decay, op.elements, a.in[0], s.weights);
  if (s.has_master) std::copy_n(s.weights, op.elements, a.out[0]);
}

void run(const ops::Gemm& op, const OpArguments& a) {
  using enum ops::Gemm::Epilogue;
  const ref::Gemm shape{.m = op.m,
                        .n = op.n,
                        .k = op.k,
                        .transpose_a = op.transpose_a,
                        .transpose_b = op.transpose_b,
                        .accumulate = a.op.accumulate};
  const kernels::Pointwise& fast = kernels::pointwise();
  switch (op.epilogue) {
    case kPlain:
      return kernels::gemm(shape, a.in[0], a.in[1], a.in[2], a.out[0]);
    case kGelu:
      kernels::gemm(shape, a.in[0], a.in[1], a.in[2], a.out[1]);
      return fast.activation(op.m, op.n, ref::Act::kGelu, a.out[1], a.out[0]);
    case kBiasGrad:  // A is stored turned over
      kernels::gemm(shape, a.in[0], a.in[1], nullptr, a.out[0]);
      return kernels::bias_grad(op.k, op.m, a.in[0], a.out[1], a.op.accumulate);
    case kGeluGrad: {
      kernels::gemm(shape, a.in[0], a.in[1], nullptr, a.out[0]);
      // In place, over a copy of a part: the kernel's operands do not overlap.
      std::array<float, 4096> part;
      for (std::int64_t first = 0, all = op.m * op.n; first < all; first += std::ssize(part)) {
        const std::int64_t count = std::min(all - first, std::ssize(part));
        std::copy_n(a.out[0] + first, count, part.begin());
        fast.activation_grad(1, count, ref::Act::kGelu, a.in[2] + first, part.data(), a.out[0] + first);
      }
      return;
    }
  }
}

void run(const ops::AdapterProduct& op, const OpArguments& a) {
  const bool forward = op.of == ops::AdapterProduct::Of::kResult;
  const float* const left = forward ? a.in[1] : a.in[0];
  const float* const right = forward ? a.in[2] : a.in[1];
  for (const AdapterPart& p : adapter_parts(op, a.op.accumulate)) {
    kernels::multiply({.m = p.m,
                       .n = p.n,
                       .k = p.k,
                       .transpose_a = p.transpose_a,
                       .transpose_b = p.transpose_b,
                       .alpha = static_cast<float>(op.scale),
                       .beta = p.adds ? 1.0F : 0.0F,
                       .lda = p.lda,
                       .ldb = p.ldb,
                       .ldc = p.ldc},
                      left + p.a, right + p.b, a.out[0] + p.c);
  }
}

void run(const ops::Embedding& op, const OpArguments& a) {
  const auto row_bytes = op.width * static_cast<std::int64_t>(bytes_of(a.type));
  kernels::embedding(op.tokens, row_bytes, a.at.tp * op.rows, op.rows, ids(a.in[0]), a.in[1], a.out[0]);
}
void run(const ops::EmbeddingGrad& op, const OpArguments& a) {
  kernels::embedding_grad(op.tokens, op.width, a.at.tp * op.rows, op.rows, ids(a.in[0]), a.in[1], a.out[0],
                          a.op.accumulate);
}
void run(const ops::Positions& op, const OpArguments& a) {
  ref::positions(positions_shape(op, a.at, a.cached), a.in[1], a.out[0]);
}
void run(const ops::PositionsGrad& op, const OpArguments& a) {
  kernels::positions_grad(positions_shape(op, a.at), op.table, a.in[0], a.out[0], a.op.accumulate);
}

void run(const ops::Bags& op, const OpArguments& a) {
  ref::bags(bags_shape(op, a.at.tp), ids(a.in[0]), a.in[1], a.out[0]);
}
void run(const ops::BagsGrad& op, const OpArguments& a) {
  ref::bags_grad(bags_shape(op, a.at.tp), ids(a.in[0]), a.in[1], a.out[0], a.op.accumulate);
}
void run(const ops::PairLoss& op, const OpArguments& a) {
  *doubles(a.out[1]) += ref::pair_loss(op.batch, op.width, a.in[0], a.in[1], ids(a.in[2]), a.out[0]);
}
void run(const ops::PairLossGrad& op, const OpArguments& a) {
  ref::pair_loss_grad(op.batch, op.width, a.in[0], a.in[1], ids(a.in[2]), a.in[3],
                      static_cast<float>(a.token_weight * a.loss_scale), a.out[0], a.out[1]);
}
void run(const ops::Patches& op, const OpArguments& a) {
  ref::patches(patches_shape(op), a.at.tp == 0, a.in[0], a.in[1], a.in[2], a.out[0]);
}
void run(const ops::PatchesGrad& op, const OpArguments& a) {
  ref::patches_grad(patches_shape(op), a.in[0], a.out[0], a.out[1], a.out[2], a.op.accumulate);
}
void run(const ops::Pool& op, const OpArguments& a) {
  ref::pool(pool_shape(op, a.at.tp), a.in[0], a.out[0]);
}
void run(const ops::PoolGrad& op, const OpArguments& a) {
  ref::pool_grad(pool_shape(op, a.at.tp), a.in[0], a.out[0]);
}

void run(const ops::Norm& op, const OpArguments& a) {
  kernels::pointwise().norm(norm_shape(op, a.model), a.in[0], a.in[1], op.bias ? a.in[2] : nullptr, a.out[0]);
}
void run(const ops::NormGrad& op, const OpArguments& a) {
  kernels::norm_grad(norm_shape(op, a.model), a.in[0], a.in[1], a.in[2], a.in[3], a.out[0], a.out[1],
                     a.out[2], a.op.accumulate);
}
void run(const ops::HeadNorm& op, const OpArguments& a) {
  ref::head_norm(head_norm_shape(op, a.model), a.in[0], op.weighted ? a.in[1] : nullptr, a.out[0]);
}
void run(const ops::HeadNormGrad& op, const OpArguments& a) {
  kernels::head_norm_grad(head_norm_shape(op, a.model), a.in[0], op.weighted ? a.in[2] : nullptr, a.in[1],
                          a.out[0], op.weighted ? a.out[1] : nullptr, a.op.accumulate);
}
void turn(const ref::RopeShape& shape, std::int64_t table, const OpArguments& a) {
  const RotaryTables& of = a.rotary[static_cast<std::size_t>(table)];
  kernels::pointwise().rope(shape, of.cosine.data(), of.sine.data(), a.out[0]);
}
void run(const ops::Rope& op, const OpArguments& a) {
  turn(rope_shape(op, a.at, false, a.cached), op.table, a);
}
void run(const ops::RopeGrad& op, const OpArguments& a) {
  turn(rope_shape(op, a.at, true), op.table, a);
}
void run(const ops::LatentPack& op, const OpArguments& a) {
  ref::latent_pack(latent_shape(op), a.in[0], a.in[1], a.in[2], a.out[0]);
}
void run(const ops::LatentPackGrad& op, const OpArguments& a) {
  ref::latent_pack_grad(latent_shape(op), a.in[0], a.out[0], a.out[1], a.out[2]);
}
// Of sequences that are packed from documents, the operand that says where these begin.
template <class Shape>
const std::int32_t* documents(const Shape& op, const OpArguments& a, std::size_t operand) {
  return op.of_documents() ? ids(a.in[operand]) : nullptr;
}
void run(const ops::Attention& op, const OpArguments& a) {
  kernels::attention(attention_shape(op, a.at.tp, a.dropout, documents(op, a, 1)), a.in[0], a.out[0],
                     a.out[1], mask(a.out[2]));
}
void run(const ops::AttentionGrad& op, const OpArguments& a) {
  kernels::attention_grad(attention_shape(op, a.at.tp, a.dropout, documents(op, a, op.drops() ? 5 : 4)),
                          a.in[0], a.in[1], a.in[2], mask(op.drops() ? a.in[4] : nullptr), a.in[3], a.out[0]);
}
void run(const ops::CrossAttention& op, const OpArguments& a) {
  kernels::attention(attention_shape(op, a.at.tp, a.dropout), {a.in[0], a.in[1]}, a.out[0], a.out[1],
                     mask(a.out[2]));
}
void run(const ops::CrossAttentionGrad& op, const OpArguments& a) {
  kernels::attention_grad(attention_shape(op, a.at.tp, a.dropout), {a.in[0], a.in[1]}, a.in[2], a.in[3],
                          mask(a.in[5]), a.in[4], {a.out[0], a.out[1]});
}
void run(const ops::AttentionSink& op, const OpArguments& a) {
  ref::attention_sink(sink_shape(op), a.in[2], a.out[0], a.out[1]);
}
void run(const ops::AttentionSinkGrad& op, const OpArguments& a) {
  ref::attention_sink_grad(sink_shape(op), a.in[2], a.in[0], a.in[1], a.in[3], a.out[0], a.op.accumulate);
}
void run(const ops::CachedAttention& op, const OpArguments& a) {
  ref::cached_attention(cached_shape(op, a.cached), a.in[0], a.out[2], a.out[0], a.out[1]);
}
void run(const ops::CachedLatentAttention& op, const OpArguments& a) {
  ref::cached_latent_attention(cached_shape(op, a.cached), a.in[0], a.in[1], a.in[2], a.in[3], a.out[2],
                               a.out[0], a.out[1]);
}
void run(const ops::LastTokens& op, const OpArguments& a) {
  ref::last_tokens(op.batch, op.queries, op.width, a.in[0], a.out[0]);
}
void run(const ops::BestLogit& op, const OpArguments& a) {
  ref::best_logit(op.rows, op.columns, a.at.tp * op.columns, op.vocabulary, a.in[0], a.out[0]);
}
void run(const ops::ChooseToken& op, const OpArguments& a) {
  ref::choose_token(op.rows, op.ranks, a.in[0], ids(a.out[0]));
}
void run(const ops::HeadsPack& op, const OpArguments& a) {
  kernels::heads_pack(heads_shape(op), a.in[0], a.out[0], a.out[1]);
}
void run(const ops::HeadsPackGrad& op, const OpArguments& a) {
  kernels::heads_pack_grad(heads_shape(op), a.in[0], a.in[1], a.out[0]);
}
void run(const ops::HeadsUnpack& op, const OpArguments& a) {
  kernels::heads_unpack(heads_shape(op), a.in[0], a.out[0]);
}
void run(const ops::HeadsUnpackGrad& op, const OpArguments& a) {
  kernels::heads_unpack_grad(heads_shape(op), a.in[0], a.out[0]);
}
void run(const ops::ContextAttention& op, const OpArguments& a) {
  kernels::context_attention(context_shape(op, a.at, a.dropout, documents(op, a, op.first() ? 2 : 4)),
                             a.in[0], a.in[1], op.first() ? nullptr : a.in[2], a.out[0], a.out[1]);
}
void run(const ops::ContextAttentionGrad& op, const OpArguments& a) {
  kernels::context_attention_grad(context_shape(op, a.at, a.dropout, documents(op, a, 5)), a.in[0], a.in[1],
                                  a.in[2], a.in[3], a.in[4], a.out[0], a.out[1]);
}
void run(const ops::Activation& op, const OpArguments& a) {
  kernels::pointwise().activation(op.rows, op.width, act_of(op.type), a.in[0], a.out[0]);
}
void run(const ops::ActivationGrad& op, const OpArguments& a) {
  kernels::pointwise().activation_grad(op.rows, op.width, act_of(op.type), a.in[0], a.in[1], a.out[0]);
}
// Losses of routers are scaled as the model's is.
template <class Shape>
Shape scaled(Shape s, float Shape::*factor, const OpArguments& a) {
  s.*factor *= static_cast<float>(a.loss_scale);
  return s;
}
void run(const ops::RouterScores& op, const OpArguments& a) {
  ref::router_scores(router_shape(op, a.at.tp), a.in[0], a.out[0]);
}
void run(const ops::RouterScoresGrad& op, const OpArguments& a) {
  ref::router_scores_grad(scaled(router_shape(op, a.at.tp), &ref::RouterShape::z_loss, a), a.in[0], a.in[1],
                          a.in[2], a.out[0]);
}
void run(const ops::Route& op, const OpArguments& a) {
  const std::int64_t beyond = ref::route(route_shape(op, a.at.tp), a.in[0], a.in[1], a.out[0], ids(a.out[1]),
                                         ids(a.out[2]), a.out[3]);
  if (beyond == 0) return;
  throw Error(
      fmt::format("\"{}\": {} of {} rows are more than the {} that each of {} ranks has room for "
                  "(expert_room)",
                  a.op.name, beyond, op.chosen(), op.room, op.parts));
}
void run(const ops::ChoiceBiasGrad& op, const OpArguments& a) {
  ref::choice_bias_grad(op.samples, op.experts, a.in[0], a.out[0], a.op.accumulate);
}
void run(const ops::RouteGrad& op, const OpArguments& a) {
  ref::route_grad(route_shape(op, a.at.tp), a.in[0], ids(a.in[1]), a.in[2], a.out[0]);
}
void run(const ops::Balance&, const OpArguments&) {}
void run(const ops::BalanceGrad& op, const OpArguments& a) {
  ref::balance_grad(scaled(balance_shape(op, a.at.tp), &ref::BalanceShape::factor, a), a.in[0], a.in[1],
                    a.out[0]);
}
void run(const ops::Permute& op, const OpArguments& a) {
  ref::permute(permute_shape(op), a.in[0], a.in[1], ids(a.in[2]), a.out[0], a.out[1]);
}
void run(const ops::PermuteGrad& op, const OpArguments& a) {
  ref::permute_grad(permute_shape(op), a.in[0], a.in[1], ids(a.in[2]), a.out[0], a.out[1]);
}
void run(const ops::Unpermute& op, const OpArguments& a) {
  ref::unpermute(permute_shape(op), a.in[0], ids(a.in[1]), a.out[0]);
}
void run(const ops::UnpermuteGrad& op, const OpArguments& a) {
  ref::unpermute_grad(permute_shape(op), a.in[0], ids(a.in[1]), a.out[0]);
}
void run(const ops::GroupedGemm& op, const OpArguments& a) {
  const ref::GroupedGemm shape = grouped_gemm(op, a.op.accumulate);
  switch (op.of) {
    case ops::GroupedGemm::Of::kResult:
      return kernels::grouped_gemm(shape, a.in[0], a.in[1], ids(a.in[2]), a.out[0]);
    case ops::GroupedGemm::Of::kInput:
      return kernels::grouped_gemm_dx(shape, a.in[0], a.in[1], ids(a.in[2]), a.out[0]);
    case ops::GroupedGemm::Of::kWeight:
      return kernels::grouped_gemm_dw(shape, a.in[0], a.in[1], ids(a.in[2]), a.out[0]);
  }
}
void run(const ops::ExpertBias& op, const OpArguments& a) {
  ref::expert_bias(expert_bias_shape(op, a.at), a.in[1], ids(a.in[2]), op.weighted ? a.in[3] : nullptr,
                   a.out[0]);
}
void run(const ops::ExpertBiasGrad& op, const OpArguments& a) {
  ref::expert_bias_grad(expert_bias_shape(op, a.at), a.in[0], a.in[1], ids(a.in[2]),
                        op.weighted ? a.in[3] : nullptr, a.out[0], a.out[1], a.op.accumulate);
}
// Calls use(first, rows) for the rows of each part that experts have of a token; the others are room.
template <class Use>
void for_each_part(const ops::ExpertActivationShape& op, const float* counts, Use use) {
  for (std::int64_t part = 0; part < op.parts; ++part) {
    const std::int32_t* const of = ids(counts) + part * op.experts;
    use(part * op.rows / op.parts, std::accumulate(of, of + op.experts, std::int64_t{0}));
  }
}
void run(const ops::ExpertActivation& op, const OpArguments& a) {
  for_each_part(op, a.in[2], [&](std::int64_t first, std::int64_t rows) {
    kernels::expert_activation(rows, op.width, act_of(op.type), op.weighs_inputs,
                               a.in[0] + first * op.columns(), a.in[1] + first, a.out[0] + first * op.width);
  });
}
void run(const ops::ExpertActivationGrad& op, const OpArguments& a) {
  for_each_part(op, a.in[2], [&](std::int64_t first, std::int64_t rows) {
    kernels::expert_activation_grad(
        rows, op.width, act_of(op.type), op.weighs_inputs, a.in[0] + first * op.columns(), a.in[1] + first,
        a.in[3] + first * op.width, a.out[0] + first * op.columns(), a.out[1] + first);
  });
}
void run(const ops::Gate& op, const OpArguments& a) {
  ref::gate(op.rows, op.width, a.in[0], a.in[1], a.out[0]);
}
void run(const ops::GateGrad& op, const OpArguments& a) {
  ref::gate_grad(op.rows, op.width, a.in[0], a.in[1], a.in[2], a.out[0], a.out[1]);
}
// Calls f with the sum of up to two biases, `first` and the operand behind it; null where there are none.
template <class F>
void with_bias(std::int64_t biases, std::size_t first, std::int64_t width, const OpArguments& a, F f) {
  if (biases < 2) return f(biases == 1 ? a.in[first] : nullptr);
  std::vector<float> sum(static_cast<std::size_t>(width));
  kernels::pointwise().residual(1, width, a.in[first], a.in[first + 1], nullptr, sum.data());
  f(sum.data());
}
// Some rows at a time, so that the norm finds what the sum wrote.
void run(const ops::ResidualNorm& op, const OpArguments& a) {
  const kernels::Pointwise& fast = kernels::pointwise();
  constexpr std::int64_t kElements = 8192;
  const std::int64_t most = std::max<std::int64_t>(1, kElements / op.width);
  with_bias(op.biases, op.first_bias(), op.width, a, [&](const float* bias) {
    for (std::int64_t row = 0; row < op.rows; row += most) {
      ref::NormShape some = norm_shape(op, a.model);
      some.rows = std::min(most, op.rows - row);
      const std::int64_t at = row * op.width;
      fast.residual(some.rows, op.width, a.in[0] + at, a.in[1] + at, bias, a.out[0] + at);
      fast.norm(some, a.out[0] + at, a.in[2], op.bias ? a.in[3] : nullptr, a.out[1] + at);
    }
  });
}
void run(const ops::Residual& op, const OpArguments& a) {
  if (a.dropout.probability == 0) {
    return with_bias(op.biases, 2, op.width, a, [&](const float* bias) {
      kernels::pointwise().residual(op.rows, op.width, a.in[0], a.in[1], bias, a.out[0]);
    });
  }
  kernels::dropout_residual(a.dropout, dropped_rows(op, a.at), a.in[0], a.in[1], a.in[2], a.out[0],
                            mask(a.out[1]));
}
void run(const ops::Sum& op, const OpArguments& a) {
  kernels::pointwise().residual(1, op.elements, a.in[0], a.in[1], nullptr, a.out[0]);
}
void run(const ops::Scale& op, const OpArguments& a) {
  kernels::pointwise().scale(op.elements, static_cast<float>(op.factor), a.in[0], a.out[0]);
}
void run(const ops::SoftCap& op, const OpArguments& a) {
  kernels::pointwise().soft_cap(op.elements, static_cast<float>(op.cap), a.in[0], a.out[0]);
}
void run(const ops::SoftCapGrad& op, const OpArguments& a) {
  kernels::pointwise().soft_cap_grad(op.elements, static_cast<float>(op.cap), a.in[0], a.in[1], a.out[0]);
}
void run(const ops::DropoutGrad& op, const OpArguments& a) {
  kernels::dropout_grad(a.dropout, op.rows * op.width, a.in[0], mask(a.in[1]), a.out[0]);
}
void run(const ops::BiasGrad& op, const OpArguments& a) {
  kernels::bias_grad(op.rows, op.width, a.in[0], a.out[0], a.op.accumulate);
}

void run(const ops::LossStatistics& op, const OpArguments& a) {
  kernels::pointwise().loss_statistics(loss_shape(op, a.at.tp), a.in[0], ids(a.in[1]), a.out[0]);
}
void run(const ops::Loss& op, const OpArguments& a) {
  *doubles(a.out[1]) += ref::loss(op.tokens, op.ranks, a.in[0], a.out[0]);
}
void run(const ops::LossGrad& op, const OpArguments& a) {
  kernels::pointwise().loss_grad(
      loss_shape(op, a.at.tp), a.in[0], a.in[2], ids(a.in[1]),
      static_cast<float>(op.weight * static_cast<double>(a.token_weight * a.loss_scale)), a.out[0]);
}

void run(const ops::Dequantise& op, const OpArguments& a) {
  kernels::dequantise(op.layout(), reinterpret_cast<const std::byte*>(a.in[0]), a.out[0]);
}
void run(const ops::ZeroGrad& op, const OpArguments& a) {
  std::memset(a.out[0], 0, static_cast<std::size_t>(op.elements) * bytes_of(a.type));
}
void run(const ops::Accumulate& op, const OpArguments& a) {
  if (a.type != DType::kFloat64) return kernels::pointwise().add(op.elements, a.in[0], a.out[0]);
  for (std::int64_t i = 0; i < op.elements; ++i) doubles(a.out[0])[i] += doubles(a.in[0])[i];
}
void run(const ops::Copy& op, const OpArguments& a) {
  std::memcpy(a.out[0], a.in[0], static_cast<std::size_t>(op.elements * op.element_bytes));
}
void run(const ops::Narrow& op, const OpArguments& a) {  // into an fp32 image
  std::copy_n(a.in[0], op.elements, a.out[0]);
}
void run(const ops::OuterDifference& op, const OpArguments& a) {
  for (std::int64_t i = 0; i < op.elements; ++i) a.out[0][i] = a.in[1][i] - a.in[0][i];
}
void run(const ops::OuterUpdate& op, const OpArguments& a) {
  float* const anchor = a.out[1];
  ref::outer_update(a.outer, op.elements, a.in[0], anchor, op.momentum ? anchor + op.elements : nullptr);
  std::copy_n(anchor, op.elements, a.out[0]);
  if (a.out[2] != nullptr) std::copy_n(anchor, op.elements, a.out[2]);
}
void run(const ops::Handover&, const OpArguments&) {}
void run(const ops::NormSquare&, const OpArguments& a) {
  if (!a.op.accumulate) std::fill_n(doubles(a.out[0]), program::kNormBins, 0.0);
  for (const auto& [first, count] : a.counted)
    kernels::pointwise().add_squares(count, a.in[0] + first, doubles(a.out[0]));
}
void run(const ops::NormFinish&, const OpArguments& a) {
  const double norm = std::sqrt(ref::sum_of_bins(doubles(a.in[0]))) / a.loss_scale;
  const double clipped = a.clip > 0 && norm > a.clip ? static_cast<double>(a.clip) / (norm + 1e-6) : 1.0;
  *reinterpret_cast<GradientNorm*>(a.out[0]) = {norm, static_cast<float>(clipped / a.loss_scale),
                                                !std::isfinite(norm)};
}
void run(const ops::TrustRatio& op, const OpArguments& a) {
  for (std::int64_t t = 0; t < op.tensors; ++t) {
    const double* const bins = doubles(a.in[0]) + t * program::kTrustBins;
    a.out[0][t] = ref::trust_ratio(bins, bins + program::kNormBins);
  }
}

template <program::CommunicationOp T>
void run(const T&, const OpArguments& a) {
  throw std::logic_error(a.op.name + " is communication, not a kernel");
}

}  // namespace

ref::Adam adam_of(const Training& training, const StepConstants& constants) {
  const Optimizer& o = training.optimizer;
  return {constants.learning_rate,       static_cast<float>(o.beta1), static_cast<float>(o.beta2),
          static_cast<float>(o.epsilon), constants.weight_decay,      constants.updates};
}

ref::Outer outer_of(const program::Program& program) {
  const OuterOptimizer& o = program.training.outer.value();
  return {static_cast<float>(o.learning_rate), static_cast<float>(o.momentum),
          1.0F / static_cast<float>(program.plan.islands)};
}

void set_update(OpArguments& a, const Placement& place, std::int64_t unit, const StepConstants& constants) {
  const Training& training = place.program.training;
  a.precision = training.precision;
  a.trust = static_cast<float>(training.optimizer.trust);
  a.adam = adam_of(training, constants);
  a.rounding = place.rounding(a.op, constants.seed);
  a.parts = place.parts(unit);
  a.update_ranges = place.update_ranges(unit);
}

void run_cpu_op(const OpArguments& a) {
  std::visit([&](const auto& op) { run(op, a); }, a.op.kind);
}

}  // namespace orrery::exec
