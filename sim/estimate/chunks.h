// SPDX-License-Identifier: Apache-2.0
//
// What one model chunk costs, by role and blocks: the building stones of the estimate.
//
// Where blocks follow each other in a pattern, time and memory of a chunk grow by a constant per pattern (per
// group of k blocks under "recompute every k"); and the sizes in its ops and buffers grow by a constant per
// sequence of the micro-batch. A chunk of any size is therefore small ones at two small micro-batches,
// compiled with the real compiler, extended by their differences, priced and walked. Everything is memoised
// over plans.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "core/scenario.h"
#include "program/loads.h"
#include "program/schedule.h"
#include "program/state/units.h"
#include "sim/cost.h"
#include "sim/estimate/group_table.h"
#include "sim/expert_loads.h"

namespace orrery::sim {

// One piece of work of a chunk for one micro-batch.
struct WorkCost {
  std::int64_t time = 0;           // ps, in a steady state
  std::int64_t row = 0;            // ps after the same work, where both rows and turns occur: interleaved
  std::int64_t latency = 0;        // ps from its input to its output when the stage has waited for it
  std::int64_t host = 0;           // ps to issue its ops
  std::int64_t hosted = 0;         // ps to its end from when the host begins with it, all else being there
  std::int64_t peak = 0, net = 0;  // bytes live above the start, and left at the end
  std::int64_t offloaded = 0;      // bytes left in the host's memory
  // Of the last micro-batch, where gradients are reduced in every one or tensor ranks add their parts of
  // gradients: ps that it takes longer, and that its communication goes on after it.
  std::int64_t longer = 0, trailing = 0;
  std::int64_t dp = 0, dp_last = 0;  // of data-parallel ops, in any micro-batch and in the last
  // Of the time: tensor-parallel ops run, compute waits, and ops of attention within documents run.
  std::int64_t tp = 0, waiting = 0, of_documents = 0;

  using Field = std::int64_t WorkCost::*;
  static constexpr std::array<Field, 12> times() {
    return {&WorkCost::time,    &WorkCost::row,    &WorkCost::latency,  &WorkCost::host,
            &WorkCost::hosted,  &WorkCost::longer, &WorkCost::trailing, &WorkCost::dp,
            &WorkCost::dp_last, &WorkCost::tp,     &WorkCost::waiting,  &WorkCost::of_documents};
  }
};
enum ChunkWork : std::uint8_t { kChunkForward, kChunkBackward, kChunkBackwardInput, kChunkWeight };
inline constexpr std::size_t kChunkWorks = 4;
// A backward is whole, or it comes in its two parts. Work that a schedule does not have costs nothing.
using ChunkCost = std::array<WorkCost, kChunkWorks>;
// The least that a micro-batch costs.
inline std::int64_t of_micro_batch(const ChunkCost& c, WorkCost::Field field) {
  const std::int64_t whole = c[kChunkBackward].*field;
  const std::int64_t parts = c[kChunkBackwardInput].*field + c[kChunkWeight].*field;
  return c[kChunkForward].*field + (whole == 0 || parts == 0 ? whole + parts : std::min(whole, parts));
}

// Bytes above the start of a piece's work (program/pieces.h): most while the piece runs, and at its end.
struct PieceBytes {
  std::int64_t peak = 0, net = 0;
  friend bool operator==(const PieceBytes&, const PieceBytes&) = default;
};
// A forward and a backward side by side, of chunks that are alike.
struct PairCost {
  std::int64_t saved = 0;  // ps that both take less than one after the other, in a steady state
  std::int64_t host = 0;   // ps to begin with more pieces
  std::vector<PieceBytes> forward, backward;
};
// Of any two chunks: half of what each saves with one like itself.
inline std::int64_t saved_by(const PairCost& forward, const PairCost& backward) {
  return (forward.saved + backward.saved) / 2;
}

// Blocks of a model from `first` on, in places of its depth.
struct BlockRange {
  std::int64_t first = 0, blocks = 0;
  // In a sample, of a range that longer ones may be extended from: blocks after which its memory repeats.
  std::int64_t repeats = 0;
  bool offloaded = false;   // their activations wait in the host's memory
  bool recomputed = false;  // where the first layers of a chunk alone are
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};
using ChunkContent = std::vector<BlockRange>;

// Groups of blocks that are recomputed together, as many as `blocks` of a chunk begin or fill.
constexpr std::int64_t whole_groups(std::int64_t blocks, std::int64_t together) {
  return (blocks + together - 1) / together;
}

enum class Role : std::uint8_t { kFirst, kMiddle, kLast, kOnly };

// What a chunk's cost depends on, besides the problem.
struct ChunkKey {
  std::int32_t tp = 1, micro_batch = 1, recompute_layers = 1, loss_chunks = 1;
  std::int32_t cp = 1, ulysses = 1;
  bool rings = false;     // Plan::rings
  std::int32_t zero = 0;  // 2 and 3 communicate in every micro-batch; 0 stands for 0 and 1
  // Of a stage alone that communicates in every micro-batch: how many it has, up to kSettledRounds; else 0.
  std::int32_t rounds = 0;
  std::int32_t shards = 1, expert_shards = 1;
  bool replicas = false, expert_replicas = false;  // of the shards
  program::WeightRanks experts;
  double expert_room = 1;
  bool by_node = false;   // Plan::exchanges_by_node
  bool overlaps = false;  // Plan::overlap_exchanges
  // Of each chunk, the first layers whose activations wait in the host's memory; and ranks of a node that
  // share the host then, else 0.
  std::int32_t offloaded_layers = 0, ranks_on_node = 0;
  program::Space parameters_in = program::Space::kDevice;
  StageHardware hardware;  // with the groups that communicate in chunks
  Recompute recompute = Recompute::kNone;
  std::int32_t recompute_first = 0;  // of the chunk's layers, where not all are
  RecomputeParts repeated;           // Plan::repeated
  bool sequence_parallel = false;
  program::Backwards backwards = program::Backwards::kWhole;
  bool reshards = true;  // of ZeRO-3
  // How segments follow each other; told apart only where they communicate.
  enum class Order : std::uint8_t { kTurns, kRows, kTurnsAndRows } order = Order::kTurns;
  // Whether a piece of work leaves communication, or copies, to run beside the next.
  bool runs_on() const { return zero >= 2 || offloaded_layers > 0; }
  friend bool operator==(const ChunkKey&, const ChunkKey&) = default;
  struct Hash {
    std::size_t operator()(const ChunkKey& k) const;
  };
};

class Samples;

class ChunkCosts {
 public:
  // `samples`: shared with the estimators of other threads; null for its own. `groups` outlives it.
  ChunkCosts(const Problem& problem, const program::Communication& over, const GroupTable& groups,
             std::shared_ptr<Samples> samples);
  ~ChunkCosts();

  // Without hardware, and as if all layers of a chunk were recomputed alike: set the chunk's.
  static ChunkKey key(const Plan& plan, std::int64_t devices_per_node);
  const Depth& depth() const;
  // The role's cost with these blocks, `first` being canonical (Depth::canonical). References stay valid
  // until sizes are forgotten.
  const ChunkCost& cost(const ChunkKey& key, Role role, const BlockRange& blocks);
  // Of that chunk, where its ranks exchange tokens for their experts.
  const PairCost& pair(const ChunkKey& key, Role role, const BlockRange& blocks);
  // Bytes that a micro-batch's forward leaves for its backward of these blocks, the first of which so many
  // are recomputed, at the least; nothing is priced for it. Offloaded ones leave nothing.
  std::int64_t least_left(const Plan& plan, const BlockRange& blocks, std::int64_t recomputed);
  // Forgets what belongs to a micro-batch size and a placement, and keeps what all of them share.
  void forget_sizes();
  const program::SampleSizes& sample_sizes() const { return sample_; }
  // Bytes of a micro-batch's longest tower on all tensor ranks, which they gather or add; a rank's share of
  // the sequences.
  std::int64_t activation_bytes_of(const ChunkKey& key) const;
  // Bytes sent between stages for one micro-batch, of all towers.
  std::int64_t boundary_bytes(const ChunkKey& key) const;
  // Elements of blocks on one of these ranks. Valid for good.
  const program::ModelPieces& pieces(const program::WeightRanks& ranks);

 private:
  struct Layout;
  Layout& layout(const ChunkKey& key);
  // A sample's cost, and the peaks of its segments (SmallSegment::peaks).
  struct Priced {
    Role role;
    ChunkContent content;
    ChunkCost cost;
    std::array<std::vector<std::int64_t>, kChunkWorks> peaks;
    std::optional<PairCost> pair;  // once asked for
  };
  Priced& price_sample(Layout& l, Role role, const ChunkContent& content);
  const PairCost& price_pair(Layout& l, Role role, const ChunkContent& content);
  // Of a stretch: blocks after which the pattern of work repeats.
  std::int64_t period(const ChunkKey& key, const Stretch& stretch);
  // A range of a chunk that is so many periods longer than in a sample.
  struct Extension {
    std::size_t range;
    std::int64_t period, more;
  };
  struct Shortened {
    ChunkContent content;
    std::vector<Extension> extensions;
  };
  Shortened shortened(Layout& l, Role role, const ChunkContent& content);
  std::int64_t apart_at(const ChunkKey& k, std::int64_t block) const;
  ChunkContent content_of(const ChunkKey& k, const BlockRange& blocks) const;
  ChunkCost extended(Layout& l, Role role, const ChunkContent& content);

  const Model& model_;
  const Training& training_;
  const program::SampleSizes sample_;
  const Devices devices_;
  const Stack& stack_;
  const Cluster& cluster_;
  const GroupTable& groups_;
  const program::GroupIndex tp_, ep_, ulysses_, ring_, replica_, expert_replica_, shard_, expert_shard_;
  const program::LoadedOps loaded_;
  CollectiveModel collectives_;
  ExpertLoads loads_;
  std::shared_ptr<Samples> samples_;
  std::unordered_map<ChunkKey, std::unique_ptr<Layout>, ChunkKey::Hash> layouts_;
  Layout* recent_ = nullptr;
  std::map<program::WeightRanks, program::ModelPieces> pieces_;
};

}  // namespace orrery::sim
