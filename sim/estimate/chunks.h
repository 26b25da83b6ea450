// SPDX-License-Identifier: Apache-2.0
//
// What one model chunk costs, by role and number of layers: the building blocks of the estimate.
//
// Layers of a chunk are alike, so time and memory of a chunk grow by a constant per layer (per group of
// k layers under "recompute every k"); and the sizes in its ops and buffers grow by a constant per sequence
// of the micro-batch. A chunk of any size is therefore two small ones at two small micro-batches, compiled
// with the real compiler, extended by their differences, priced and walked. Everything is memoised over
// plans.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "core/scenario.h"
#include "sim/cost.h"

namespace orrery::sim {

// One piece of work of a chunk for one micro-batch.
struct WorkCost {
  std::int64_t time = 0;           // ps, in a steady state
  std::int64_t row = 0;            // ps after the same work, where both rows and turns occur: interleaved
  std::int64_t latency = 0;        // ps from its input to its output when the stage has waited for it
  std::int64_t host = 0;           // ps to issue its ops
  std::int64_t peak = 0, net = 0;  // bytes live above the start, and left at the end
  std::int64_t late = 0;           // peak from the last group of layers on
};
enum ChunkWork : std::uint8_t {
  kChunkForward,
  kChunkBackward,
  kChunkWeight
};  // backward: input part when split
using ChunkCost = std::array<WorkCost, 3>;

enum class Role : std::uint8_t { kFirst, kMiddle, kLast, kOnly };

// What a chunk's cost depends on, besides the problem.
struct ChunkKey {
  std::int32_t tp = 1, tp_stride = 1, micro_batch = 1, recompute_layers = 1;
  std::int32_t zero = 0;  // 2 and 3 communicate in every micro-batch; 0 stands for 0 and 1
  std::int32_t shards = 1, shard_stride = 1;
  Recompute recompute = Recompute::kNone;
  bool sequence_parallel = false, split = false;
  // How segments follow each other; told apart only where they communicate.
  enum class Order : std::uint8_t { kTurns, kRows, kTurnsAndRows } order = Order::kTurns;
  friend bool operator==(const ChunkKey&, const ChunkKey&) = default;
  struct Hash {
    std::size_t operator()(const ChunkKey& k) const;
  };
};

class Samples;

class ChunkCosts {
 public:
  // `samples`: shared with the estimators of other threads; null for its own.
  ChunkCosts(const Problem& problem, const Topology& topology, std::shared_ptr<Samples> samples);
  ~ChunkCosts();

  static ChunkKey key(const Plan& plan);
  // The role's cost with n layers. References stay valid until sizes are forgotten.
  const ChunkCost& cost(const ChunkKey& key, Role role, std::int64_t layers);
  // Forgets what belongs to a micro-batch size and a placement, and keeps what all of them share.
  void forget_sizes();
  // Bytes sent between stages for one micro-batch.
  std::int64_t boundary_bytes(const ChunkKey& key) const;

 private:
  struct Layout;
  Layout& layout(const ChunkKey& key);
  std::int64_t layers_per_unit(const ChunkKey& key) const;
  const std::array<ChunkCost, 3>& price_sample(Layout& l, bool alone, std::int64_t layers);

  const Model& model_;
  const Training& training_;
  const Device& device_;
  const Stack& stack_;
  const Topology& topology_;
  CollectiveModel collectives_;
  std::shared_ptr<Samples> samples_;
  std::unordered_map<ChunkKey, std::unique_ptr<Layout>, ChunkKey::Hash> layouts_;
  Layout* recent_ = nullptr;
};

}  // namespace orrery::sim
