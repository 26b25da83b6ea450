// SPDX-License-Identifier: Apache-2.0
//
// How many layers of each chunk full recomputation repeats, where chunks may differ.
//
// A stage keeps what a chunk's forward leaves for as many micro-batches as are in flight there: of 1F1B's p
// stages the first has p, the last 1. So a budget that the first stage keeps with many layers recomputed is
// kept by those behind it with fewer, and theirs is time that the pipeline takes less to fill and to drain.
// While all stages work the slowest sets the pace, and where that is the first stage it stays as it was.
//
// A stage of v chunks, of which chunk c repeats its first r_c layers, holds at moment t of its order of work
//     S + sum over c of h_c(t) A_c(r_c) + (peak of the work of t above its start)
// where S is what it always holds, A_c(r) what a forward of the chunk leaves, and h_c(t) the micro-batches
// between their forward and the end of their backward. All are the estimate's bytes, which are the engine's.
//
// fastest_within is exact: dynamic programming over the stage's chunks. Of two choices for the first of them,
// one that takes no less time and holds no less at any moment cannot be part of a better whole, and is
// dropped; so is one that exceeds the budget whatever the others choose. Taking the first chunks first is not
// quite exact. It is for what is held: on one stage micro-batches of a later chunk in flight are in flight of
// an earlier one too, so a layer that is repeated there saves no less at any moment. But a chunk that repeats
// its last layer too begins its backward with that layer's work again, and so holds one layer's input more.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan.h"
#include "program/schedule.h"
#include "sim/estimate/estimate.h"

namespace orrery::planner {

// Of a chunk with so many layers recomputed.
struct ChunkChoice {
  std::array<sim::PieceBytes, sim::kChunkWorks> work;  // by sim::ChunkWork
  std::int64_t time = 0;                               // ps for a micro-batch, forward and backward
};

struct StageChoices {
  std::vector<program::Slot> slots;              // its order of work
  std::int64_t fixed = 0, least = 0;             // bytes, as of sim::Estimator::StageBytes
  Bytes memory;                                  // of a device there
  std::vector<std::vector<ChunkChoice>> chunks;  // by local chunk and recomputed layers
};

// Of each stage of a plan, whatever it recomputes itself. As many micro-batches as fill the pipeline.
std::vector<StageChoices> stage_choices(sim::Estimator& estimator, const Plan& plan);

// The most bytes that the stage holds with so many layers of each of its chunks recomputed. O(slots v).
std::int64_t peak_bytes(const StageChoices& stage, const std::vector<std::int64_t>& recomputed);

// The recomputed layers of each chunk with which the stage takes least time and holds no more than `bytes`;
// none where no choice does. Exact while at most 4,096 choices for the first chunks are to be told apart (of
// alike layers there are few); of more, the fastest are followed.
std::optional<std::vector<std::int64_t>> fastest_within(const StageChoices& stage, std::int64_t bytes);

// Of all stages of a plan with pp above 1. Budgets are shares of a device's memory that the fullest stage may
// take, its overheads included.
class RecomputeChoices {
 public:
  RecomputeChoices(sim::Estimator& estimator, const Plan& plan);

  // The shares that stages take as their layers are recomputed in order, most first.
  const std::vector<double>& budgets() const { return budgets_; }
  // Each stage recomputes as few layers as its budget allows, those of its first chunks first; the least
  // that it can hold where it allows none.
  Plan in_order(double budget) const;
  // Each stage recomputes those with which it takes least time.
  Plan fastest(double budget) const;

 private:
  struct Level {
    std::vector<std::int64_t> recomputed;  // by local chunk
    double share = 0;
  };
  double share(std::size_t stage, std::int64_t bytes) const;
  const Level& level(std::size_t stage, double budget) const;
  template <class Choose>
  Plan plan_of(Choose choose) const;

  const sim::Estimator& estimator_;
  const Plan plan_;
  const std::vector<StageChoices> stages_;
  std::vector<std::vector<Level>> levels_;  // by stage and recomputed layers
  std::vector<double> budgets_;
};

}  // namespace orrery::planner
