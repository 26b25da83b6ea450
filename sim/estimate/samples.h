// SPDX-License-Identifier: Apache-2.0
//
// Small programs, compiled with the real compiler, from which chunks of any size are extended. What they are
// made of depends neither on the placement nor on the micro-batch size, and they are the dearest part of a
// large search: the estimators of all its threads share them. Internal to sim/estimate/.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "program/program.h"
#include "sim/estimate/chunks.h"
#include "sim/estimate/lanes.h"

namespace orrery::sim {

// By stream: its lane, or kLanes for transfers.
using LaneOfStream = std::array<LaneIndex, program::kMostStreams>;

struct SmallOp {
  Waits waits{};
  std::int32_t issued = 0;  // ops of the segment that the host issues before it, and it
  std::int32_t shape = 0;   // index in Structure::shapes
};

// A quantity that grows by a constant per smallest micro-batch.
struct Line {
  std::int64_t at_one = 0, more = 0;
  std::int64_t at(std::int64_t n) const { return at_one + (n - 1) * more; }
};

// Bytes above the start of a piece's work (program/pieces.h): most while the piece runs, and at its end.
struct SmallPiece {
  Line peak, net;
};

struct SmallSegment {
  std::array<std::vector<SmallOp>, kLanes> lanes;
  std::int64_t issued = 0;  // ops, transfers included
  Line peak, net;
  Line offloaded;  // bytes copied to the host
  // Peaks while the segment runs, in the order of its ops: up to the blocks that its first range repeats
  // (BlockRange::repeats), while these run, from there up to the next range's, and so on to the end.
  std::vector<Line> peaks;
  // Side by side with another segment it runs in pieces, of which the second and later ones begin with these
  // ops.
  std::vector<std::int32_t> cuts;
  std::vector<SmallPiece> pieces;
};

// One of three stages alike (first, middle, last), or the one that is everything.
struct Sample {
  Role role;
  ChunkContent content;
  std::array<SmallSegment, kChunkWorks> segments;  // of whole backwards, or of split ones
  // The last micro-batch's gradient work, where it communicates. A backward communicates with other replicas
  // in all micro-batches, or tensor ranks add their parts of gradients in the last one.
  SmallSegment closing;
};

// The shape of an op at the smallest micro-batch and at twice that.
using OpShape = std::array<program::Op, 2>;
program::Op at_size(const OpShape& shape, std::int64_t micro_batches);

// All samples of a kind.
class Structure {
 public:
  Structure(const ChunkKey& key, const Model& model, const Depth& depth, const Training& training,
            const Stack& stack);

  const std::int64_t least_micro_batch;  // of which others are multiples
  // Ranks that share ZeRO's shards in samples, as few as may be.
  std::int64_t shards() const { return plan_.shards(); }
  std::int64_t expert_shards() const { return plan_.expert_shards(); }

  // Hold it while asking for samples and shapes; samples stay valid and unchanged without it.
  std::mutex mutex;
  const Sample& sample(Role role, const ChunkContent& content);
  const std::vector<OpShape>& shapes() const { return shapes_; }  // more with every new sample
  // By kind of block: bytes that a forward leaves of it for its backward, at the least. Empty of models with
  // adapters, or of several towers.
  const std::vector<Line>& left();

 private:
  // What a sample is compiled from, at the smallest micro-batch.
  struct Small {
    Model model;
    Plan plan;
    std::int64_t stage = 0, blocks = 0;  // of its chunk
  };
  Small small(Role role, const ChunkContent& content) const;
  SmallSegment shrink(const program::Segment& one, const program::Segment& two, const LaneOfStream& lane_of,
                      const std::vector<Waits>& earlier, std::vector<Line> peaks);
  // With the axes of the key; as few replicas as may be.
  static Plan plan_of(const ChunkKey& key);
  std::int32_t intern(const program::Op& one, const program::Op& two);

  const ChunkKey key_;
  const Plan plan_;
  const Model& model_;
  const Depth& depth_;
  const Training& training_;
  const Stack& stack_;
  std::deque<Sample> samples_;
  std::optional<std::vector<Line>> left_;  // once asked for
  std::vector<OpShape> shapes_;
  std::unordered_multimap<std::size_t, std::int32_t> known_;  // hash of a shape -> index
};

// Thread-safe. What it is made from must outlive it.
class Samples {
 public:
  Samples(const Model& model, const Training& training, const Stack& stack)
      : depth(depth_of(model)), model_(model), training_(training), stack_(stack) {}
  Structure& of(const ChunkKey& key);

  const Depth depth;

 private:
  const Model& model_;
  const Training& training_;
  const Stack& stack_;
  std::mutex mutex_;
  std::unordered_map<ChunkKey, std::unique_ptr<Structure>, ChunkKey::Hash> structures_;
};

}  // namespace orrery::sim
