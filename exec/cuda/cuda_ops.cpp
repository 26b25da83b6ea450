// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/cuda_ops.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <variant>
#include <vector>

#include "exec/cpu_ops.h"
#include "exec/executor.h"
#include "exec/gradient_norm.h"
#include "exec/op_shapes.h"
#include "kernels/cuda/check.h"

namespace orrery::exec::cuda {
namespace device = kernels::cuda;
namespace ops = program::ops;
using program::Op;

static_assert(sizeof(device::NormResult) == sizeof(GradientNorm));

namespace {

const std::int32_t* ids(const void* p) {
  return static_cast<const std::int32_t*>(p);
}

std::int32_t* ids(void* p) {
  return static_cast<std::int32_t*>(p);
}

const float* floats(const void* p) {
  return static_cast<const float*>(p);
}
float* floats(void* p) {
  return static_cast<float*>(p);
}

// State of an optimizer: {velocity}, {m, v}, or {master copy, m, v}, in fp32.
struct AdamState {
  AdamState(const CudaOp& a, std::int64_t elements, float* state)
      : master(bytes_per_parameter(a.place.program.training.precision).master > 0 ? state : nullptr),
        m(master != nullptr ? state + elements : state),
        v(m + elements) {}
  float *master, *m, *v;
};
// The same, of which the master copy may be parted, and the moments in bf16.
device::AdamMemory adam_memory(const CudaOp& a, std::int64_t elements, void* state) {
  const BytesPerParameter per = bytes_per_parameter(a.place.program.training.precision);
  const MomentLayout layout = per.moments_of(elements);
  std::byte* const moments = static_cast<std::byte*>(state) + elements * per.master;
  device::AdamMemory out{.moment = float_type(per.moment, Math::kBf16),
                         .m = moments + layout.values_at(0),
                         .v = moments + layout.values_at(1)};
  if (per.splits_master())
    out.beside = static_cast<std::int16_t*>(state);
  else if (per.master > 0)
    out.master = static_cast<float*>(state);
  return out;
}

device::AdamConstants adam_constants(const CudaOp& a) {
  const Optimizer& o = a.place.program.training.optimizer;
  return {static_cast<float>(o.beta1), static_cast<float>(o.beta2), static_cast<float>(o.epsilon)};
}

// Of parts of tensors, or of ranges that may be of several, as they stand in the shard: a unit may begin with
// the last of its layers.
template <class Part>
std::vector<device::UpdateRange> update_ranges(const std::vector<Part>& parts, float decay) {
  std::vector<device::UpdateRange> out;
  out.reserve(parts.size());
  for (const Part& p : parts) {
    out.push_back({p.first, p.count, p.decays ? decay : 0, static_cast<float>(p.sign_rate)});
    if constexpr (requires { p.tensor; }) out.back().tensor = p.tensor;
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return out;
}

// With LAMB each tensor has a learning rate of its own. Padding behind the last tensor is zero, and an update
// leaves it zero.
void run(const ops::Optimizer& op, const CudaOp& a) {
  const auto* norm = static_cast<const device::NormResult*>(op.by_tensor ? a.in[4] : a.in[3]);
  auto* const state = static_cast<float*>(a.out[1]);
  const auto ranges = op.by_tensor ? update_ranges(a.place.parts(op.unit), a.weight_decay)
                                   : update_ranges(a.place.update_ranges(op.unit), a.weight_decay);
  if (a.place.program.training.precision == Precision::kSgd) {
    const Optimizer& optimizer = a.place.program.training.optimizer;
    return device::sgd(a.stream, static_cast<float>(optimizer.beta1), static_cast<float>(optimizer.trust),
                       a.scalars, norm, op.by_tensor ? static_cast<const float*>(a.in[3]) : nullptr, ranges,
                       static_cast<const float*>(a.in[0]), static_cast<float*>(a.out[0]), state);
  }
  device::adam(a.stream, a.out_type[0], a.in_type[0], adam_constants(a), a.rounding, a.scalars, norm,
               op.by_tensor ? static_cast<const float*>(a.in[3]) : nullptr, ranges, a.in[0], a.out[0],
               adam_memory(a, op.elements, a.out[1]));
}

void run(const ops::MuonMomentum& op, const CudaOp& a) {
  const AdamState s(a, op.elements, static_cast<float*>(a.out[1]));
  const Muon& muon = a.place.program.training.muon.value();
  device::muon_momentum(a.stream, a.in_type[0], a.out_type[0], static_cast<float>(muon.momentum),
                        muon.nesterov, static_cast<const device::NormResult*>(a.in[2]), op.elements, a.in[0],
                        s.m, a.out[0]);
}

void run(const ops::Orthogonalise& op, const CudaOp& a) {
  const DType type = a.out_type[0];
  const auto size = static_cast<std::int64_t>(bytes_of(type));
  const auto at = [&](const void* of, std::int64_t element) {
    return static_cast<std::byte*>(const_cast<void*>(of)) + element * size;
  };
  const auto place = op.scratch();
  std::byte *x = at(a.out[1], 0), *next = at(a.out[1], place.next);
  std::byte* const squares = at(a.out[1], place.a);
  std::byte* const polynomial = at(a.out[1], place.b);
  auto* const bins = reinterpret_cast<double*>(at(a.out[1], place.squares));
  const std::int64_t all = op.rows * op.columns, square = op.shorter() * op.shorter();
  const GemmShapes shapes = gemm_shapes(a.op, a.place.rank_class, a.place.program.training);
  const bool wide = op.rows <= op.columns;
  const float factor = muon_factor(a.place.program.training.muon.value(), op);
  for (const MuonMatrix& m : muon_matrices(a.place, a.op)) {
    for (const RowCopy& part : m.load)
      device::copy_rows(a.stream, type, part.rows, part.width, 1, at(a.in[0], part.from), part.from_stride,
                        at(x, part.to), part.to_stride);
    device::check(cudaMemsetAsync(bins, 0, program::kNormBinBytes, a.stream), "cudaMemsetAsync");
    device::add_squares(a.stream, type, all, x, bins);
    device::divide_by_norm(a.stream, type, all, bins, x);
    for (std::int64_t i = 0; i < op.iterations; ++i) {
      a.gemms.run(a.stream, shapes[0], {.a = x, .b = x, .c = squares});
      device::scale(a.stream, type, square, static_cast<float>(kMuonB), squares, polynomial);
      a.gemms.run(a.stream, shapes[1], {.a = squares, .b = squares, .c = polynomial});
      device::scale(a.stream, type, all, static_cast<float>(kMuonA), x, next);
      a.gemms.run(a.stream, shapes[2], {.a = wide ? polynomial : x, .b = wide ? x : polynomial, .c = next});
      std::swap(x, next);
    }
    device::copy_rows(a.stream, type, m.store.rows, m.store.width, factor, at(x, m.store.from),
                      m.store.from_stride, at(a.out[0], m.store.to), m.store.to_stride);
  }
}

void run(const ops::MuonUpdate& op, const CudaOp& a) {
  const AdamState s(a, op.elements, static_cast<float*>(a.out[1]));
  device::muon_update(a.stream, a.out_type[0], a.in_type[0], a.scalars,
                      static_cast<const device::NormResult*>(a.in[3]), a.weight_decay, op.elements, a.in[0],
                      a.out[0], s.master);
}

void run(const ops::TrustSquares& op, const CudaOp& a) {
  AdamState s(a, op.elements, static_cast<float*>(const_cast<void*>(a.in[2])));
  if (op.of_gradient) s.m = s.v = nullptr;
  auto ranges = update_ranges(a.place.parts(op.unit), a.weight_decay);
  std::erase_if(ranges, [](const device::UpdateRange& r) { return r.sign_rate > 0; });
  device::trust_squares(a.stream, a.in_type[1], a.in_type[0], adam_constants(a), a.scalars,
                        static_cast<const device::NormResult*>(a.in[3]), ranges, a.in[0], a.in[1], s.master,
                        s.m, s.v, static_cast<double*>(a.out[0]));
}

const kernels::Index* first_sample(const CudaOp& a) {
  return a.scalars == nullptr ? nullptr : &a.scalars->first_sample;
}
std::uint8_t* mask(void* p) {
  return static_cast<std::uint8_t*>(p);
}
const std::uint8_t* mask(const void* p) {
  return static_cast<const std::uint8_t*>(p);
}

void run(const ops::Gemm& op, const CudaOp& a) {
  // The third operand is a bias, or what GELU's gradient is taken at; the second result what was before GELU,
  // or a bias gradient.
  const bool at_gelu = op.epilogue == ops::Gemm::Epilogue::kGeluGrad;
  const bool sums = op.epilogue == ops::Gemm::Epilogue::kBiasGrad;
  a.gemms.run(a.stream, gemm_shapes(a.op, a.place.rank_class, a.place.program.training).front(),
              {.a = a.in[0],
               .b = a.in[1],
               .bias = at_gelu ? nullptr : a.in[2],
               .c = a.out[0],
               .before_gelu = at_gelu ? const_cast<void*>(a.in[2])
                              : sums  ? nullptr
                                      : a.out[1],
               .bias_gradient = sums ? a.out[1] : nullptr,
               .workspace = a.workspace});
}
void run(const ops::AdapterProduct& op, const CudaOp& a) {
  const bool forward = op.of == ops::AdapterProduct::Of::kResult;
  const DType operands = forward ? a.in_type[1] : a.in_type[0];
  const auto at = [](const void* of, std::int64_t elements, DType type) {
    return static_cast<const char*>(of) + elements * static_cast<std::int64_t>(bytes_of(type));
  };
  const AdapterParts parts = adapter_parts(op, a.op.accumulate);
  const auto shapes = gemm_shapes(a.op, a.place.rank_class, a.place.program.training);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    a.gemms.run(a.stream, shapes[i],
                {.a = at(forward ? a.in[1] : a.in[0], parts[i].a, operands),
                 .b = at(forward ? a.in[2] : a.in[1], parts[i].b, operands),
                 .c = const_cast<char*>(at(a.out[0], parts[i].c, a.out_type[0]))});
  }
}
void run(const ops::Embedding& op, const CudaOp& a) {
  device::embedding(a.stream, a.out_type[0], op.tokens, op.width, a.tp_rank() * op.rows, op.rows,
                    ids(a.in[0]), a.in[1], a.out[0]);
}
void run(const ops::EmbeddingGrad& op, const CudaOp& a) {
  device::embedding_grad(a.stream, a.in_type[1], a.out_type[0], op.tokens, op.width, a.tp_rank() * op.rows,
                         op.rows, ids(a.in[0]), a.in[1], a.out[0], a.op.accumulate);
}
void run(const ops::Positions& op, const CudaOp& a) {
  device::positions(a.stream, a.out_type[0], positions_shape(op, a.place.at), a.in[1], a.out[0]);
}
void run(const ops::PositionsGrad& op, const CudaOp& a) {
  device::positions_grad(a.stream, a.in_type[0], a.out_type[0], positions_shape(op, a.place.at), op.table,
                         a.in[0], a.out[0], a.op.accumulate);
}
void run(const ops::Bags& op, const CudaOp& a) {
  device::bags(a.stream, a.out_type[0], bags_shape(op, a.tp_rank()), ids(a.in[0]), a.in[1], a.out[0]);
}
void run(const ops::BagsGrad& op, const CudaOp& a) {
  device::bags_grad(a.stream, a.in_type[1], a.out_type[0], bags_shape(op, a.tp_rank()), ids(a.in[0]), a.in[1],
                    a.out[0], a.op.accumulate);
}
void run(const ops::PairLoss& op, const CudaOp& a) {
  device::pair_loss(a.stream, a.in_type[0], op.batch, op.width, a.in[0], a.in[1], ids(a.in[2]),
                    static_cast<float*>(a.out[0]), static_cast<double*>(a.out[1]), a.workspace);
}
void run(const ops::PairLossGrad& op, const CudaOp& a) {
  device::pair_loss_grad(a.stream, a.in_type[0], op.batch, op.width, a.in[0], a.in[1], ids(a.in[2]),
                         static_cast<const float*>(a.in[3]),
                         1.0F / static_cast<float>(a.place.program.rows_of_loss), &a.scalars->loss_scale,
                         a.out[0], a.out[1]);
}
void run(const ops::Patches& op, const CudaOp& a) {
  device::patches(a.stream, a.out_type[0], patches_shape(op), a.tp_rank() == 0, a.in[0], a.in[1], a.in[2],
                  a.out[0]);
}
void run(const ops::PatchesGrad& op, const CudaOp& a) {
  device::patches_grad(a.stream, a.in_type[0], a.out_type[1], patches_shape(op), a.in[0], a.out[0], a.out[1],
                       a.out[2], a.op.accumulate);
}
void run(const ops::Pool& op, const CudaOp& a) {
  device::pool(a.stream, a.in_type[0], pool_shape(op, a.tp_rank()), a.in[0], a.out[0]);
}
void run(const ops::PoolGrad& op, const CudaOp& a) {
  device::pool_grad(a.stream, a.in_type[0], pool_shape(op, a.tp_rank()), a.in[0], a.out[0]);
}
void run(const ops::Norm& op, const CudaOp& a) {
  device::norm(a.stream, a.in_type[0], norm_shape(op, a.model()), a.in[0], a.in[1],
               op.bias ? a.in[2] : nullptr, a.out[0]);
}
void run(const ops::ResidualNorm& op, const CudaOp& a) {
  const auto bias = [&](std::int64_t i) {
    return i < op.biases ? a.in[op.first_bias() + static_cast<std::size_t>(i)] : nullptr;
  };
  device::residual_norm(a.stream, a.in_type[0], norm_shape(op, a.model()), a.in[0], a.in[1],
                        {bias(0), bias(1)}, a.in[2], op.bias ? a.in[3] : nullptr, a.out[0], a.out[1]);
}
void run(const ops::NormGrad& op, const CudaOp& a) {
  device::norm_grad(a.stream, a.in_type[0], a.out_type[1], norm_shape(op, a.model()), a.in[0], a.in[1],
                    a.in[2], a.in[3], a.out[0], a.out[1], a.out[2], a.op.accumulate, a.workspace);
}
void run(const ops::HeadNorm& op, const CudaOp& a) {
  device::head_norm(a.stream, a.in_type[0], head_norm_shape(op, a.model()), a.in[0],
                    op.weighted ? a.in[1] : nullptr, a.out[0]);
}
void run(const ops::HeadNormGrad& op, const CudaOp& a) {
  device::head_norm_grad(a.stream, a.in_type[0], op.weighted ? a.out_type[1] : DType::kFloat32,
                         head_norm_shape(op, a.model()), a.in[0], op.weighted ? a.in[2] : nullptr, a.in[1],
                         a.out[0], op.weighted ? a.out[1] : nullptr, a.op.accumulate, a.workspace);
}
void turn(const kernels::reference::RopeShape& shape, std::int64_t table, const CudaOp& a) {
  const RotaryMemory& of = a.rotary[static_cast<std::size_t>(table)];
  device::rope(a.stream, a.out_type[0], shape, of.cosine, of.sine, a.out[0]);
}
void run(const ops::Rope& op, const CudaOp& a) {
  turn(rope_shape(op, a.place.at, false), op.table, a);
}
void run(const ops::RopeGrad& op, const CudaOp& a) {
  turn(rope_shape(op, a.place.at, true), op.table, a);
}
void run(const ops::LatentPack& op, const CudaOp& a) {
  device::latent_pack(a.stream, a.in_type[0], latent_shape(op), a.in[0], a.in[1], a.in[2], a.out[0]);
}
void run(const ops::LatentPackGrad& op, const CudaOp& a) {
  device::latent_pack_grad(a.stream, a.in_type[0], latent_shape(op), a.in[0], a.out[0], a.out[1], a.out[2]);
}
// Of sequences that are packed from documents, the operand that says where these begin.
template <class Shape>
const std::int32_t* documents(const Shape& op, const CudaOp& a, std::size_t operand) {
  return op.of_documents() ? static_cast<const std::int32_t*>(a.in[operand]) : nullptr;
}
void run(const ops::Attention& op, const CudaOp& a) {
  device::attention(a.stream, a.in_type[0], attention_shape(op, a.tp_rank(), a.dropout, documents(op, a, 1)),
                    first_sample(a), a.in[0], a.out[0], a.out[1], mask(a.out[2]), a.workspace);
}
void run(const ops::AttentionGrad& op, const CudaOp& a) {
  const bool drops = op.drops();
  device::attention_grad(a.stream, a.in_type[0],
                         attention_shape(op, a.tp_rank(), a.dropout, documents(op, a, drops ? 5 : 4)),
                         first_sample(a), a.in[0], a.in[1], a.in[2], mask(drops ? a.in[4] : nullptr), a.in[3],
                         a.out[0], a.workspace);
}
void run(const ops::CrossAttention& op, const CudaOp& a) {
  device::attention(a.stream, a.in_type[0], attention_shape(op, a.tp_rank(), a.dropout), first_sample(a),
                    {a.in[0], a.in[1]}, a.out[0], a.out[1], mask(a.out[2]), a.workspace);
}
void run(const ops::CrossAttentionGrad& op, const CudaOp& a) {
  device::attention_grad(a.stream, a.in_type[0], attention_shape(op, a.tp_rank(), a.dropout), first_sample(a),
                         {a.in[0], a.in[1]}, a.in[2], a.in[3], mask(a.in[5]), a.in[4], {a.out[0], a.out[1]},
                         a.workspace);
}
void run(const ops::AttentionSink& op, const CudaOp& a) {
  device::attention_sink(a.stream, a.in_type[0], sink_shape(op), a.in[2], a.out[0], floats(a.out[1]));
}
void run(const ops::AttentionSinkGrad& op, const CudaOp& a) {
  device::attention_sink_grad(a.stream, a.in_type[0], a.out_type[0], sink_shape(op), a.in[2], a.in[0],
                              floats(a.in[1]), a.in[3], a.out[0], a.op.accumulate);
}
void run(const ops::HeadsPack& op, const CudaOp& a) {
  device::heads_pack(a.stream, a.in_type[0], heads_shape(op), a.in[0], a.out[0], a.out[1]);
}
void run(const ops::HeadsPackGrad& op, const CudaOp& a) {
  device::heads_pack_grad(a.stream, a.in_type[0], heads_shape(op), a.in[0], a.in[1], a.out[0]);
}
void run(const ops::HeadsUnpack& op, const CudaOp& a) {
  device::heads_unpack(a.stream, a.in_type[0], heads_shape(op), a.in[0], a.out[0]);
}
void run(const ops::HeadsUnpackGrad& op, const CudaOp& a) {
  device::heads_unpack_grad(a.stream, a.in_type[0], heads_shape(op), a.in[0], a.out[0]);
}
void run(const ops::ContextAttention& op, const CudaOp& a) {
  const bool first = op.first();
  device::context_attention(
      a.stream, a.in_type[0], a.out_type[0],
      context_shape(op, a.place.at, a.dropout, documents(op, a, first ? 2 : 4)), first_sample(a), a.in[0],
      a.in[1], first ? nullptr : static_cast<const float*>(a.in[2]), a.out[0], static_cast<float*>(a.out[1]));
}
void run(const ops::ContextAttentionGrad& op, const CudaOp& a) {
  device::context_attention_grad(
      a.stream, a.in_type[0], context_shape(op, a.place.at, a.dropout, documents(op, a, 5)), first_sample(a),
      a.in[0], a.in[1], a.in[2], static_cast<const float*>(a.in[3]), a.in[4], a.out[0], a.out[1]);
}
void run(const ops::Activation& op, const CudaOp& a) {
  device::activation(a.stream, a.in_type[0], op.rows, op.width, act_of(op.type), a.in[0], a.out[0]);
}
void run(const ops::ActivationGrad& op, const CudaOp& a) {
  device::activation_grad(a.stream, a.in_type[0], op.rows, op.width, act_of(op.type), a.in[0], a.in[1],
                          a.out[0]);
}
void run(const ops::RouterScores& op, const CudaOp& a) {
  device::router_scores(a.stream, a.in_type[0], router_shape(op, a.tp_rank()), a.in[0], floats(a.out[0]));
}
void run(const ops::RouterScoresGrad& op, const CudaOp& a) {
  device::router_scores_grad(a.stream, a.in_type[0], router_shape(op, a.tp_rank()), &a.scalars->loss_scale,
                             a.in[0], floats(a.in[1]), floats(a.in[2]), a.out[0]);
}
void run(const ops::Route& op, const CudaOp& a) {
  device::route(a.stream, a.in_type[1], route_shape(op, a.tp_rank()), floats(a.in[0]), a.in[1],
                floats(a.out[0]), ids(a.out[1]), ids(a.out[2]), floats(a.out[3]));
}
void run(const ops::ChoiceBiasGrad& op, const CudaOp& a) {
  device::choice_bias_grad(a.stream, a.out_type[0], op.samples, op.experts, floats(a.in[0]), a.out[0],
                           a.op.accumulate);
}
void run(const ops::RouteGrad& op, const CudaOp& a) {
  device::route_grad(a.stream, route_shape(op, a.tp_rank()), floats(a.in[0]), ids(a.in[1]), floats(a.in[2]),
                     floats(a.out[0]));
}
void run(const ops::Balance&, const CudaOp&) {}
void run(const ops::BalanceGrad& op, const CudaOp& a) {
  device::balance_grad(a.stream, balance_shape(op, a.tp_rank()), &a.scalars->loss_scale, floats(a.in[0]),
                       floats(a.in[1]), floats(a.out[0]));
}
void run(const ops::Permute& op, const CudaOp& a) {
  device::permute(a.stream, a.in_type[0], permute_shape(op), a.in[0], floats(a.in[1]), ids(a.in[2]), a.out[0],
                  floats(a.out[1]));
}
void run(const ops::PermuteGrad& op, const CudaOp& a) {
  device::permute_grad(a.stream, a.in_type[0], permute_shape(op), a.in[0], floats(a.in[1]), ids(a.in[2]),
                       a.out[0], floats(a.out[1]));
}
void run(const ops::Unpermute& op, const CudaOp& a) {
  device::unpermute(a.stream, a.in_type[0], permute_shape(op), a.in[0], ids(a.in[1]), a.out[0]);
}
void run(const ops::UnpermuteGrad& op, const CudaOp& a) {
  device::unpermute_grad(a.stream, a.in_type[0], permute_shape(op), a.in[0], ids(a.in[1]), a.out[0]);
}
void run(const ops::GroupedGemm& op, const CudaOp& a) {
  const kernels::reference::GroupedGemm shape = grouped_gemm(op, a.op.accumulate);
  switch (op.of) {
    case ops::GroupedGemm::Of::kResult:
      return device::grouped_gemm(a.stream, a.in_type[0], shape, a.in[0], a.in[1], ids(a.in[2]), a.out[0]);
    case ops::GroupedGemm::Of::kInput:
      return device::grouped_gemm_dx(a.stream, a.in_type[0], shape, a.in[0], a.in[1], ids(a.in[2]), a.out[0]);
    case ops::GroupedGemm::Of::kWeight:
      return device::grouped_gemm_dw(a.stream, a.in_type[0], a.out_type[0], shape, a.in[0], a.in[1],
                                     ids(a.in[2]), a.out[0]);
  }
}
void run(const ops::ExpertBias& op, const CudaOp& a) {
  device::expert_bias(a.stream, a.in_type[0], expert_bias_shape(op, a.place.at), a.in[1], ids(a.in[2]),
                      op.weighted ? floats(a.in[3]) : nullptr, a.out[0]);
}
void run(const ops::ExpertBiasGrad& op, const CudaOp& a) {
  device::expert_bias_grad(a.stream, a.in_type[0], a.out_type[0], expert_bias_shape(op, a.place.at), a.in[0],
                           a.in[1], ids(a.in[2]), op.weighted ? floats(a.in[3]) : nullptr, a.out[0],
                           op.weighted ? floats(a.out[1]) : nullptr, a.op.accumulate);
}
device::ExpertRows expert_rows(const ops::ExpertActivationShape& op, const CudaOp& a) {
  return {op.experts, op.parts, op.rows / op.parts, ids(a.in[2])};
}
void run(const ops::ExpertActivation& op, const CudaOp& a) {
  device::expert_activation(a.stream, a.in_type[0], expert_rows(op, a), op.width, act_of(op.type),
                            op.weighs_inputs, a.in[0], floats(a.in[1]), a.out[0]);
}
void run(const ops::ExpertActivationGrad& op, const CudaOp& a) {
  device::expert_activation_grad(a.stream, a.in_type[0], expert_rows(op, a), op.width, act_of(op.type),
                                 op.weighs_inputs, a.in[0], floats(a.in[1]), a.in[3], a.out[0],
                                 floats(a.out[1]));
}
void run(const ops::Gate& op, const CudaOp& a) {
  device::gate(a.stream, a.in_type[0], op.rows, op.width, a.in[0], a.in[1], a.out[0]);
}
void run(const ops::GateGrad& op, const CudaOp& a) {
  device::gate_grad(a.stream, a.in_type[0], op.rows, op.width, a.in[0], a.in[1], a.in[2], a.out[0], a.out[1]);
}
void run(const ops::Residual& op, const CudaOp& a) {
  if (a.dropout.probability == 0)
    return device::residual(a.stream, a.in_type[0], op.rows, op.width, a.in[0], a.in[1],
                            {a.in[2], op.biases == 2 ? a.in[3] : nullptr}, a.out[0]);
  device::dropout_residual(a.stream, a.in_type[0], a.dropout, first_sample(a), dropped_rows(op, a.place.at),
                           a.in[0], a.in[1], a.in[2], a.out[0], mask(a.out[1]));
}
void run(const ops::Sum& op, const CudaOp& a) {
  device::residual(a.stream, a.in_type[0], 1, op.elements, a.in[0], a.in[1], {}, a.out[0]);
}
void run(const ops::Scale& op, const CudaOp& a) {
  device::scale(a.stream, a.in_type[0], op.elements, static_cast<float>(op.factor), a.in[0], a.out[0]);
}
void run(const ops::SoftCap& op, const CudaOp& a) {
  device::soft_cap(a.stream, a.in_type[0], op.elements, static_cast<float>(op.cap), a.in[0], a.out[0]);
}
void run(const ops::SoftCapGrad& op, const CudaOp& a) {
  device::soft_cap_grad(a.stream, a.in_type[0], op.elements, static_cast<float>(op.cap), a.in[0], a.in[1],
                        a.out[0]);
}
void run(const ops::DropoutGrad& op, const CudaOp& a) {
  device::dropout_grad(a.stream, a.in_type[0], a.dropout, op.rows * op.width, a.in[0], mask(a.in[1]),
                       a.out[0]);
}
void run(const ops::BiasGrad& op, const CudaOp& a) {
  device::bias_grad(a.stream, a.in_type[0], a.out_type[0], op.rows, op.width, a.in[0], a.out[0],
                    a.op.accumulate, a.workspace);
}
void run(const ops::LossStatistics& op, const CudaOp& a) {
  device::loss_statistics(a.stream, a.in_type[0], loss_shape(op, a.tp_rank()), a.in[0], ids(a.in[1]),
                          static_cast<float*>(a.out[0]));
}
void run(const ops::Loss& op, const CudaOp& a) {
  device::loss(a.stream, op.tokens, op.ranks, static_cast<const float*>(a.in[0]),
               static_cast<float*>(a.out[0]), static_cast<double*>(a.out[1]), a.workspace);
}
void run(const ops::LossGrad& op, const CudaOp& a) {
  const auto weight = static_cast<float>(op.weight / static_cast<double>(a.place.program.rows_of_loss));
  device::loss_grad(a.stream, a.in_type[0], loss_shape(op, a.tp_rank()), a.in[0],
                    static_cast<const float*>(a.in[2]), ids(a.in[1]), weight, &a.scalars->loss_scale,
                    a.out[0]);
}
void run(const ops::Dequantise& op, const CudaOp& a) {
  device::dequantise(a.stream, a.out_type[0], op.layout(), a.in[0], a.out[0]);
}
void run(const ops::ZeroGrad& op, const CudaOp& a) {
  device::check(
      cudaMemsetAsync(a.out[0], 0, static_cast<std::size_t>(op.elements) * bytes_of(a.out_type[0]), a.stream),
      "cudaMemsetAsync");
}
void run(const ops::Accumulate& op, const CudaOp& a) {
  device::add(a.stream, a.out_type[0], op.elements, a.in[0], a.out[0]);
}
void run(const ops::NormSquare& op, const CudaOp& a) {
  if (!a.op.accumulate) {
    device::check(cudaMemsetAsync(a.out[0], 0, static_cast<std::size_t>(program::kNormBinBytes), a.stream),
                  "cudaMemsetAsync");
  }
  const auto size = static_cast<std::int64_t>(bytes_of(a.in_type[0]));
  for (const auto& [first, count] : a.place.counted(op.unit)) {
    device::add_squares(a.stream, a.in_type[0], count, static_cast<const std::byte*>(a.in[0]) + first * size,
                        static_cast<double*>(a.out[0]));
  }
}
void run(const ops::NormFinish&, const CudaOp& a) {
  device::norm_finish(a.stream, static_cast<const double*>(a.in[0]),
                      static_cast<float>(a.place.program.training.clip), a.scalars,
                      static_cast<device::NormResult*>(a.out[0]));
}
void run(const ops::TrustRatio& op, const CudaOp& a) {
  device::trust_ratios(a.stream, op.tensors, static_cast<const double*>(a.in[0]),
                       static_cast<float*>(a.out[0]));
}
void run(const ops::Copy& op, const CudaOp& a) {
  device::check(
      cudaMemcpyAsync(a.out[0], a.in[0], static_cast<std::size_t>(op.elements * op.element_bytes),
                      op.way == ops::CopyWay::kToHost ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                      a.stream),
      "cudaMemcpyAsync");
}
void run(const ops::Narrow& op, const CudaOp& a) {
  device::narrow_to(a.stream, a.out_type[0], op.elements, static_cast<const float*>(a.in[0]), a.out[0]);
}
// Weights are the parameters, or their master copy in fp32.
void run(const ops::OuterDifference& op, const CudaOp& a) {
  const bool has_master = bytes_per_parameter(a.place.program.training.precision).master > 0;
  device::outer_difference(a.stream, has_master ? DType::kFloat32 : a.in_type[0], a.out_type[0], op.elements,
                           a.in[0], static_cast<const float*>(a.in[1]), a.out[0]);
}
void run(const ops::OuterUpdate& op, const CudaOp& a) {
  auto* const anchor = static_cast<float*>(a.out[1]);
  device::outer_update(a.stream, a.out_type[0], a.in_type[0], outer_of(a.place.program), op.elements, a.in[0],
                       anchor, op.momentum ? anchor + op.elements : nullptr, static_cast<float*>(a.out[2]),
                       a.out[0]);
}
void run(const ops::Handover&, const CudaOp&) {}
// Serving runs on processors alone (exec/generate.h).
template <class T>
requires std::is_same_v<T, ops::CachedAttention> || std::is_same_v<T, ops::CachedLatentAttention> ||
    std::is_same_v<T, ops::LastTokens> || std::is_same_v<T, ops::BestLogit> ||
    std::is_same_v<T, ops::ChooseToken>
void run(const T&, const CudaOp& a) {
  throw std::logic_error(a.op.name + " is an op of serving, which has no kernel for GPUs");
}
template <program::CommunicationOp T>
void run(const T&, const CudaOp& a) {
  throw std::logic_error(a.op.name + " is communication, not a kernel");
}

device::Epilogue epilogue_of(ops::Gemm::Epilogue e) {
  switch (e) {
    case ops::Gemm::Epilogue::kPlain:
      return device::Epilogue::kNone;
    case ops::Gemm::Epilogue::kGelu:
      return device::Epilogue::kGelu;
    case ops::Gemm::Epilogue::kGeluGrad:
      return device::Epilogue::kGeluGrad;
    case ops::Gemm::Epilogue::kBiasGrad:
      return device::Epilogue::kBiasGrad;
  }
  return device::Epilogue::kNone;
}
device::Fp8Product fp8_of(ops::Gemm::Format f) {
  switch (f) {
    case ops::Gemm::Format::kAsStored:
      return device::Fp8Product::kNo;
    case ops::Gemm::Format::kRoundedValues:
      return device::Fp8Product::kValues;
    case ops::Gemm::Format::kRoundedGradient:
      return device::Fp8Product::kGradient;
  }
  return device::Fp8Product::kNo;
}

// Scratch memory of an op; most need none.
struct WorkspaceOf {
  const Model& model;
  DType type = DType::kFloat32;  // of the first operand
  kernels::Dropout dropout{};    // of a step; passes without it run forward ops alone
  std::size_t operator()(const ops::NormGrad& op) const {
    return device::norm_grad_workspace(norm_shape(op, model));
  }
  std::size_t operator()(const ops::HeadNormGrad& op) const {
    return device::head_norm_grad_workspace(head_norm_shape(op, model));
  }
  std::size_t operator()(const ops::BiasGrad& op) const {
    return device::bias_grad_workspace(op.rows, op.width);
  }
  std::size_t operator()(const ops::Gemm& op) const {
    return op.epilogue == ops::Gemm::Epilogue::kBiasGrad ? device::bias_grad_workspace(op.k, op.m) : 0;
  }
  std::size_t operator()(const ops::Attention& op) const {
    return device::attention_workspace(type, attention_shape(op, 0, {}));
  }
  std::size_t operator()(const ops::AttentionGrad& op) const {
    return device::attention_grad_workspace(type, attention_shape(op, 0, dropout));
  }
  std::size_t operator()(const ops::CrossAttention& op) const {
    return device::attention_workspace(type, attention_shape(op, 0, {}));
  }
  std::size_t operator()(const ops::CrossAttentionGrad& op) const {
    return device::attention_grad_workspace(type, attention_shape(op, 0, dropout));
  }
  std::size_t operator()(const ops::PairLoss& op) const { return device::pair_loss_workspace(op.batch); }
  std::size_t operator()(const ops::Loss& op) const { return device::loss_workspace(op.tokens); }
  template <class T>
  std::size_t operator()(const T&) const {
    return 0;
  }
};

}  // namespace

std::size_t workspace_of(const Op& op, const Placement& place) {
  WorkspaceOf of{.model = place.program.model, .dropout = place.dropout(op, 0, 0, 0)};
  if (!op.reads.empty()) of.type = place.buffer(op.reads[0]).type;
  return std::visit(of, op.kind);
}

namespace {

// X X', A A and B X, which stand in scratch memory; or X' X, A A and X B.
GemmShapes iteration_shapes(const ops::Orthogonalise& op, DType type, bool tf32) {
  const bool wide = op.rows <= op.columns;
  const std::int64_t n = op.shorter();
  const device::GemmShape all{.tf32 = tf32, .operands = type, .result = type};
  GemmShapes out(3, all);
  out[0].m = out[0].n = n;
  out[0].k = op.longer();
  out[0].transpose_a = !wide;
  out[0].transpose_b = wide;
  out[1].m = out[1].n = out[1].k = n;
  out[1].alpha = static_cast<float>(kMuonC);
  out[2].m = op.rows;
  out[2].n = op.columns;
  out[2].k = n;
  out[1].accumulate = out[2].accumulate = true;
  return out;
}

}  // namespace

GemmShapes gemm_shapes(const Op& op, const program::RankClass& rank, const Training& training) {
  const auto* product = op.as<ops::Gemm>();
  const auto* adapter = op.as<ops::AdapterProduct>();
  if (const auto* matrices = op.as<ops::Orthogonalise>())
    return iteration_shapes(*matrices, training.muon_type(), training.math == Math::kTf32);
  if (product == nullptr && adapter == nullptr) return {};
  const auto buffer = [&](const program::Ref& r) -> const program::Buffer& {
    return rank.buffers[static_cast<std::size_t>(r.buffer)];
  };
  // The largest power of two, up to 16, that all places in the arena are multiples of: parameters of a unit
  // stand one after the other.
  std::uint64_t places = 16;
  const auto see = [&](const program::Ref& r, std::int64_t first = 0) {
    const program::Buffer& b = buffer(r);
    const auto size = static_cast<std::int64_t>(bytes_of(b.type));
    places |= static_cast<std::uint64_t>(b.arena_offset | b.arena_stride | (r.offset | first) * size |
                                         r.shard_stride * size);
  };
  for (const program::Ref& r : op.operands()) see(r);
  for (const program::Ref& r : op.writes) see(r);
  const auto alignment = [&] { return std::uint32_t{1} << std::countr_zero(places); };
  const bool tf32 = training.math == Math::kTf32;
  if (adapter != nullptr) {
    const std::size_t left = adapter->of == ops::AdapterProduct::Of::kResult ? 1 : 0;
    GemmShapes out;
    for (const AdapterPart& p : adapter_parts(*adapter, op.accumulate)) {
      see(op.reads[left], p.a | p.lda);
      see(op.reads[left + 1], p.b | p.ldb);
      see(op.writes[0], p.c | p.ldc);
      out.push_back({.m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .transpose_a = p.transpose_a,
                     .transpose_b = p.transpose_b,
                     .accumulate = p.adds,
                     .tf32 = tf32,
                     .operands = buffer(op.reads[left]).type,
                     .result = buffer(op.writes[0]).type,
                     .lda = p.lda,
                     .ldb = p.ldb,
                     .ldc = p.ldc,
                     .alpha = static_cast<float>(adapter->scale)});
    }
    for (device::GemmShape& shape : out) shape.alignment = alignment();
    return out;
  }
  return {{.m = product->m,
           .n = product->n,
           .k = product->k,
           .transpose_a = product->transpose_a,
           .transpose_b = product->transpose_b,
           .accumulate = op.accumulate,
           .bias = product->epilogue != ops::Gemm::Epilogue::kGeluGrad && op.operands().size() > 2,
           .epilogue = epilogue_of(product->epilogue),
           .fp8 = fp8_of(product->format),
           .tf32 = tf32,
           .operands = buffer(op.reads[0]).type,
           .result = buffer(op.writes[0]).type,
           .alignment = alignment()}};
}

void run_cuda_op(const CudaOp& a) {
  std::visit([&](const auto& op) { run(op, a); }, a.op.kind);
}

}  // namespace orrery::exec::cuda
