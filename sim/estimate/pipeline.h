// SPDX-License-Identifier: Apache-2.0
//
// The pipeline of one step: when its stages finish, and the most bytes each holds, from a time per (chunk,
// work) and a transfer time between neighbouring stages.
//
// Two ways to the same numbers:
//   PipelineWalk    the recurrence, slot by slot. O(p v m).
//   Pipeline::run   its critical paths in closed form, over runs of alike stages. O(runs^2 + runs v),
//                   whatever p and m: an even split has at most four runs. Of schedules in a V a short walk
//                   is extended: zero-bubble V is found by list scheduling, and DualPipeV's backwards are
//                   whole and split. Interleaved chunks of unequal size make the critical path change stages
//                   at every turn: of those only peaks are right.
//
// A closed form is the longest of a family of paths through the schedule's dependency graph, so it never
// exceeds the recurrence. tests/sim/pipeline_test.cpp states by how much it may fall short.
//
// 1F1B. Let T_i = F_i + B_i of stage i and c the transfer. A path goes down the stages by forwards and up by
// backwards; each step forward in micro-batches either turns at the top of such a zigzag or goes down one
// stage. So the longest path through m micro-batches repeats the window [i, j] of stages with the largest
//     (sum of T_i .. T_j + 2 c (j - i)) / (j - i + 1)      per micro-batch,
// after one way down and up all stages: sum of T + 2 c (p - 1). With equal stages and c = 0 this is
// (m + p - 1) T; c > 0 costs 2 c (1 - 1/p) per micro-batch, the exposed transfers of 1F1B.
//
// On the last micro-batch's way up, transfers share links with the reductions of gradients: each loses half
// of the time that a reduction goes on after the transfer could begin. With a backward B, a reduction R from
// the backward's begin and a transfer of latency l and flow f, the transfer takes min(f, max(0, R - B - l) /
// 2) longer, once per stage that the path goes up.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "program/schedule.h"
#include "sim/estimate/chunks.h"

namespace orrery::sim {

constexpr ChunkWork chunk_work(program::Work work) {
  switch (work) {
    case program::Work::kForward:
      return kChunkForward;
    case program::Work::kBackward:
      return kChunkBackward;
    case program::Work::kBackwardInput:
      return kChunkBackwardInput;
    case program::Work::kBackwardWeight:
      return kChunkWeight;
  }
  return kChunkForward;
}

struct PipelineShape {
  Schedule schedule = Schedule::k1F1B;
  std::int64_t p = 1, v = 1, m = 1;
  bool in_pairs = false;  // forwards and backwards run side by side
  // Of a listed schedule: where its chunks lie, and its work, which outlives what knows the shape.
  ChunkPlacement listed_chunks = ChunkPlacement::kInTurns;
  const std::vector<std::vector<program::Slot>>* listed = nullptr;
  ChunkPlacement chunks() const {
    return schedule == Schedule::kZeroBubbleV || schedule == Schedule::kDualPipeV
               ? ChunkPlacement::kThereAndBack
               : listed_chunks;
  }
  friend auto operator<=>(const PipelineShape&, const PipelineShape&) = default;
};

// Whether no closed form has the schedule's times and peaks.
constexpr bool always_walked(Schedule s) {
  return s == Schedule::kZeroBubbleV || s == Schedule::kDualPipeV || s == Schedule::kListed;
}

// Neighbouring stages that hold alike chunks.
struct StageRun {
  std::int64_t first = 0, count = 1;
  std::int64_t last() const { return first + count - 1; }
  friend bool operator==(const StageRun&, const StageRun&) = default;
};

// A crossing between stages: a latency, then a flow, which may use the links of reductions of gradients.
struct Hop {
  std::int64_t latency = 0, flow = 0;
  bool local = true;  // inside a scale-up domain
  bool beside_reductions = false;
  std::int64_t time() const { return latency + flow; }
  friend bool operator==(const Hop&, const Hop&) = default;
};
inline bool shorter(const Hop& a, const Hop& b) {
  return a.time() < b.time();
}

struct PipelineCosts {
  std::vector<StageRun> runs;            // in stage order
  std::vector<const ChunkCost*> chunks;  // by run * v + local chunk
  std::vector<const PairCost*> pairs;    // as chunks, where the shape is in pairs
  std::int64_t transfer = 0;             // ps per crossing between stages, in closed forms
  // Where crossings differ or share links: of each stage to the next one, and of the last to the first. Both
  // ways alike.
  std::vector<Hop> hops;
  // With hops: of a chunk's gradients after its last micro-batch, beside what comes next; as chunks. Empty
  // where they are left out.
  std::vector<std::int64_t> reductions;
  // Closed forms miss something: crossings that differ, work that waits for the host, or pairs.
  bool walk = false;
  friend bool operator==(const PipelineCosts&, const PipelineCosts&) = default;
};

// A stage that may finish last or hold most: the ends of runs suffice.
struct PipelinePlace {
  std::int64_t stage = 0, run = 0;
  std::int64_t end = 0;   // of its last work
  std::int64_t peak = 0;  // bytes above static
};

struct PipelineTimes {
  std::int64_t end = 0;
  std::vector<PipelinePlace> places;
  // Of the last micro-batch's gradient work: place * v + chunk.
  std::vector<std::int64_t> last_start, last_end;
  std::vector<ChunkWork> last_work;  // as these, of a walk
};

// Keeps the order of work of each shape, and memory, from one walk to the next.
class PipelineWalk {
 public:
  // Every stage is a place.
  void run(const PipelineShape& shape, const PipelineCosts& costs, PipelineTimes& out);

 private:
  // A slot of a stage. No slot comes before one whose tensor it needs.
  struct Turn {
    program::Work work = program::Work::kForward;
    bool in_row = false;  // after the same kind of work
    bool paired = false;  // a forward that runs side by side with the backward after it, or this
    std::int32_t stage = 0, chunk = 0, micro_batch = 0;
  };
  static std::vector<Turn> in_turn(const PipelineShape& shape);

  std::map<PipelineShape, std::vector<Turn>> turns_;
  std::vector<std::int64_t> forward_there_, backward_there_;  // by chunk and micro-batch
  // Bytes above the begin of a forward and a backward side by side.
  std::map<std::pair<const PairCost*, const PairCost*>, PieceBytes> pairs_;
};

class Pipeline {
 public:
  // Valid until the next call.
  const PipelineTimes& run(const PipelineShape& shape, const PipelineCosts& costs);
  // Places and their peaks alone.
  const PipelineTimes& peaks(const PipelineShape& shape, const PipelineCosts& costs);
  // The closed form's end, whether or not the costs are to be walked: the walk's is no earlier where no
  // crossing takes less than `transfer`, and reductions are left out. Not for schedules that are always
  // walked.
  std::int64_t least_end(const PipelineShape& shape, const PipelineCosts& costs);

 private:
  void close(const PipelineShape& shape, const PipelineCosts& costs, PipelineTimes& out);
  void walk(const PipelineShape& shape, const PipelineCosts& costs);

  PipelineWalk walk_;
  PipelineTimes times_, shorter_, least_, peaks_;
};

}  // namespace orrery::sim
