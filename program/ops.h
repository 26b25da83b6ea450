// SPDX-License-Identifier: Apache-2.0
//
// All op types, each of which is a struct in program/ops/. An OpKind holds one of them; whoever handles each
// type by itself visits it with one overload a type, so that a new type does not compile until it is handled:
//
//   std::visit([&](const auto& op) { run(op, arguments); }, kind);
#pragma once

#include <array>
#include <string_view>
#include <variant>

#include "program/ops/activation.h"
#include "program/ops/adapter.h"
#include "program/ops/attention.h"
#include "program/ops/bags.h"
#include "program/ops/communication.h"
#include "program/ops/context.h"
#include "program/ops/embedding.h"
#include "program/ops/experts.h"
#include "program/ops/loss.h"
#include "program/ops/muon.h"
#include "program/ops/norm.h"
#include "program/ops/offload.h"
#include "program/ops/outer.h"
#include "program/ops/patches.h"
#include "program/ops/product.h"
#include "program/ops/residual.h"
#include "program/ops/rotary.h"
#include "program/ops/scale.h"
#include "program/ops/serving.h"
#include "program/ops/update.h"

namespace orrery::program {

using OpKind = std::variant<
    ops::Gemm, ops::AdapterProduct, ops::Embedding, ops::EmbeddingGrad, ops::Bags, ops::BagsGrad,
    ops::PairLoss, ops::PairLossGrad, ops::Positions, ops::PositionsGrad, ops::Patches, ops::PatchesGrad,
    ops::Pool, ops::PoolGrad, ops::Norm, ops::NormGrad, ops::HeadNorm, ops::HeadNormGrad, ops::Rope,
    ops::RopeGrad, ops::LatentPack, ops::LatentPackGrad, ops::Attention, ops::AttentionGrad,
    ops::CrossAttention, ops::CrossAttentionGrad, ops::AttentionSink, ops::AttentionSinkGrad, ops::HeadsPack,
    ops::HeadsPackGrad, ops::HeadsUnpack, ops::HeadsUnpackGrad, ops::ContextAttention,
    ops::ContextAttentionGrad, ops::Activation, ops::ActivationGrad, ops::RouterScores, ops::RouterScoresGrad,
    ops::Route, ops::RouteGrad, ops::ChoiceBiasGrad, ops::Balance, ops::BalanceGrad, ops::Permute,
    ops::PermuteGrad, ops::GroupedGemm, ops::ExpertBias, ops::ExpertBiasGrad, ops::ExpertActivation,
    ops::ExpertActivationGrad, ops::Unpermute, ops::UnpermuteGrad, ops::Gate, ops::GateGrad, ops::Residual,
    ops::ResidualNorm, ops::Sum, ops::Scale, ops::SoftCap, ops::SoftCapGrad, ops::DropoutGrad, ops::BiasGrad,
    ops::LossStatistics, ops::Loss, ops::LossGrad, ops::Dequantise, ops::ZeroGrad, ops::Accumulate,
    ops::NormSquare, ops::NormFinish, ops::TrustSquares, ops::TrustRatio, ops::Optimizer, ops::MuonMomentum,
    ops::Orthogonalise, ops::MuonUpdate, ops::Copy, ops::Narrow, ops::OuterDifference, ops::OuterUpdate,
    ops::Collective, ops::Send, ops::Recv, ops::Handover, ops::CachedAttention, ops::CachedLatentAttention,
    ops::LastTokens, ops::BestLogit, ops::ChooseToken>;

// Ops of a forward computation: each has a rule for its gradient, but for those of serving, which throw.
using ForwardOp =
    std::variant<ops::Gemm, ops::AdapterProduct, ops::Embedding, ops::Bags, ops::PairLoss, ops::Positions,
                 ops::Patches, ops::Pool, ops::Norm, ops::HeadNorm, ops::Rope, ops::LatentPack,
                 ops::Attention, ops::CrossAttention, ops::AttentionSink, ops::HeadsPack, ops::HeadsUnpack,
                 ops::ContextAttention, ops::Activation, ops::RouterScores, ops::Route, ops::Balance,
                 ops::Permute, ops::GroupedGemm, ops::ExpertBias, ops::ExpertActivation, ops::Unpermute,
                 ops::Gate, ops::Residual, ops::ResidualNorm, ops::Sum, ops::Scale, ops::SoftCap,
                 ops::LossStatistics, ops::Loss, ops::CachedAttention, ops::CachedLatentAttention,
                 ops::LastTokens, ops::BestLogit, ops::ChooseToken>;
OpKind kind_of(const ForwardOp& op);

template <class T>
concept CommunicationOp = ops::communicates(T::kNature);
template <class T>
concept PointwiseOp = ops::moves_bytes(T::kNature);

ops::Nature nature_of(const OpKind& kind);
inline bool is_communication(const OpKind& kind) {
  return ops::communicates(nature_of(kind));
}

std::string_view name_of(const OpKind& kind);
// Whether it is attention within documents (Training::documents) whose time depends on their lengths.
bool is_of_documents(const OpKind& kind);
// Of a product's operands; other ops take theirs as stored.
ops::Gemm::Format format_of(const OpKind& kind);
double flops_of(const OpKind& kind);
// Bytes that a compute op moves.
std::int64_t bytes_of(const OpKind& kind, const ops::ElementBytes& e, const ops::Passes& passes);
// Elements of the whole tensor that is exchanged. Of communication alone.
std::int64_t elements_of(const OpKind& kind);
ops::Operands operands_of(const OpKind& kind);

// The type and its fields in order, as integers or the bits of floats: ops with equal keys cost the same.
inline constexpr std::size_t kMostFields = 15;
struct OpKey {
  std::size_t type = 0;
  std::array<std::int64_t, kMostFields> fields{};
  friend auto operator<=>(const OpKey&, const OpKey&) = default;
};
OpKey key_of(const OpKind& kind);

// The unit that an op begins to update, which it reads the gradient of first, and the one that it has
// updated, whose parameters it writes first; -1: none.
std::int64_t update_begun(const OpKind& kind);
std::int64_t update_ended(const OpKind& kind);

// Two ops of one type whose counts differ, extended in a line: `one` and n - 1 times what `two` has more.
OpKind extend(const OpKind& one, const OpKind& two, std::int64_t n);

}  // namespace orrery::program
