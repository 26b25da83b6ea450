// SPDX-License-Identifier: Apache-2.0
//
// The fast path: time and peak memory of a plan without building its program. Same cost functions and
// same byte accounting as the engine; composes chunk costs (chunks.h), the pipeline's critical paths
// (pipeline.h), and per stage the gradient reduction that trails the last backward, the optimizer and
// the parameter gathers.
//
//   Estimator e(problem, topology);
//   Estimate x = e.estimate(plan);      // microseconds once its pieces are known
//
// Peak bytes equal the engine's exactly; time is within 1 % for 99 % of plans
// (tests/planner/estimate_test.cpp). Interleaved chunks of unequal size, which no search asks for, take their
// time from the engine itself: milliseconds.
#pragma once

#include <map>
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

// Plans are best asked for in an order in which neighbours share most of their fields: what depends on the
// shared ones is kept from one call to the next.
class Estimator {
 public:
  // Estimators of several threads may share what they compile, of the same problem.
  Estimator(const Problem& problem, const Topology& topology, std::shared_ptr<Samples> samples = nullptr);

  Estimate estimate(const Plan& plan);

  // The plan takes no less time than this; cheaper than the estimate.
  Time lower_bound(const Plan& plan);

  // Bytes a rank takes of its device when its program holds `logical`: context, communicators and
  // allocator overhead of the stack on top.
  Bytes device_bytes(const Plan& plan, Bytes logical) const;

 private:
  // One unit's work after its gradients are complete. `share`: part of its chunk's layers whose backward is
  // done by then; above 1, the chunk's whole backward.
  struct UnitCost {
    double share = 0;
    std::int64_t reduce = 0;  // beside the last backward
    std::int64_t late = 0;    // after all backwards, where the stack does not overlap
    std::int64_t norm = 0, trust = 0, optimizer = 0, gather = 0, clear = 0;
  };
  // A run of stages: its units, last chunk first as backwards end.
  struct StagePieces {
    std::int64_t static_bytes = 0;
    double most = 0;    // time from the last backward to the reduced gradients' norm, at the very most
    double update = 0;  // and of the update after it
    std::int64_t trust_sum = 0;  // of that, between LAMB's squares and the first unit's update
    std::vector<UnitCost> units;
    std::vector<std::size_t> chunk_end;  // index past the last unit of each chunk, in that order
  };
  // What depends on ZeRO and its shards.
  struct Pieces {
    std::int64_t zero = 0, shards = 1;
    std::vector<StagePieces> runs;
    std::int64_t tie_transfer = 0;
    // Of the norm's bins over tensor ranks and shards, and to the next stage; of the factor.
    std::int64_t norm_sum = 0, norm_hop = 0, norm_finish = 0;
  };
  // Chunks of the plan that are alike.
  struct ChunkKind {
    Role role = Role::kMiddle;
    std::int64_t layers = 0;
    const ChunkCost* cost = nullptr;
    std::int64_t layers_only = 0;  // time of the last gradient work without the head
  };

  void select(const Plan& plan);
  void split_stages(const Plan& plan);
  void limit_work(const Plan& plan);
  std::int64_t limited(Time t) const;
  const Pieces& pieces(const Plan& plan);
  void fill_pieces(const Plan& plan, std::size_t run, StagePieces& out);
  const UnitCost& unit_cost(const Plan& plan, std::int64_t elements);
  const GroupLinks& group(std::int64_t size, std::int64_t stride);
  const GroupLinks& pairs(const Plan& plan);
  std::int64_t collective(program::OpKind kind, std::int64_t bytes, const GroupLinks& links) const;
  std::int64_t elementwise(std::int64_t bytes) const;
  std::int64_t sum_over_parts(const Plan& plan, std::int64_t bytes);
  struct StageEnd {
    std::int64_t reduced = 0;  // all gradients are
    std::int64_t ready = 0;    // the rank's part of the gradient norm is
    std::int64_t done = 0;     // without a norm to wait for: parameters are updated and gathered
  };
  StageEnd stage_end(const StagePieces& s, std::size_t place, std::int64_t tie);
  std::int64_t updated(const StagePieces& s, std::int64_t start) const;
  Time engine_step(const Plan& plan) const;

  const Problem& problem_;
  const Topology& topology_;
  BytesPerParameter bytes_;
  CollectiveModel collectives_;
  ChunkCosts chunk_costs_;
  Pipeline pipeline_;
  std::map<std::pair<std::int64_t, std::int64_t>, GroupLinks> groups_;
  std::map<std::array<std::int64_t, 3>, GroupLinks> pairs_;

  // Of the plan last looked at, from what changes least often to what changes most.
  std::optional<Plan> selected_;
  std::vector<ChunkKind> kinds_;
  std::vector<std::size_t> places_;  // index in kinds_, by run * vpp + local chunk
  std::vector<bool> dominated_;      // by run: it cannot end the step
  std::int64_t last_run_ = 0;        // that holds the last chunk
  bool uneven_ = false;              // chunks differ in layers, and not only the ends
  std::vector<Pieces> pieces_;       // memory is kept from plan to plan
  std::size_t pieces_in_use_ = 0;
  ChunkKey key_;
  PipelineCosts costs_;
  bool too_long_ = false;           // the plan's step is not counted; its costs are cut, so that no sum wraps
  std::vector<ChunkCost> limited_;  // then
  const PipelineTimes* times_ = nullptr;  // null until asked for
  std::vector<program::UnitSize> unit_sizes_;
  std::vector<std::pair<std::int64_t, UnitCost>> unit_costs_;
  std::vector<double> reduced_at_;
};

}  // namespace orrery::sim
