// SPDX-License-Identifier: Apache-2.0
#include "exec/cpu_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/cpu/fast.h"

namespace orrery::exec {
namespace ref = kernels::reference;
using program::OpKind;

namespace {

const std::int32_t* ids(const float* p) {
  return reinterpret_cast<const std::int32_t*>(p);
}

double* doubles(float* p) {
  return reinterpret_cast<double*>(p);
}
const double* doubles(const float* p) {
  return reinterpret_cast<const double*>(p);
}

ref::NormShape norm_shape(const program::Op& op) {
  return {op.dims[0], op.dims[1], static_cast<Norm>(op.dims[2]) == Norm::kRmsNorm};
}
ref::AttentionShape attention_shape(const program::Op& op) {
  return {op.dims[0], op.dims[1], op.dims[2], op.dims[3], op.dims[4], op.dims[5] != 0};
}
ref::HeadNormShape head_norm_shape(const program::Op& op) {
  return {op.dims[0], op.dims[1], op.dims[2], op.dims[4], op.dims[3]};
}
ref::LossShape loss_shape(const OpArguments& a) {
  return {a.op.dims[0], a.op.dims[1], a.tp_rank * a.op.dims[1], a.op.dims[3]};
}

}  // namespace

void run_cpu_op(const OpArguments& a) {
  const auto& d = a.op.dims;
  const auto& in = a.in;
  const auto& out = a.out;
  const bool accumulate = (a.op.flags & program::kAccumulateFlag) != 0;
  const kernels::Pointwise& fast = kernels::pointwise();
  switch (a.op.kind) {
    case OpKind::kGemm:
      return kernels::gemm({d[0], d[1], d[2], (a.op.flags & program::kTransA) != 0,
                            (a.op.flags & program::kTransB) != 0, accumulate},
                           in[0], in[1], in[2], out[0]);
    case OpKind::kEmbedding:
      return ref::embedding(d[0], d[1], a.tp_rank * d[3], d[3], ids(in[0]), in[1], out[0]);
    case OpKind::kEmbeddingGrad:
      return kernels::embedding_grad(d[0], d[1], a.tp_rank * d[3], d[3], ids(in[0]), in[1], out[0],
                                     accumulate);
    case OpKind::kPositions:
      return ref::positions(d[0], d[1], d[2], a.tp_rank * d[0] * d[3], in[1], out[0]);
    case OpKind::kPositionsGrad:
      return kernels::positions_grad(d[0], d[1], d[2], a.tp_rank * d[0] * d[3], a.model.max_positions, in[0],
                                     out[0], accumulate);
    case OpKind::kNorm:
      return fast.norm(norm_shape(a.op), in[0], in[1], d[5] != 0 ? in[2] : nullptr, out[0]);
    case OpKind::kNormGrad:
      return kernels::norm_grad(norm_shape(a.op), in[0], in[1], in[2], in[3], out[0], out[1], out[2],
                                accumulate);
    case OpKind::kHeadNorm:
      return ref::head_norm(head_norm_shape(a.op), in[0], in[1], out[0]);
    case OpKind::kHeadNormGrad:
      return kernels::head_norm_grad(head_norm_shape(a.op), in[0], in[1], in[2], out[0], out[1], accumulate);
    case OpKind::kRope:
    case OpKind::kRopeGrad:
      return kernels::rope(d[0], d[1], d[2], d[3], d[4], a.op.kind == OpKind::kRopeGrad, out[0]);
    case OpKind::kAttention:
      return kernels::attention(attention_shape(a.op), in[0], out[0], out[1]);
    case OpKind::kAttentionGrad:
      return kernels::attention_grad(attention_shape(a.op), in[0], in[1], in[2], in[3], out[0]);
    case OpKind::kActivation:
      return fast.activation(d[0], d[1], d[2] != 0, in[0], out[0]);
    case OpKind::kActivationGrad:
      return fast.activation_grad(d[0], d[1], d[2] != 0, in[0], in[1], out[0]);
    case OpKind::kResidual:
      return fast.residual(d[0], d[1], in[0], in[1], in[2], out[0]);
    case OpKind::kBiasGrad:
      return kernels::bias_grad(d[0], d[1], in[0], out[0], accumulate);
    case OpKind::kLossMax:
      return fast.loss_max(loss_shape(a), in[0], out[0]);
    case OpKind::kLossSum:
      return fast.loss_sum(loss_shape(a), in[0], in[1], ids(in[2]), out[0], out[1]);
    case OpKind::kLoss:
      *reinterpret_cast<double*>(out[1]) += fast.loss(loss_shape(a), in[1], out[0]);
      return;
    case OpKind::kLossGrad:
      return fast.loss_grad(loss_shape(a), in[0], ids(in[1]), a.loss_scale, out[0]);
    case OpKind::kZeroGrad:
      std::fill_n(out[0], d[0], 0.0F);
      return;
    case OpKind::kAccumulate:
      if ((a.op.flags & program::kDoubles) == 0) return fast.add(d[0], in[0], out[0]);
      for (std::int64_t i = 0; i < d[0]; ++i) doubles(out[0])[i] += doubles(in[0])[i];
      return;
    case OpKind::kNormSquare:
      if (!accumulate) std::fill_n(doubles(out[0]), program::kNormBins, 0.0);
      for (const auto& [first, count] : a.counted) fast.add_squares(count, in[0] + first, doubles(out[0]));
      return;
    case OpKind::kNormFinish: {
      const double norm = std::sqrt(ref::sum_of_bins(doubles(in[0])));
      const double factor = norm > a.clip ? static_cast<double>(a.clip) / (norm + 1e-6) : 1.0;
      *reinterpret_cast<GradientNorm*>(out[0]) = {norm, static_cast<float>(factor)};
      return;
    }
    case OpKind::kOptimizer: {
      const float scale = in[3] != nullptr ? reinterpret_cast<const GradientNorm*>(in[3])->factor : 1.0F;
      if (a.sgd) return fast.sgd({a.adam.lr, 0.9F, scale}, d[0], in[0], out[0], out[1]);
      ref::Adam adam = a.adam;
      adam.scale = scale;
      return fast.adam(adam, d[0], in[0], out[0], out[1], out[1] + d[0]);
    }
    case OpKind::kDropoutGrad:
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
