// SPDX-License-Identifier: Apache-2.0
//
// The fast path: time and peak memory of a plan without building its program. Same cost functions and
// same byte accounting as the engine; composes chunk costs (chunks.h), the pipeline recurrence
// (pipeline.h), and per stage the gradient reduction that trails the last backward, the optimizer and
// the parameter gathers (Pieces).
//
//   Estimator e(problem, topology);
//   Estimate x = e.estimate(plan);      // microseconds once its pieces are known
//
// Peak bytes equal the engine's exactly; time is within 1 % where nothing contends (tests/planner).
#pragma once

#include <optional>

#include "core/scenario.h"
#include "program/units.h"
#include "sim/estimate/pipeline.h"

namespace orrery::sim {

struct Estimate {
  Time step;
  Bytes peak;  // logical bytes of the fullest stage
  std::int32_t fullest_stage = 0;
  friend bool operator==(const Estimate&, const Estimate&) = default;
};

class Estimator {
 public:
  Estimator(const Problem& problem, const Topology& topology);

  Estimate estimate(const Plan& plan);

  // Cheap bounds: the plan takes no less time or memory than these.
  Time lower_bound(const Plan& plan);
  Bytes least_memory(const Plan& plan);

  // Bytes a rank takes of its device when its program holds `logical`: context, communicators and
  // allocator overhead of the stack on top.
  Bytes device_bytes(const Plan& plan, Bytes logical) const;

 private:
  // One unit's share of the work after the last backward. `share`: part of its chunk's layers whose
  // backward is done when its gradients are complete; above 1, the chunk's whole backward.
  struct UnitCost {
    double share = 0;
    std::int64_t reduce = 0, optimizer = 0, gather = 0, clear = 0, shard = 0;
  };
  struct ChunkUnits {
    std::int64_t layers = 0;
    bool head = false;
    std::size_t end = 0;  // index past its last unit
  };
  struct StagePieces {
    std::int64_t stage = 0, static_bytes = 0;
    std::vector<ChunkUnits> chunks;  // last chunk first: the order in which backwards end
    std::vector<UnitCost> units;
  };
  struct PiecesKey {
    std::int64_t tp, pp, vpp, dp, zero, shards, micro_batch;
    RankOrder order;
    bool sequence_parallel, v_shape, light;
    bool operator==(const PiecesKey&) const = default;
  };
  struct Pieces {
    PiecesKey key;
    std::vector<StagePieces> stages;
    std::int64_t transfer = 0, tie_transfer = 0;
  };

  void select(const Plan& plan);  // layers_, chunks_ and key_ of the plan
  const Pieces& pieces(const Plan& plan);
  StagePieces stage_pieces(const Plan& plan, std::int64_t stage);
  UnitCost unit_cost(const Plan& plan, std::int64_t elements);
  const PipelineTimes& pipeline(const Plan& plan, std::int64_t transfer);
  const GroupLinks& group(std::int64_t size, std::int64_t stride);
  std::int64_t collective(program::OpKind kind, std::int64_t bytes, const GroupLinks& links);
  std::int64_t elementwise(std::int64_t bytes) const;
  struct StageEnd {
    std::int64_t reduced, done;
  };
  StageEnd stage_end(const StagePieces& s, const PipelineTimes& times, std::int64_t vpp, std::int64_t tie);

  const Problem& problem_;
  const Topology& topology_;
  BytesPerParameter bytes_;
  ChunkCosts costs_;
  Pipeline pipelines_;
  std::map<std::pair<std::int64_t, std::int64_t>, GroupLinks> groups_, pairs_;

  // The plan being looked at. Consecutive plans of a search share most of it.
  std::optional<Plan> selected_;
  ChunkKey key_;
  std::vector<std::int64_t> layers_;
  std::vector<const ChunkCost*> chunks_;
  std::vector<std::int64_t> middle_;  // time of the last gradient work of a middle chunk, by chunks_ index
  std::vector<Pieces> pieces_;        // recent ones
  std::size_t oldest_ = 0;
  struct PipelineKey {
    std::vector<const ChunkCost*> chunks;
    PipelineShape shape;
    std::int64_t transfer = 0;
    bool operator==(const PipelineKey&) const = default;
  };
  PipelineKey cached_key_;
  PipelineTimes cached_times_;
  std::vector<double> reduced_at_;
};

}  // namespace orrery::sim
