// SPDX-License-Identifier: Apache-2.0
//
// The state of a rank: its parameters in units (gradient buckets; single pieces of blocks for ZeRO-3), the
// buffers that it holds for the whole run, and the ops that a unit takes part in once a step. compile() and
// the estimate share these functions, so both count the same ops, and the same static memory to the byte.
#pragma once

#include <algorithm>
#include <array>
#include <boost/container/static_vector.hpp>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "core/model.h"
#include "core/plan.h"
#include "core/stack.h"
#include "core/training.h"
#include "program/graph.h"

namespace orrery::program {

// --- units -----------------------------------------------------------------------------------------

// Weights by the ranks that share them: experts that lie over ranks of their own, or all others.
inline constexpr std::size_t kWeightKinds = 2;
constexpr std::size_t kind_of_weights(bool of_experts) {
  return of_experts ? 1 : 0;
}

// Units by that, by how their weights are kept, and by whether Muon updates them.
inline constexpr std::size_t kUnitKinds = kWaysToKeep * kWeightKinds * 2;
constexpr std::size_t kind_of_unit(bool of_experts, Kept kept, bool muon) {
  return 2 * (kWeightKinds * static_cast<std::size_t>(kept) + kind_of_weights(of_experts)) + (muon ? 1 : 0);
}
constexpr std::size_t kind_of_unit(const auto& unit_or_piece) {
  return kind_of_unit(unit_or_piece.of_experts, unit_or_piece.kept, unit_or_piece.muon);
}
constexpr Kept kept_of_kind(std::size_t kind_of_unit) {
  return static_cast<Kept>(kind_of_unit / 2 / kWeightKinds);
}
constexpr bool is_trained(std::size_t kind_of_unit) {
  return kept_of_kind(kind_of_unit) == Kept::kTrained;
}

// The type of what is stored, gathered and sharded of a unit.
inline DType stored_type(const Training& t, Kept kept) {
  return is_quantised(kept) ? DType::kByte : t.parameter_type();
}

// Puts pieces of blocks into units, in the order in which backwards complete them: a unit takes pieces of one
// kind until it holds a bucket.
class UnitPacker {
 public:
  explicit UnitPacker(std::int64_t bucket_elements) : bucket_(bucket_elements) {}
  // The unit of the next piece, counted from zero. An `alone` piece never shares its unit.
  std::int32_t add(std::int64_t elements, bool alone, std::size_t kind);

 private:
  struct Open {
    std::int32_t unit = -1;  // being filled; -1: none
    std::int64_t elements = 0;
  };
  std::int64_t bucket_;
  std::array<Open, kUnitKinds> open_;
  std::int32_t next_ = 0;
};

// Gradient elements that fill a bucket.
std::int64_t bucket_elements(const Training& t, const Stack& s);

// Matrices of one shape that Muon updates, one behind the other.
struct Matrices {
  std::int64_t first = 0;              // of the piece's or unit's elements, where they begin
  std::int64_t elements = 0;           // that a rank has of each
  std::int64_t rows = 0, columns = 0;  // that are orthogonalised together
  std::int64_t count = 0;
  friend bool operator==(const Matrices&, const Matrices&) = default;
};

// Those of a parameter that so many ranks split, of whose experts there are so many parts; `first`: where it
// begins.
std::vector<Matrices> matrices_of(const Parameter& p, std::int64_t ranks, std::int64_t parts,
                                  std::int64_t first, MuonTpMode mode);

// A piece of a block (graph.h), as one rank holds it.
struct PieceSize {
  std::int64_t elements = 0, tensors = 0;
  bool alone = false, of_experts = false;
  bool embedding_again = false;  // the embedding's weight behind the last block
  Kept kept = Kept::kTrained;
  bool muon = false;
  std::vector<Matrices> matrices;  // where Muon updates it
};
// How the ranks of a stage share weights.
struct WeightRanks {
  WeightRanks() = default;
  explicit WeightRanks(const Plan& p) : tp(p.tp), ep(p.ep), etp(p.expert_tp()), apart(p.splits_experts()) {}
  std::int64_t tp = 1, ep = 1, etp = 1;
  bool apart = false;  // as Plan::splits_experts
  friend auto operator<=>(const WeightRanks&, const WeightRanks&) = default;
};
// The pieces of the model's blocks on one rank.
struct ModelPieces {
  ModelPieces(const Model& m, const Depth& depth, const WeightRanks& ranks, const Training& t);
  std::vector<PieceSize> embedding, head;      // the head with modules of multi-token prediction behind it
  std::vector<std::vector<PieceSize>> blocks;  // by Depth::kinds
};

struct UnitSize {
  std::int64_t elements = 0;
  std::int64_t tensors = 0;  // that they are of
  bool of_experts = false;
  Kept kept = Kept::kTrained;
  bool muon = false;
  std::vector<Matrices> matrices;  // where Muon updates it
  bool on_host = false;            // the host updates it
  bool embedding_again = false;    // as its piece
  bool trained() const { return kept == Kept::kTrained; }
  std::int64_t layers_done = 0;  // of the chunk, once its gradients are complete
  std::int64_t last_piece = 0;   // of the chunk, in the order of the backward
};
// Of a rank's units, in the order of their updates: gives the host the first ones, as near to that share of
// the trained elements as whole units come.
void offload_units(double share, std::span<UnitSize> units);
// The blocks of a chunk.
struct ChunkBlocks {
  bool embedding = false;
  std::span<const std::int32_t> layers;  // kind of each, in model order
  bool head = false;
  bool tied_here = false;  // what is behind the last block reads the embedding's weight, on this stage
};
// Appends the units of a chunk, last block first: the order in which backwards complete them.
void append_units(const ModelPieces& pieces, const ChunkBlocks& blocks, std::int64_t zero,
                  std::int64_t bucket, std::vector<UnitSize>& out);

// What the ranks of a shard group have of a unit. Frozen ones have no gradient.
struct UnitShare {
  UnitShare(const Plan& p, std::int64_t elements, bool of_experts);
  UnitShare(const Plan& p, const UnitSize& u) : UnitShare(p, u.elements, u.of_experts) {}
  std::int64_t shard = 0;                    // elements that each updates
  std::int64_t padded = 0;                   // a multiple of the shard
  std::int64_t parameter = 0, gradient = 0;  // elements that each holds
};

// --- what is held for the whole run ----------------------------------------------------------------

enum class Held : std::uint8_t {
  kInput,      // what an input of the model is made of
  kTargets,    // and those so many tokens further
  kLoss,       // likewise
  kDocuments,  // of each token the first one of its document
  // ZeRO-3: two places for whole parameters of each kind of unit, which take them in turn, or one for each.
  kGathered,
  kFetched,    // two places for shards of each kind that come from the host
  kStaged,     // two places in the host's memory for shards of each kind that come from drives, or go there
  kWhole,      // ZeRO-2 and 3: two places for whole gradients of each kind that is trained
  kParameter,  // of a unit
  kGradient,
  kPassingGradient,  // two places for gradients of each kind, where units are updated in the backward pass
  kBesideGradient,   // copies that the recipe's software keeps
  kOptimizer,        // master copy and moments one after the other, as the recipe has them
  kBesideMaster,
  // Of a unit that the host updates, in its memory; and the master copy that stays on the device.
  kHostGradient,
  kHostParameter,
  kDeviceMaster,
  kStagedState,      // two places in the host's memory for state that lies on drives, or one without overlap
  kOuter,            // of a unit: the anchor that islands have moved from, and the outer momentum behind it
  kOuterDifference,  // of all units, one behind the other
  kTiedGathered,     // a tied weight is in use together with the head's own unit, so it may not share their
                     // places
  kTiedWhole,
  kGradientNorm,
  kGradientNormBins,
  kExpertNormBins,  // of experts that lie over ranks of their own
  kGradientNormReceived,
  kHostGradientNorm,
  kTrustRatios,
  kTrustRatioBins
};
inline constexpr std::size_t kHeldKinds = static_cast<std::size_t>(Held::kTrustRatioBins) + 1;

constexpr Held held_of(const Feed& f) {
  switch (f.of) {
    case Feed::Of::kInput:
      return Held::kInput;
    case Feed::Of::kTargets:
      return Held::kTargets;
    case Feed::Of::kDocuments:
      break;
  }
  return Held::kDocuments;
}

struct HeldBuffer {
  Held what;
  std::int64_t number = 0;  // of the unit, or the place
  BufferClass cls = BufferClass::kWorkspace;
  std::int64_t elements = 0;
  DType type = DType::kFloat32;
  std::int64_t instances = 1;
  Space space = Space::kDevice;
  std::int64_t bytes() const { return elements * instances * static_cast<std::int64_t>(bytes_of(type)); }
};

// Where a rank keeps its parameters.
inline Space space_of_parameters(const Plan& p) {
  return p.parameters_on_drives() ? Space::kDrives : p.offloads_parameters() ? Space::kHost : Space::kDevice;
}

// Whether the device has master copies too of what the host updates: those on drives are nowhere else.
inline bool keeps_offloaded_master(const Plan& p, const Training& t, const Stack& s) {
  const BytesPerParameter per = bytes_per_parameter(t.precision);
  return s.keeps_offloaded_master && per.master > 0 && !per.splits_master() && !p.optimizer_on_drives() &&
         !p.offloads_parameters();
}

// Of an element that islands exchange: its anchor, and its momentum.
inline std::int64_t outer_bytes(const Training& t) {
  return t.outer.value().momentum > 0 ? 8 : 4;
}

// What a stage holds of the model, besides layers.
struct StageEnds {
  bool first = false, last = false;  // the first chunk, the last one
  bool last_stage = false;
  bool takes(const Feed& f) const {
    switch (f.of) {
      case Feed::Of::kInput:
        return first;
      case Feed::Of::kTargets:
        return last;
      case Feed::Of::kDocuments:
        break;
    }
    return true;
  }
  bool tied_here(const Model& m) const { return m.embeds_at_end() && first && last; }
  bool tied_across(const Model& m) const { return m.embeds_at_end() && first != last; }
};

// Sizes of a sample, whatever the plan.
struct SampleSizes {
  SampleSizes(const Model& m, const Training& t);
  std::vector<std::int64_t> tokens;  // by tower
  std::vector<Feed> feeds;
};

// Calls use(const HeldBuffer&) for each. A tied weight's unit is the last.
template <class Use>
void for_each_held(const Model& m, const SampleSizes& sample, const Plan& p, const Training& t,
                   const Stack& s, std::span<const UnitSize> units, const StageEnds& ends, Use use) {
  using enum BufferClass;
  for (const Feed& f : sample.feeds) {
    if (!ends.takes(f)) continue;
    use(HeldBuffer{held_of(f), f.number, kWorkspace, p.micro_batch * f.local_elements(p), f.type,
                   p.micro_batches});
  }
  if (ends.last && !t.serves()) {
    for (std::int64_t k = 0; k <= m.mtp_layers; ++k)
      use(HeldBuffer{Held::kLoss, k, kWorkspace, 1, DType::kFloat64});
  }
  std::array<std::int64_t, kUnitKinds> widest{}, widest_shard{};
  std::int64_t tensors = 0;
  for (const UnitSize& u : units) {
    const UnitShare share(p, u);
    const std::size_t kind = kind_of_unit(u);
    widest[kind] = std::max(widest[kind], share.padded);
    widest_shard[kind] = std::max(widest_shard[kind], share.shard);
    tensors += u.tensors;
  }
  const DType parameter = t.parameter_type(), gradient = t.gradient_type();
  for (std::int64_t i = 0; i < 2 * std::ssize(widest); ++i) {
    const std::int64_t most = widest[static_cast<std::size_t>(i / 2)];
    if (most == 0) continue;
    const Kept kept = kept_of_kind(static_cast<std::size_t>(i / 2));
    if (p.zero == 3 && p.reshards())
      use(HeldBuffer{Held::kGathered, i, kCommunication, most, stored_type(t, kept)});
    if (p.offloads_parameters()) {
      use(HeldBuffer{Held::kFetched, i, kCommunication, widest_shard[static_cast<std::size_t>(i / 2)],
                     stored_type(t, kept)});
    }
    if (p.parameters_on_drives()) {
      use(HeldBuffer{Held::kStaged, i, kParameter, widest_shard[static_cast<std::size_t>(i / 2)],
                     stored_type(t, kept), 1, Space::kHost});
    }
    if (p.zero >= 2 && is_trained(static_cast<std::size_t>(i / 2)))
      use(HeldBuffer{Held::kWhole, i, kCommunication, most, gradient});
  }
  // Of units that are updated one after the other.
  for (std::int64_t i = 0; p.update_in_backward && i < 2 * std::ssize(widest); ++i) {
    const std::int64_t most = widest[static_cast<std::size_t>(i / 2)];
    if (most > 0 && is_trained(static_cast<std::size_t>(i / 2)) && !t.serves())
      use(HeldBuffer{Held::kPassingGradient, i, kGradient, most, gradient});
  }
  bool on_host = false;
  std::int64_t differences = 0, widest_state = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitShare u(p, units[i]);
    const auto number = static_cast<std::int64_t>(i);
    const DType stored = stored_type(t, units[i].kept);
    if (!p.reshards()) use(HeldBuffer{Held::kGathered, number, kCommunication, u.padded, stored});
    use(HeldBuffer{Held::kParameter, number, kParameter, u.parameter, stored, 1, space_of_parameters(p)});
    if (t.serves() || !units[i].trained()) continue;
    const BytesPerParameter bytes = t.bytes_of(units[i].muon);
    const bool tied = ends.tied_here(m) && i + 1 == units.size();
    if (!p.update_in_backward || tied)
      use(HeldBuffer{Held::kGradient, number, kGradient, u.gradient, gradient});
    if (bytes.beside_gradient > 0)
      use(HeldBuffer{Held::kBesideGradient, number, kGradient, u.gradient * bytes.beside_gradient,
                     DType::kByte});
    if (p.islands > 1) {
      use(HeldBuffer{Held::kOuter, number, kOptimizer, u.shard * outer_bytes(t), DType::kByte});
      differences += u.shard;
    }
    const Space of_state = !units[i].on_host         ? Space::kDevice
                           : p.optimizer_on_drives() ? Space::kDrives
                                                     : Space::kHost;
    use(HeldBuffer{Held::kOptimizer, number, kOptimizer, bytes.optimizer_of(u.shard), DType::kByte, 1,
                   of_state});
    if (bytes.beside_master > 0)
      use(HeldBuffer{Held::kBesideMaster, number, kOptimizer, u.shard * bytes.beside_master, DType::kByte, 1,
                     of_state});
    if (!units[i].on_host) continue;
    on_host = true;
    widest_state = std::max(widest_state, bytes.optimizer_of(u.shard));
    use(HeldBuffer{Held::kHostGradient, number, kGradient, u.shard, gradient, 1, Space::kHost});
    if (p.offloads_parameters()) continue;
    use(HeldBuffer{Held::kHostParameter, number, kParameter, u.shard, parameter, 1, Space::kHost});
    if (keeps_offloaded_master(p, t, s))
      use(HeldBuffer{Held::kDeviceMaster, number, kOptimizer, u.shard, DType::kFloat32});
  }
  const std::int64_t places = !on_host || !p.optimizer_on_drives() ? 0 : p.offload->overlap ? 2 : 1;
  for (std::int64_t i = 0; i < places; ++i)
    use(HeldBuffer{Held::kStagedState, i, kOptimizer, widest_state, DType::kByte, 1, Space::kHost});
  if (differences > 0)
    use(HeldBuffer{Held::kOuterDifference, 0, kCommunication, differences, t.outer.value().exchanged()});
  if (ends.tied_here(m)) {
    const std::int64_t tied = UnitShare(p, units.back()).padded;
    if (p.zero == 3 && p.reshards()) use(HeldBuffer{Held::kTiedGathered, 0, kCommunication, tied, parameter});
    if (p.zero >= 2 && units.back().trained())
      use(HeldBuffer{Held::kTiedWhole, 0, kCommunication, tied, gradient});
  }
  if (t.serves()) return;
  if (t.measures_norm()) {
    use(HeldBuffer{Held::kGradientNorm, 0, kWorkspace, kNormBytes, DType::kByte});
    if (on_host)
      use(HeldBuffer{Held::kHostGradientNorm, 0, kWorkspace, kNormBytes, DType::kByte, 1, Space::kHost});
    use(HeldBuffer{Held::kGradientNormBins, 0, kWorkspace, kNormBins, DType::kFloat64});
    if (widest[kind_of_unit(true, Kept::kTrained, false)] + widest[kind_of_unit(true, Kept::kTrained, true)] >
        0)
      use(HeldBuffer{Held::kExpertNormBins, 0, kWorkspace, kNormBins, DType::kFloat64});
    if (p.pp > 1 && !ends.last_stage)
      use(HeldBuffer{Held::kGradientNormReceived, 0, kWorkspace, kNormBins, DType::kFloat64});
  }
  if (t.scales_tensors()) {
    use(HeldBuffer{Held::kTrustRatios, 0, kWorkspace, tensors, DType::kFloat32});
    use(HeldBuffer{Held::kTrustRatioBins, 0, kWorkspace, tensors * kTrustBins, DType::kFloat64});
  }
}

// Elements that one rank has of a tower with so many tokens, as they pass from stage to stage.
inline std::int64_t boundary_elements(const Model& m, const Plan& p, std::int64_t tokens) {
  return p.micro_batch * tokens / p.cp / (p.sequence_parallel ? p.tp : 1) * m.hidden;
}
// Tokens in the copies that a chunk has beyond those in flight: one of each buffer that arrives from other
// chunks or leaves for them. `blocks`: kinds. What arrives of a tower that the chunk has no blocks of
// leaves in the same buffer, and so does the tower's gradient.
std::int64_t transferred_tokens(const Depth& depth, std::span<const std::int32_t> blocks,
                                std::span<const std::int64_t> tokens, bool first, bool last);

// Bytes always allocated for a rank that holds `units`: on its device what is held for the whole run, and the
// copies of what passes between chunks, of so many tokens; in the host's memory; and on the drives.
struct StaticBytes {
  std::int64_t device = 0, host = 0, drives = 0;
};
StaticBytes static_bytes(const Model& m, const SampleSizes& sample, const Plan& p, const Training& t,
                         const Stack& s, std::span<const UnitSize> units, const StageEnds& ends,
                         std::int64_t transferred);

// --- once a step -----------------------------------------------------------------------------------

// The groups whose members hold parts or copies of a rank's parameters of one kind.
struct StateGroups {
  boost::container::static_vector<GroupIndex, 2> parts;  // that ranks hold of a tensor, beside shards
  GroupIndex dp, shard, replica;
};
class AllStateGroups {
 public:
  explicit AllStateGroups(const Communication& over);
  const StateGroups& of(bool of_experts) const { return of_[kind_of_weights(of_experts)]; }

 private:
  std::array<StateGroups, kWeightKinds> of_;
};

// A collective on a unit.
struct UnitExchange {
  const char* name;
  ops::Collective op;
  GroupIndex group;
  std::int64_t element_bytes;
  std::int64_t bytes() const { return op.elements * element_bytes; }
};

// Tensor ranks whose parts of U are gathered; 1: each takes its part for whole.
inline std::int64_t gathered_parts(const Plan& p, const Training& t, bool of_experts) {
  if (t.muon.value().tp_mode == MuonTpMode::kBlockwise) return 1;
  return of_experts ? p.expert_tp() : p.tp;
}
// Bytes of what is live at once at most while Muon updates units one after the other, in this order: of each
// U and all tensor ranks' parts of it, of which the next unit's are on their way, and scratch.
std::int64_t muon_bytes(const Plan& p, const Training& t, std::span<const UnitSize> units);

// What is done with a unit after its last gradients are there, in this order.
struct UnitWork {
  UnitWork(const Plan& p, const Training& t, const AllStateGroups& groups, const UnitSize& unit,
           std::int64_t number);
  // Gradients over the shard group (ZeRO 0 and 1), then over replicas of the shards.
  boost::container::static_vector<UnitExchange, 2> reductions;
  ops::NormSquare norm;
  ops::TrustSquares trust;
  ops::Optimizer optimizer;
  // In place of it, where Muon updates the unit: gathers of U over the shard group and over tensor ranks, and
  // an op for each shape of matrices.
  ops::MuonMomentum momentum;
  boost::container::static_vector<UnitExchange, 2> of_update;
  std::vector<ops::Orthogonalise> orthogonalise;
  ops::MuonUpdate muon_update;
  ops::ZeroGrad clear;
  boost::container::static_vector<UnitExchange, 1> gathers;  // parameters that other ranks updated
};

// The groups of more than one rank over which a sum over all parts of a rank's tensors goes, one after the
// other.
boost::container::static_vector<GroupIndex, 3> parts_of_tensors(const Plan& p, const AllStateGroups& groups,
                                                                bool of_experts);

}  // namespace orrery::program
