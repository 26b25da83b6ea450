// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a rank through a step: gathered before a block uses them, their gradients summed over the
// ranks that have parts of the sum. Internal to program/.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "program/emitter.h"
#include "program/state/units.h"

namespace orrery::program {

// Parameters of a rank that are gathered, reduced and updated as one: a piece of a block (graph.h).
struct Piece {
  std::int32_t first_parameter = 0, end_parameter = 0;
  bool alone = false;  // never shares its unit
  bool of_experts = false;
  Kept kept = Kept::kTrained;
  bool muon = false;
  std::int32_t unit = -1;
  bool closes_unit = false;  // the unit's gradients are complete after this piece's backward
};

struct ChunkBlock {
  Block block;
  std::int32_t first_piece = 0, end_piece = 0;  // in Chunk::pieces
};

// A module of multi-token prediction.
struct MtpBlocks {
  ChunkBlock input, block, head;
};

struct Chunk {
  std::int32_t global = 0;
  std::optional<ChunkBlock> embedding, head;
  std::optional<ChunkBlock> loss;  // where it is apart from the head
  std::vector<MtpBlocks> mtp;      // behind the head, in order
  std::vector<ChunkBlock> layers;
  std::vector<Piece> pieces;                            // in model order
  std::vector<std::int32_t> output_grads, input_grads;  // buffers by tower; -1: none yet
};

class StageParameters {
 public:
  // `tied`: the embedding's weight, where the first stage and the last have it, or one of them; else -1.
  StageParameters(Emitter& e, const Model& m, const Communication& over, const StageEnds& ends,
                  std::vector<Chunk>& chunks, std::int32_t tied);

  const StageEnds& ends() const { return ends_; }
  const AllStateGroups& groups() const { return groups_; }
  std::int32_t buffer(Held what, std::size_t number = 0) const {
    return held_[static_cast<std::size_t>(what)].at(number);
  }
  const Unit& unit(std::int32_t i) const { return e_.rank.units[static_cast<std::size_t>(i)]; }
  bool trains(std::int32_t unit_index) const { return unit(unit_index).kept == Kept::kTrained; }
  UnitWork work(std::int32_t unit) const;
  // Of the weight that is tied within the stage, or with another one; -1: it is not.
  std::int32_t tied_here() const { return tied_here_; }
  std::int32_t tied_across() const { return tied_across_; }
  // A rank's own share of a unit.
  Ref gradient_shard(const Unit& u) const {
    return {u.gradient_buffer, 0, e_.plan.zero == 1 ? u.shard : 0, u.of_experts};
  }
  Ref parameter_shard(const Unit& u) const {
    return {u.parameter_buffer, 0, e_.plan.zero == 1 || e_.plan.zero == 2 ? u.shard : 0, u.of_experts};
  }

  // A segment begins: nothing is gathered, but what the forward pass kept for the others.
  void begin(SegmentKind kind);
  // ZeRO-3: the whole parameters of the block, as far as they are not still there.
  void need(const ChunkBlock& b);
  // After the block's weight gradients of a micro-batch, and of the last one.
  void synchronise(const Chunk& c, const ChunkBlock& b, bool last);
  // ZeRO-2 and 3: adds the whole gradient to the ranks' shares.
  void reduce_to_shard(std::int32_t unit, const char* suffix = "");
  // The once-a-step part. `factors`: ratios and the norm, where updates read them.
  void reduce(std::int32_t unit);
  void update(std::int32_t unit, const std::vector<Ref>& factors);
  // What follows an update, wherever it is done.
  void finish_update(std::int32_t unit);
  std::vector<Ref> reads_of_update(std::int32_t unit, const std::vector<Ref>& factors) const;
  // Whether the backward pass updates the unit (Plan::update_in_backward): a weight that two blocks share has
  // its gradient only in the end.
  bool updates_in_backward(std::int32_t unit) const {
    return e_.plan.update_in_backward && unit != tied_here_;
  }

 private:
  void make_units(std::vector<Chunk>& chunks);
  void add_matrices(const Piece& piece, UnitSize& size) const;
  void hold();
  void assign_places(const std::vector<Chunk>& chunks);
  void need(std::int32_t unit);
  void complete_partial(const Piece& piece, bool last);
  Unit& mutable_unit(std::int32_t i) { return e_.rank.units[static_cast<std::size_t>(i)]; }
  std::int32_t unit_of(std::int32_t parameter) const {
    return e_.rank.parameters[static_cast<std::size_t>(parameter)].unit;
  }

  Emitter& e_;
  const Model& model_;
  const StageEnds ends_;
  const AllStateGroups groups_;
  std::array<std::vector<std::int32_t>, kHeldKinds> held_;  // buffers
  std::int32_t tied_here_ = -1, tied_across_ = -1;
  std::vector<UnitSize> sizes_;
  // ZeRO-3: units in the two places for whole parameters of each kind, since the segment began.
  struct Places {
    std::array<std::int32_t, 2> unit{-1, -1};
    std::size_t next = 0;
  };
  std::array<Places, kUnitKinds> places_;
  std::array<std::size_t, kUnitKinds> next_fetched_{};  // place for a shard that comes from the host
  std::vector<bool> in_own_place_;                      // units that have a place of their own and are there
};

}  // namespace orrery::program
