// SPDX-License-Identifier: Apache-2.0
//
// Kernels on the device, one family a file. Arguments and meaning are those of kernels/cpu/reference.h;
// tensors are of `type`, gradients of parameters of `gradient` (the same, or fp32), arithmetic is fp32, and a
// gradient gets one number added from each call: the sum over the call's rows, made first. Nothing here
// waits, allocates or sums in an order that timing decides: equal inputs give equal bits. Calls throw Error
// when they cannot be started; what fails later is seen where the stream is waited for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/nf4.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/rounding.h"

struct CUstream_st;

namespace orrery::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// Scratch memory of a stream. Every kernel that needs some says how much.
struct Workspace {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

// --- norm.cu ---------------------------------------------------------------------------------------
void norm(Stream stream, DType type, const reference::NormShape& s, const void* x, const void* w,
          const void* b, void* y);
// y is the norm of sum = x + (branch + biases), of which any may be null.
void residual_norm(Stream stream, DType type, const reference::NormShape& s, const void* x,
                   const void* branch, std::array<const void*, 2> biases, const void* w, const void* b,
                   void* sum, void* y);
std::size_t norm_grad_workspace(const reference::NormShape& s);
void norm_grad(Stream stream, DType type, DType gradient, const reference::NormShape& s, const void* x,
               const void* w, const void* dy, const void* residual, void* dx, void* dw, void* db,
               bool accumulate, Workspace workspace);

// --- head_norm.cu ----------------------------------------------------------------------------------
void head_norm(Stream stream, DType type, const reference::HeadNormShape& s, const void* x, const void* w,
               void* y);
std::size_t head_norm_grad_workspace(const reference::HeadNormShape& s);
void head_norm_grad(Stream stream, DType type, DType gradient, const reference::HeadNormShape& s,
                    const void* x, const void* w, const void* dy, void* dx, void* dw, bool accumulate,
                    Workspace workspace);

// --- nf4.cu ----------------------------------------------------------------------------------------
void dequantise(Stream stream, DType type, const Nf4Layout& layout, const void* stored, void* x);

// --- sink.cu ---------------------------------------------------------------------------------------
void attention_sink(Stream stream, DType type, const reference::SinkShape& s, const void* sinks, void* out,
                    float* lse);
void attention_sink_grad(Stream stream, DType type, DType gradient, const reference::SinkShape& s,
                         const void* sinks, const void* out, const float* lse, const void* d_out,
                         void* d_sinks, bool accumulate);

// --- rope.cu ---------------------------------------------------------------------------------------
// `cosine` and `sine` are fp32 [seq, turned / 2].
void rope(Stream stream, DType type, const reference::RopeShape& s, const float* cosine, const float* sine,
          void* x);

// --- activation.cu ---------------------------------------------------------------------------------
void activation(Stream stream, DType type, Index rows, Index width, reference::Act act, const void* u,
                void* v);
void activation_grad(Stream stream, DType type, Index rows, Index width, reference::Act act, const void* u,
                     const void* dv, void* du);
// Of the rows that experts have of a token: the first ones of `parts` of `room` rows each, as counts [parts,
// experts] say.
struct ExpertRows {
  Index experts, parts, room;
  const std::int32_t* counts;
};
void expert_activation(Stream stream, DType type, const ExpertRows& rows, Index width, reference::Act act,
                       bool weighs_inputs, const void* u, const float* row_weights, void* v);
void expert_activation_grad(Stream stream, DType type, const ExpertRows& rows, Index width,
                            reference::Act act, bool weighs_inputs, const void* u, const float* row_weights,
                            const void* dv, void* du, float* d_row_weights);
void scale(Stream stream, DType type, Index n, float factor, const void* x, void* y);
void soft_cap(Stream stream, DType type, Index n, float cap, const void* x, void* y);
void soft_cap_grad(Stream stream, DType type, Index n, float cap, const void* y, const void* dy, void* dx);

// --- residual.cu -----------------------------------------------------------------------------------
void residual(Stream stream, DType type, Index rows, Index width, const void* x, const void* branch,
              std::array<const void*, 2> biases, void* y);
// With dropout; the number of the micro-batch's first sample is d.first_sample plus what stands at
// `first_sample`.
void dropout_residual(Stream stream, DType type, const Dropout& d, const Index* first_sample,
                      const DroppedRows& s, const void* x, const void* branch, const void* bias, void* y,
                      std::uint8_t* mask);
void dropout_grad(Stream stream, DType type, const Dropout& d, Index n, const void* dy,
                  const std::uint8_t* mask, void* dx);
std::size_t bias_grad_workspace(Index rows, Index width);
void bias_grad(Stream stream, DType type, DType gradient, Index rows, Index width, const void* dy, void* db,
               bool accumulate, Workspace workspace);

// --- embedding.cu ----------------------------------------------------------------------------------
void embedding(Stream stream, DType type, Index tokens, Index width, Index first, Index rows,
               const std::int32_t* ids, const void* table, void* y);
void embedding_grad(Stream stream, DType type, DType gradient, Index tokens, Index width, Index first,
                    Index rows, const std::int32_t* ids, const void* dy, void* d_table, bool accumulate);
void positions(Stream stream, DType type, const reference::PositionsShape& s, const void* table, void* x);
void positions_grad(Stream stream, DType type, DType gradient, const reference::PositionsShape& s,
                    Index table_rows, const void* dy, void* d_table, bool accumulate);

// --- context.cu ------------------------------------------------------------------------------------
// As in kernels/cpu/context.h, but that sums are fp32 and out is of the type.
void heads_pack(Stream stream, DType type, const HeadsShape& s, const void* qkv, void* q, void* kv);
void heads_pack_grad(Stream stream, DType type, const HeadsShape& s, const void* dq, const void* dkv,
                     void* d_qkv);
void heads_unpack(Stream stream, DType type, const HeadsShape& s, const void* parts, void* whole);
void heads_unpack_grad(Stream stream, DType type, const HeadsShape& s, const void* d_whole, void* d_parts);
// `out` is of `out_type`, the type, or fp32 where more is to be added.
void context_attention(Stream stream, DType type, DType out_type, const ContextShape& s,
                       const Index* first_sample, const void* q, const void* kv, const float* sums, void* out,
                       float* lse);
void context_attention_grad(Stream stream, DType type, const ContextShape& s, const Index* first_sample,
                            const void* q, const void* kv, const void* out, const float* lse,
                            const void* d_out, void* dq, void* dkv);

// --- bags.cu, embedding.cu -------------------------------------------------------------------------
void bags(Stream stream, DType type, const reference::BagsShape& s, const std::int32_t* ids,
          const void* weight, void* y);
void bags_grad(Stream stream, DType type, DType gradient, const reference::BagsShape& s,
               const std::int32_t* ids, const void* dy, void* d_weight, bool accumulate);
std::size_t pair_loss_workspace(Index batch);
void pair_loss(Stream stream, DType type, Index batch, Index width, const void* u, const void* v,
               const std::int32_t* labels, float* probabilities, double* loss, Workspace workspace);
void pair_loss_grad(Stream stream, DType type, Index batch, Index width, const void* u, const void* v,
                    const std::int32_t* labels, const float* probabilities, float weight,
                    const double* loss_scale, void* du, void* dv);

// --- patches.cu ------------------------------------------------------------------------------------
void patches(Stream stream, DType type, const reference::PatchesShape& s, bool adds, const void* x,
             const void* bias, const void* cls, void* y);
void patches_grad(Stream stream, DType type, DType gradient, const reference::PatchesShape& s, const void* dy,
                  void* dx, void* d_bias, void* d_cls, bool accumulate);
void pool(Stream stream, DType type, const reference::PoolShape& s, const void* x, void* y);
void pool_grad(Stream stream, DType type, const reference::PoolShape& s, const void* dy, void* dx);

// --- experts.cu ------------------------------------------------------------------------------------
// Factors of losses are times what stands at `loss_scale`.
void router_scores(Stream stream, DType type, const reference::RouterShape& s, const void* logits,
                   float* scores);
void router_scores_grad(Stream stream, DType type, const reference::RouterShape& s, const double* loss_scale,
                        const void* logits, const float* scores, const float* d_scores, void* d_logits);
// At most 64 groups.
void route(Stream stream, DType type, const reference::RouteShape& s, const float* scores, const void* biases,
           float* weights, std::int32_t* choice, std::int32_t* counts, float* load);
void route_grad(Stream stream, const reference::RouteShape& s, const float* scores,
                const std::int32_t* choice, const float* d_weights, float* d_scores);
void choice_bias_grad(Stream stream, DType gradient, Index samples, Index experts, const float* load,
                      void* d_biases, bool accumulate);
void balance_grad(Stream stream, const reference::BalanceShape& s, const double* loss_scale,
                  const float* scores, const float* load, float* d_scores);
void permute(Stream stream, DType type, const reference::PermuteShape& s, const void* x, const float* weights,
             const std::int32_t* choice, void* y, float* row_weights);
void permute_grad(Stream stream, DType type, const reference::PermuteShape& s, const void* dy,
                  const float* d_row_weights, const std::int32_t* choice, void* dx, float* d_weights);
void unpermute(Stream stream, DType type, const reference::PermuteShape& s, const void* y,
               const std::int32_t* choice, void* o);
void unpermute_grad(Stream stream, DType type, const reference::PermuteShape& s, const void* d_o,
                    const std::int32_t* choice, void* dy);
// Of all experts together at most `rows`.
void grouped_gemm(Stream stream, DType type, const reference::GroupedGemm& g, const void* x, const void* w,
                  const std::int32_t* counts, void* u);
void grouped_gemm_dx(Stream stream, DType type, const reference::GroupedGemm& g, const void* du,
                     const void* w, const std::int32_t* counts, void* dx);
void grouped_gemm_dw(Stream stream, DType type, DType gradient, const reference::GroupedGemm& g,
                     const void* du, const void* x, const std::int32_t* counts, void* dw);
void expert_bias(Stream stream, DType type, const reference::ExpertBiasShape& s, const void* bias,
                 const std::int32_t* counts, const float* row_weights, void* y);
void expert_bias_grad(Stream stream, DType type, DType gradient, const reference::ExpertBiasShape& s,
                      const void* dy, const void* bias, const std::int32_t* counts, const float* row_weights,
                      void* d_bias, float* d_row_weights, bool accumulate);
void gate(Stream stream, DType type, Index rows, Index width, const void* y, const void* logits, void* o);
void gate_grad(Stream stream, DType type, Index rows, Index width, const void* y, const void* logits,
               const void* d_o, void* dy, void* d_logits);

// --- loss.cu ---------------------------------------------------------------------------------------
// As in kernels/cpu/reference.h; logits and their gradient are of `type`.
void loss_statistics(Stream stream, DType type, const reference::LossShape& s, const void* logits,
                     const std::int32_t* targets, float* statistics);
// Adds the loss of all rows to `total`.
std::size_t loss_workspace(Index rows);
void loss(Stream stream, Index rows, Index ranks, const float* statistics, float* normalizers, double* total,
          Workspace workspace);
// The gradient of loss times what stands at `loss_scale`, times token_weight; over the logits, or elsewhere.
void loss_grad(Stream stream, DType type, const reference::LossShape& s, const void* logits,
               const float* normalizers, const std::int32_t* targets, float token_weight,
               const double* loss_scale, void* d_logits);

// --- optimizer.cu ----------------------------------------------------------------------------------
// What changes from step to step is read from device memory, so that one graph serves all steps.
struct StepScalars {
  double loss_scale = 1;
  Index first_sample = 0;  // of the step, counted over the whole run
  float learning_rate = 0;
  float correct1 = 1, correct2 = 1;  // 1 - beta^step of Adam
  Index updates = 1;                 // of parameters so far, with this one
};
// exec's GradientNorm: nothing is updated when it overflowed.
struct NormResult {
  double norm;
  float factor;
  std::int32_t overflowed;
};
struct AdamConstants {
  float beta1, beta2, epsilon;
};
// Neighbouring elements of a shard that are updated alike.
struct UpdateRange {
  Index first, count;
  float decay = 0;      // of Adam
  float sign_rate = 0;  // above zero: they go so far against their gradients' signs, and nothing else moves
  Index tensor = 0;     // that they are of
};
// A launch updates so many; where there are more, they take several launches. 2 KiB of a kernel's arguments,
// of which any device takes 4.
inline constexpr std::size_t kMostRanges = 64;
// What Adam keeps of a shard: a master copy, or the 16 bits of one that bf16 parameters lack (part_master of
// kernels/cpu/moments.h), or neither; and the moments, in fp32 or in bf16.
struct AdamMemory {
  float* master = nullptr;
  std::int16_t* beside = nullptr;
  DType moment = DType::kFloat32;
  void *m = nullptr, *v = nullptr;
};
// Of a shard, of which `ranges`, one behind the other, are updated: the new parameter, and with a master copy
// the parameter rounded from it, to the nearest, or bf16 as `r` says. A tensor's learning rate is times its
// number among `trust`. `norm` and `trust` may be null.
void adam(Stream stream, DType type, DType gradient, const AdamConstants& a, const StochasticRounding& r,
          const StepScalars* scalars, const NormResult* norm, const float* trust,
          std::span<const UpdateRange> ranges, const void* d_parameter, void* parameter,
          const AdamMemory& state);
// Trust ratios: adds squares of each tensor's weights to its bins of an exact sum (reference.h), and those of
// what adam() is about to update them by, or of the gradient where `m` is null, to the bins after them; then
// the ratios of all tensors.
void trust_squares(Stream stream, DType type, DType gradient, const AdamConstants& a,
                   const StepScalars* scalars, const NormResult* norm, std::span<const UpdateRange> ranges,
                   const void* d_parameter, const void* parameter, const float* master, const float* m,
                   const float* v, double* bins);
void trust_ratios(Stream stream, Index tensors, const double* bins, float* ratios);
// With ratios, LARS (reference.h), of `coefficient`; `ratios` may be null.
void sgd(Stream stream, float momentum, float coefficient, const StepScalars* scalars, const NormResult* norm,
         const float* ratios, std::span<const UpdateRange> ranges, const float* d_parameter, float* parameter,
         float* velocity);
// What an island has moved: anchor - weights; and the anchor's update by the sum over islands, after which
// parameters, and the master copy where there is one, are the anchor. Without momentum `velocity` is null.
void outer_difference(Stream stream, DType type, DType difference_type, Index n, const void* weights,
                      const float* anchor, void* difference);
void outer_update(Stream stream, DType type, DType difference_type, const reference::Outer& o, Index n,
                  const void* sum, float* anchor, float* velocity, float* master, void* parameter);
// sum += x; of doubles too.
void add(Stream stream, DType type, Index n, const void* x, void* sum);
// The same numbers in another type.
void narrow_to(Stream stream, DType type, Index n, const float* x, void* rounded);

// --- muon.cu ---------------------------------------------------------------------------------------
// core/muon.h: the momentum of a shard and what of it is orthogonalised; and the update by that. `norm` and
// `master` may be null.
void muon_momentum(Stream stream, DType gradient_type, DType update_type, float momentum, bool nesterov,
                   const NormResult* norm, Index n, const void* gradient, float* moment, void* update);
void muon_update(Stream stream, DType type, DType update_type, const StepScalars* scalars,
                 const NormResult* norm, float decay, Index n, const void* update, void* parameter,
                 float* master);
// to = factor from, row by row; strides in elements.
void copy_rows(Stream stream, DType type, Index rows, Index width, float factor, const void* from,
               Index from_stride, void* to, Index to_stride);
// x becomes x / |x|, with the bins of |x|^2; zeros stay.
void divide_by_norm(Stream stream, DType type, Index n, const double* bins, void* x);

// --- random.cu -------------------------------------------------------------------------------------
// Elements in [-1, 1), the same for a seed.
void uniform(Stream stream, DType type, Index n, std::uint64_t seed, void* to);

// --- squares.cu ------------------------------------------------------------------------------------
// Adds to the bins of an exact sum (reference.h), whatever the order.
void add_squares(Stream stream, DType type, Index n, const void* x, double* bins);
// Norm of gradients that were scaled, and the factor that brings them to `clip` at most (0: any).
void norm_finish(Stream stream, const double* bins, float clip, const StepScalars* scalars,
                 NormResult* result);

// --- attention.cu ----------------------------------------------------------------------------------
void latent_pack(Stream stream, DType type, const reference::LatentShape& s, const void* q, const void* kv,
                 const void* r, void* qkv);
void latent_pack_grad(Stream stream, DType type, const reference::LatentShape& s, const void* d_qkv, void* dq,
                      void* dkv, void* dr);
// The sample's number for dropout as in dropout_residual. 16-bit floats run in cuDNN's fused kernels where it
// has them for the shape, and with heads of 64 or 128 on tensor cores, unless dropout acts on scores, they
// are kept, or sequences are packed from documents; everything else in plain_attention.cu. How much scratch
// memory is needed is asked before the first of a shape is enqueued.
std::size_t attention_workspace(DType type, const reference::AttentionShape& s);
std::size_t attention_grad_workspace(DType type, const reference::AttentionShape& s);
void attention(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
               reference::AttentionRows<const void*> rows, void* out, void* softmax, std::uint8_t* mask,
               Workspace workspace);
void attention_grad(Stream stream, DType type, const reference::AttentionShape& s, const Index* first_sample,
                    reference::AttentionRows<const void*> rows, const void* out, const void* softmax,
                    const std::uint8_t* mask, const void* d_out, reference::AttentionRows<void*> d_rows,
                    Workspace workspace);

// --- reduce.cu -------------------------------------------------------------------------------------
// Sum of `inputs` in their order, beginning with `start` unless it is null; 16-bit floats are
// summed in fp32 and rounded once. `output` may be one of the inputs.
inline constexpr std::size_t kMostInputs = 16;
void reduce(Stream stream, DType type, std::span<const void* const> inputs, Index n, const void* start,
            void* output);

}  // namespace orrery::kernels::cuda
