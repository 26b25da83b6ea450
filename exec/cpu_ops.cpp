// SPDX-License-Identifier: Apache-2.0
#include "exec/cpu_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "exec/gradient_norm.h"
#include "exec/op_shapes.h"
#include "kernels/cpu/fast.h"

namespace orrery::exec {
namespace ref = kernels::reference;
using program::OpKind;

namespace {

const std::int32_t* ids(const float* p) {
  return reinterpret_cast<const std::int32_t*>(p);
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

// State of an optimizer: {velocity}, {m, v}, or {master copy, m, v}.
struct AdamState {
  AdamState(const OpArguments& a, float* parameter, float* state)
      : has_master(bytes_per_parameter(a.precision).master > 0),
        weights(has_master ? state : parameter),
        m(has_master ? state + a.op.dims[0] : state),
        v(m + a.op.dims[0]) {}
  bool has_master;
  float *weights, *m, *v;
};

// Parameters are rounded from the master copy. With LAMB each tensor has a learning rate of its own. Padding
// behind the last tensor is zero, and an update leaves it zero.
void update(const OpArguments& a) {
  const std::int64_t n = a.op.dims[0];
  const bool lamb = a.op.dims[2] != 0;
  const auto* norm = reinterpret_cast<const GradientNorm*>(lamb ? a.in[4] : a.in[3]);
  if (norm != nullptr && norm->overflowed != 0) return;
  const kernels::Pointwise& fast = kernels::pointwise();
  ref::Adam adam = a.adam;
  if (norm != nullptr) adam.scale = norm->factor;
  if (a.precision == Precision::kSgd)
    return fast.sgd({adam.lr, adam.beta1, adam.scale}, n, a.in[0], a.out[0], a.out[1]);
  const AdamState s(a, a.out[0], a.out[1]);
  const auto run = [&](float rate, bool decays, std::int64_t first, std::int64_t count) {
    adam.lr = rate;
    adam.decay = decays ? a.adam.decay : 0;
    fast.adam(adam, count, a.in[0] + first, s.weights + first, s.m + first, s.v + first);
  };
  if (lamb) {
    for (const TensorPart& part : a.parts)
      run(a.adam.lr * a.in[3][part.tensor], part.decays, part.first, part.count);
  } else if (a.adam.decay == 0) {
    run(a.adam.lr, false, 0, n);
  } else {
    for (const DecayRange& range : a.decay_ranges) run(a.adam.lr, range.decays, range.first, range.count);
  }
  if (s.has_master) std::copy_n(s.weights, n, a.out[0]);
  if (a.rounding.on) kernels::round_to_bfloat16(a.rounding, adam.step, n, a.out[0]);
}

void add_trust_squares(const OpArguments& a) {
  const auto* norm = reinterpret_cast<const GradientNorm*>(a.in[3]);
  if (norm != nullptr && norm->overflowed != 0) return;
  const kernels::Pointwise& fast = kernels::pointwise();
  ref::Adam adam = a.adam;
  if (norm != nullptr) adam.scale = norm->factor;
  const AdamState s(a, const_cast<float*>(a.in[1]), const_cast<float*>(a.in[2]));
  std::array<float, 4096> by;
  for (const TensorPart& part : a.parts) {
    adam.decay = part.decays ? a.adam.decay : 0;
    double* const bins = doubles(a.out[0]) + part.tensor * program::kTrustBins;
    fast.add_squares(part.count, s.weights + part.first, bins);
    for (std::int64_t at = part.first, end = at + part.count; at < end; at += std::ssize(by)) {
      const std::int64_t count = std::min(end - at, std::ssize(by));
      fast.adam_update(adam, count, a.in[0] + at, s.weights + at, s.m + at, s.v + at, by.data());
      fast.add_squares(count, by.data(), bins + program::kNormBins);
    }
  }
}

void multiply(const OpArguments& a) {
  const auto& d = a.op.dims;
  const kernels::reference::Gemm shape{.m = d[0],
                                       .n = d[1],
                                       .k = d[2],
                                       .transpose_a = (a.op.flags & program::kTransA) != 0,
                                       .transpose_b = (a.op.flags & program::kTransB) != 0,
                                       .accumulate = (a.op.flags & program::kAccumulateFlag) != 0};
  const kernels::Pointwise& fast = kernels::pointwise();
  if (d[3] == program::kGelu) {
    kernels::gemm(shape, a.in[0], a.in[1], a.in[2], a.out[1]);
    return fast.activation(d[0], d[1], false, a.out[1], a.out[0]);
  }
  if (d[3] == program::kPlain) return kernels::gemm(shape, a.in[0], a.in[1], a.in[2], a.out[0]);
  kernels::gemm(shape, a.in[0], a.in[1], nullptr, a.out[0]);
  // In place, over a copy of a part: the kernel's operands do not overlap.
  std::array<float, 4096> part;
  for (std::int64_t first = 0, all = d[0] * d[1]; first < all; first += std::ssize(part)) {
    const std::int64_t count = std::min(all - first, std::ssize(part));
    std::copy_n(a.out[0] + first, count, part.begin());
    fast.activation_grad(1, count, false, a.in[2] + first, part.data(), a.out[0] + first);
  }
}

}  // namespace

OperandElements operand_elements(const program::Op& op, const Model& model) {
  const auto& d = op.dims;
  const std::int64_t rows = d[0] * d[1];  // of most: [d0, d1]
  switch (op.kind) {
    case OpKind::kGemm:
      return {{d[0] * d[2], d[2] * d[1], d[3] == program::kGeluGrad ? rows : d[1]}, {rows, rows}};
    case OpKind::kEmbeddingGrad:
      return {{0, rows}, {d[3] * d[1]}};
    case OpKind::kPositions:
      return {{rows, model.max_positions * d[1]}, {rows}};
    case OpKind::kPositionsGrad:
      return {{rows}, {model.max_positions * d[1]}};
    case OpKind::kNorm:
      return {{rows, d[1], d[5] * d[1]}, {rows}};
    case OpKind::kNormGrad:
      return {{rows, d[1], rows, d[3] * rows}, {rows, d[1], d[5] * d[1]}};
    case OpKind::kHeadNorm:
      return {{rows, 2 * d[3]}, {rows}};
    case OpKind::kHeadNormGrad:
      return {{rows, 2 * d[3], rows}, {rows, 2 * d[3]}};
    case OpKind::kRope:
    case OpKind::kRopeGrad:
      return {{rows}, {rows}};
    case OpKind::kAttention:
    case OpKind::kAttentionGrad: {
      const std::int64_t tokens = rows, out = tokens * d[2] * d[4], qkv = tokens * (d[2] + 2 * d[3]) * d[4];
      const std::int64_t scores = d[5] * tokens * d[2] * d[1];
      if (op.kind == OpKind::kAttention) return {{qkv}, {out, scores}};
      return {{qkv, out, scores, out}, {qkv}};
    }
    case OpKind::kActivation:
      return {{(1 + d[2]) * rows}, {rows}};
    case OpKind::kActivationGrad:
      return {{(1 + d[2]) * rows, rows}, {(1 + d[2]) * rows}};
    case OpKind::kResidual:
      return {{rows, rows, d[2] * d[1]}, {rows}};
    case OpKind::kDropoutGrad:
      return {{rows}, {rows}};
    case OpKind::kBiasGrad:
      return {{rows}, {d[1]}};
    case OpKind::kLossMax:
      return {{rows}, {}};
    case OpKind::kLossSum:
      return {{rows}, {rows}};
    case OpKind::kLoss:
    case OpKind::kLossGrad:
      return {{rows}, {rows}};
    case OpKind::kAccumulate:
      return {{d[0], d[0]}, {d[0]}};
    case OpKind::kNormSquare:
      return {{d[0]}, {}};
    case OpKind::kTrustSquares:
      return {{d[0], d[0]}, {}};
    case OpKind::kOptimizer:
      return {{d[0], d[0]}, {d[0]}};
    case OpKind::kEmbedding:
    case OpKind::kZeroGrad:
    case OpKind::kNormFinish:
    case OpKind::kTrustRatio:
    case OpKind::kAllReduce:
    case OpKind::kAllReduceMax:
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kSend:
    case OpKind::kRecv:
      return {};
  }
  return {};
}

void run_cpu_op(const OpArguments& a) {
  const auto& d = a.op.dims;
  const auto& in = a.in;
  const auto& out = a.out;
  const bool accumulate = (a.op.flags & program::kAccumulateFlag) != 0;
  const kernels::Pointwise& fast = kernels::pointwise();
  switch (a.op.kind) {
    case OpKind::kGemm:
      return multiply(a);
    case OpKind::kEmbedding:
      return kernels::embedding(d[0], d[1] * static_cast<std::int64_t>(bytes_of(a.type)), a.tp_rank * d[3],
                                d[3], ids(in[0]), in[1], out[0]);
    case OpKind::kEmbeddingGrad:
      return kernels::embedding_grad(d[0], d[1], a.tp_rank * d[3], d[3], ids(in[0]), in[1], out[0],
                                     accumulate);
    case OpKind::kPositions:
      return ref::positions(d[0], d[1], d[2], a.tp_rank * d[0] * d[3], in[1], out[0]);
    case OpKind::kPositionsGrad:
      return kernels::positions_grad(d[0], d[1], d[2], a.tp_rank * d[0] * d[3], a.model.max_positions, in[0],
                                     out[0], accumulate);
    case OpKind::kNorm:
      return fast.norm(norm_shape(a.op, a.model), in[0], in[1], d[5] != 0 ? in[2] : nullptr, out[0]);
    case OpKind::kNormGrad:
      return kernels::norm_grad(norm_shape(a.op, a.model), in[0], in[1], in[2], in[3], out[0], out[1], out[2],
                                accumulate);
    case OpKind::kHeadNorm:
      return ref::head_norm(head_norm_shape(a.op, a.model), in[0], in[1], out[0]);
    case OpKind::kHeadNormGrad:
      return kernels::head_norm_grad(head_norm_shape(a.op, a.model), in[0], in[1], in[2], out[0], out[1],
                                     accumulate);
    case OpKind::kRope:
    case OpKind::kRopeGrad:
      return fast.rope(rope_shape(a.op), a.cosine, a.sine, out[0]);
    case OpKind::kAttention:
      return kernels::attention(attention_shape(a.op, a.tp_rank, a.dropout), in[0], out[0], out[1],
                                mask(out[2]));
    case OpKind::kAttentionGrad:
      return kernels::attention_grad(attention_shape(a.op, a.tp_rank, a.dropout), in[0], in[1], in[2],
                                     mask(in[4]), in[3], out[0]);
    case OpKind::kActivation:
      return fast.activation(d[0], d[1], d[2] != 0, in[0], out[0]);
    case OpKind::kActivationGrad:
      return fast.activation_grad(d[0], d[1], d[2] != 0, in[0], in[1], out[0]);
    case OpKind::kResidual:
      if (a.dropout.probability > 0) {
        return kernels::dropout_residual(a.dropout, {d[0], d[1], d[4], d[5] * a.tp_rank * d[0]}, in[0], in[1],
                                         in[2], out[0], mask(out[1]));
      }
      return fast.residual(d[0], d[1], in[0], in[1], in[2], out[0]);
    case OpKind::kBiasGrad:
      return kernels::bias_grad(d[0], d[1], in[0], out[0], accumulate);
    case OpKind::kLossMax:
      return fast.loss_max(loss_shape(a.op, a.tp_rank), in[0], out[0]);
    case OpKind::kLossSum:
      return fast.loss_sum(loss_shape(a.op, a.tp_rank), in[0], in[1], ids(in[2]), out[0], out[1]);
    case OpKind::kLoss:
      *reinterpret_cast<double*>(out[1]) += fast.loss(loss_shape(a.op, a.tp_rank), in[1], out[0]);
      return;
    case OpKind::kLossGrad:
      return fast.loss_grad(loss_shape(a.op, a.tp_rank), in[0], ids(in[1]),
                            static_cast<float>(a.token_weight * a.loss_scale), out[0]);
    case OpKind::kZeroGrad:
      std::memset(out[0], 0, static_cast<std::size_t>(d[0]) * bytes_of(a.type));
      return;
    case OpKind::kAccumulate:
      if (a.type != DType::kFloat64) return fast.add(d[0], in[0], out[0]);
      for (std::int64_t i = 0; i < d[0]; ++i) doubles(out[0])[i] += doubles(in[0])[i];
      return;
    case OpKind::kNormSquare:
      if (!accumulate) std::fill_n(doubles(out[0]), program::kNormBins, 0.0);
      for (const auto& [first, count] : a.counted) fast.add_squares(count, in[0] + first, doubles(out[0]));
      return;
    case OpKind::kNormFinish: {
      const double norm = std::sqrt(ref::sum_of_bins(doubles(in[0]))) / a.loss_scale;
      const double clipped = a.clip > 0 && norm > a.clip ? static_cast<double>(a.clip) / (norm + 1e-6) : 1.0;
      *reinterpret_cast<GradientNorm*>(out[0]) = {norm, static_cast<float>(clipped / a.loss_scale),
                                                  !std::isfinite(norm)};
      return;
    }
    case OpKind::kTrustSquares:
      return add_trust_squares(a);
    case OpKind::kTrustRatio:
      for (std::int64_t t = 0; t < d[0]; ++t) {
        const double* const bins = doubles(in[0]) + t * program::kTrustBins;
        out[0][t] = ref::trust_ratio(bins, bins + program::kNormBins);
      }
      return;
    case OpKind::kOptimizer:
      return update(a);
    case OpKind::kDropoutGrad:
      return kernels::dropout_grad(a.dropout, d[0] * d[1], in[0], mask(in[1]), out[0]);
    case OpKind::kAllReduce:
    case OpKind::kAllReduceMax:
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  throw Error(fmt::format("{} ({}) is not a CPU kernel", a.op.name, program::name_of(a.op.kind)));
}

}  // namespace orrery::exec
