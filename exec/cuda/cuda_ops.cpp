// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/cuda_ops.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <bit>

#include "core/error.h"
#include "exec/executor.h"
#include "exec/gradient_norm.h"
#include "exec/op_shapes.h"
#include "kernels/cuda/check.h"

namespace orrery::exec::cuda {
namespace ops = kernels::cuda;
using program::Op;
using program::OpKind;

static_assert(sizeof(ops::NormResult) == sizeof(GradientNorm));
static_assert(static_cast<std::int64_t>(ops::Epilogue::kNone) == program::kPlain &&
              static_cast<std::int64_t>(ops::Epilogue::kGelu) == program::kGelu &&
              static_cast<std::int64_t>(ops::Epilogue::kGeluGrad) == program::kGeluGrad);
static_assert(static_cast<std::int64_t>(ops::Fp8Product::kNo) == program::kAsStored &&
              static_cast<std::int64_t>(ops::Fp8Product::kValues) == program::kFp8Values &&
              static_cast<std::int64_t>(ops::Fp8Product::kGradient) == program::kFp8Gradient);

namespace {

const std::int32_t* ids(const void* p) {
  return static_cast<const std::int32_t*>(p);
}

// State of an optimizer: {velocity}, {m, v}, or {master copy, m, v}.
struct AdamState {
  AdamState(const CudaOp& a, float* state)
      : master(bytes_per_parameter(a.place.program.training.precision).master > 0 ? state : nullptr),
        m(master != nullptr ? state + a.op.dims[0] : state),
        v(m + a.op.dims[0]) {}
  float *master, *m, *v;
};

ops::AdamConstants adam_constants(const CudaOp& a, bool decays) {
  const Optimizer& o = a.place.program.training.optimizer;
  return {static_cast<float>(o.beta1), static_cast<float>(o.beta2), static_cast<float>(o.epsilon),
          decays ? a.weight_decay : 0};
}

// A tensor of a shard from its element `first` on.
template <class P>
P* part(P* whole, DType type, std::int64_t first) {
  using Byte = std::conditional_t<std::is_const_v<P>, const std::byte, std::byte>;
  return static_cast<Byte*>(whole) + first * static_cast<std::int64_t>(bytes_of(type));
}

// With LAMB each tensor has a learning rate of its own. Padding behind the last tensor is zero, and an update
// leaves it zero.
void update(const CudaOp& a) {
  const std::int64_t n = a.op.dims[0];
  const bool lamb = a.op.dims[2] != 0;
  const auto* norm = static_cast<const ops::NormResult*>(lamb ? a.in[4] : a.in[3]);
  auto* const state = static_cast<float*>(a.out[1]);
  if (a.place.program.training.precision == Precision::kSgd) {
    const auto momentum = static_cast<float>(a.place.program.training.optimizer.beta1);
    return ops::sgd(a.stream, momentum, a.scalars, norm, n, static_cast<const float*>(a.in[0]),
                    static_cast<float*>(a.out[0]), state);
  }
  const AdamState s(a, state);
  const auto run = [&](const float* trust, bool decays, std::int64_t first, std::int64_t count) {
    kernels::StochasticRounding rounding = a.rounding;
    rounding.first += first;
    ops::adam(a.stream, a.out_type[0], a.in_type[0], adam_constants(a, decays), rounding, a.scalars, norm,
              trust, count, part(a.in[0], a.in_type[0], first), part(a.out[0], a.out_type[0], first),
              s.master != nullptr ? s.master + first : nullptr, s.m + first, s.v + first);
  };
  const std::int64_t unit = a.op.dims[1];
  if (lamb) {
    const auto* const ratios = static_cast<const float*>(a.in[3]);
    for (const TensorPart& t : a.place.parts(unit)) run(ratios + t.tensor, t.decays, t.first, t.count);
  } else if (a.weight_decay == 0) {
    run(nullptr, false, 0, n);
  } else {
    for (const DecayRange& r : a.place.decay_ranges(unit)) run(nullptr, r.decays, r.first, r.count);
  }
}

void add_trust_squares(const CudaOp& a) {
  const AdamState s(a, static_cast<float*>(const_cast<void*>(a.in[2])));
  for (const TensorPart& t : a.place.parts(a.op.dims[1])) {
    ops::trust_squares(a.stream, a.in_type[1], a.in_type[0], adam_constants(a, t.decays), a.scalars,
                       static_cast<const ops::NormResult*>(a.in[3]), t.count,
                       part(a.in[0], a.in_type[0], t.first), part(a.in[1], a.in_type[1], t.first),
                       s.master != nullptr ? s.master + t.first : nullptr, s.m + t.first, s.v + t.first,
                       static_cast<double*>(a.out[0]) + t.tensor * program::kTrustBins);
  }
}

}  // namespace

std::size_t workspace_of(const Op& op, const Model& model) {
  switch (op.kind) {
    case OpKind::kNormGrad:
      return ops::norm_grad_workspace(norm_shape(op, model));
    case OpKind::kHeadNormGrad:
      return ops::head_norm_grad_workspace(head_norm_shape(op, model));
    case OpKind::kBiasGrad:
      return ops::bias_grad_workspace(op.dims[0], op.dims[1]);
    case OpKind::kAttentionGrad:
      return ops::attention_grad_workspace(attention_shape(op, 0, {}));
    case OpKind::kLoss:
      return ops::loss_workspace(loss_shape(op, 0));
    default:
      return 0;
  }
}

std::optional<ops::GemmShape> gemm_shape(const Op& op, const program::RankClass& rank,
                                         const Training& training) {
  if (op.kind != OpKind::kGemm) return std::nullopt;
  const auto buffer = [&](const program::Ref& r) -> const program::Buffer& {
    return rank.buffers[static_cast<std::size_t>(r.buffer)];
  };
  // The largest power of two, up to 16, that all places in the arena are multiples of: parameters of a unit
  // stand one after the other.
  std::uint64_t places = 16;
  const auto see = [&](const program::Ref& r) {
    const program::Buffer& b = buffer(r);
    const auto size = static_cast<std::int64_t>(bytes_of(b.type));
    places |=
        static_cast<std::uint64_t>(b.arena_offset | b.arena_stride | r.offset * size | r.shard_stride * size);
  };
  for (const program::Ref& r : op.reads) see(r);
  for (const program::Ref& r : op.writes) see(r);
  return ops::GemmShape{.m = op.dims[0],
                        .n = op.dims[1],
                        .k = op.dims[2],
                        .transpose_a = (op.flags & program::kTransA) != 0,
                        .transpose_b = (op.flags & program::kTransB) != 0,
                        .accumulate = (op.flags & program::kAccumulateFlag) != 0,
                        .bias = op.dims[3] != program::kGeluGrad && op.reads.size() > 2,
                        .epilogue = static_cast<ops::Epilogue>(op.dims[3]),
                        .fp8 = static_cast<ops::Fp8Product>(op.dims[4]),
                        .tf32 = training.math == Math::kTf32,
                        .operands = buffer(op.reads[0]).type,
                        .result = buffer(op.writes[0]).type,
                        .alignment = std::uint32_t{1} << std::countr_zero(places)};
}

void run_cuda_op(const CudaOp& a) {
  const auto& d = a.op.dims;
  const auto& in = a.in;
  const auto& out = a.out;
  const DType type = a.in_type[0], written = a.out_type[0];
  const bool accumulate = (a.op.flags & program::kAccumulateFlag) != 0;
  const std::int64_t tp = a.place.at.tp;
  const Training& training = a.place.program.training;
  const Model& model = a.place.program.model;
  const kernels::Index* const first_sample = a.scalars == nullptr ? nullptr : &a.scalars->first_sample;
  switch (a.op.kind) {
    case OpKind::kGemm:
      return a.gemms.run(a.stream, *gemm_shape(a.op, a.place.rank_class, training),
                         {.a = in[0],
                          .b = in[1],
                          .bias = d[3] == program::kGeluGrad ? nullptr : in[2],
                          .c = out[0],
                          .before_gelu = d[3] == program::kGeluGrad ? const_cast<void*>(in[2]) : out[1]});
    case OpKind::kEmbedding:
      return ops::embedding(a.stream, written, d[0], d[1], tp * d[3], d[3], ids(in[0]), in[1], out[0]);
    case OpKind::kEmbeddingGrad:
      return ops::embedding_grad(a.stream, a.in_type[1], written, d[0], d[1], tp * d[3], d[3], ids(in[0]),
                                 in[1], out[0], accumulate);
    case OpKind::kPositions:
      return ops::positions(a.stream, written, d[0], d[1], d[2], tp * d[0] * d[3], in[1], out[0]);
    case OpKind::kPositionsGrad:
      return ops::positions_grad(a.stream, type, written, d[0], d[1], d[2], tp * d[0] * d[3],
                                 a.place.program.model.max_positions, in[0], out[0], accumulate);
    case OpKind::kNorm:
      return ops::norm(a.stream, type, norm_shape(a.op, model), in[0], in[1], d[5] != 0 ? in[2] : nullptr,
                       out[0]);
    case OpKind::kNormGrad:
      return ops::norm_grad(a.stream, type, a.out_type[1], norm_shape(a.op, model), in[0], in[1], in[2],
                            in[3], out[0], out[1], out[2], accumulate, a.workspace);
    case OpKind::kHeadNorm:
      return ops::head_norm(a.stream, type, head_norm_shape(a.op, model), in[0], in[1], out[0]);
    case OpKind::kHeadNormGrad:
      return ops::head_norm_grad(a.stream, type, a.out_type[1], head_norm_shape(a.op, model), in[0], in[1],
                                 in[2], out[0], out[1], accumulate, a.workspace);
    case OpKind::kRope:
    case OpKind::kRopeGrad:
      return ops::rope(a.stream, written, rope_shape(a.op), a.cosine, a.sine, out[0]);
    case OpKind::kAttention:
      return ops::attention(a.stream, type, attention_shape(a.op, tp, a.dropout), first_sample, in[0], out[0],
                            out[1], static_cast<std::uint8_t*>(out[2]));
    case OpKind::kAttentionGrad:
      return ops::attention_grad(a.stream, type, attention_shape(a.op, tp, a.dropout), first_sample, in[0],
                                 in[1], in[2], static_cast<const std::uint8_t*>(in[4]), in[3], out[0],
                                 a.workspace);
    case OpKind::kActivation:
      return ops::activation(a.stream, type, d[0], d[1], d[2] != 0, in[0], out[0]);
    case OpKind::kActivationGrad:
      return ops::activation_grad(a.stream, type, d[0], d[1], d[2] != 0, in[0], in[1], out[0]);
    case OpKind::kResidual:
      if (a.dropout.probability > 0) {
        return ops::dropout_residual(a.stream, type, a.dropout, first_sample,
                                     {d[0], d[1], d[4], d[5] * tp * d[0]}, in[0], in[1], in[2], out[0],
                                     static_cast<std::uint8_t*>(out[1]));
      }
      return ops::residual(a.stream, type, d[0], d[1], in[0], in[1], in[2], out[0]);
    case OpKind::kDropoutGrad:
      return ops::dropout_grad(a.stream, type, a.dropout, d[0] * d[1], in[0],
                               static_cast<const std::uint8_t*>(in[1]), out[0]);
    case OpKind::kBiasGrad:
      return ops::bias_grad(a.stream, type, written, d[0], d[1], in[0], out[0], accumulate, a.workspace);
    case OpKind::kLossMax:
      return ops::loss_max(a.stream, type, loss_shape(a.op, tp), in[0], static_cast<float*>(out[0]));
    case OpKind::kLossSum:
      return ops::loss_sum(a.stream, type, written, loss_shape(a.op, tp), in[0],
                           static_cast<const float*>(in[1]), ids(in[2]), out[0], static_cast<float*>(out[1]));
    case OpKind::kLoss:
      return ops::loss(a.stream, written, loss_shape(a.op, tp), static_cast<const float*>(in[1]), out[0],
                       static_cast<double*>(out[1]), a.workspace);
    case OpKind::kLossGrad:
      return ops::loss_grad(a.stream, written, type, loss_shape(a.op, tp), in[0], ids(in[1]),
                            1.0F / static_cast<float>(training.tokens_per_step()), &a.scalars->loss_scale,
                            out[0]);
    case OpKind::kZeroGrad:
      return ops::check(
          cudaMemsetAsync(out[0], 0, static_cast<std::size_t>(d[0]) * bytes_of(written), a.stream),
          "cudaMemsetAsync");
    case OpKind::kAccumulate:
      return ops::add(a.stream, written, d[0], in[0], out[0]);
    case OpKind::kNormSquare:
      if (!accumulate) {
        ops::check(cudaMemsetAsync(out[0], 0, static_cast<std::size_t>(program::kNormBinBytes), a.stream),
                   "cudaMemsetAsync");
      }
      for (const auto& [first, count] : a.place.counted(d[1])) {
        const auto* const from =
            static_cast<const std::byte*>(in[0]) + first * static_cast<std::int64_t>(bytes_of(type));
        ops::add_squares(a.stream, type, count, from, static_cast<double*>(out[0]));
      }
      return;
    case OpKind::kNormFinish:
      return ops::norm_finish(a.stream, static_cast<const double*>(in[0]), static_cast<float>(training.clip),
                              a.scalars, static_cast<ops::NormResult*>(out[0]));
    case OpKind::kTrustSquares:
      return add_trust_squares(a);
    case OpKind::kTrustRatio:
      return ops::trust_ratios(a.stream, d[0], static_cast<const double*>(in[0]),
                               static_cast<float*>(out[0]));
    case OpKind::kOptimizer:
      return update(a);
    case OpKind::kAllReduce:
    case OpKind::kAllReduceMax:
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  throw Error(fmt::format("{} is not a kernel of the device", program::name_of(a.op.kind)));
}

}  // namespace orrery::exec::cuda
