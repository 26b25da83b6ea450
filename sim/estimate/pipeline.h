// SPDX-License-Identifier: Apache-2.0
//
// The pipeline of one step in max-plus algebra: when each stage does each piece of its schedule, given
// a time per (chunk, work) and a transfer time between stages; and the most bytes each stage holds.
//
// After the warm-up the schedule repeats with a period q (1 micro-batch, p for interleaved), so a long
// step is a short one plus whole periods. O(p v min(m, ~2p)).
#pragma once

#include <vector>

#include "program/schedule.h"
#include "sim/estimate/chunks.h"

namespace orrery::sim {

struct PipelineShape {
  Schedule schedule = Schedule::k1F1B;
  std::int64_t p = 1, v = 1, m = 1;
  friend auto operator<=>(const PipelineShape&, const PipelineShape&) = default;
};

struct PipelineTimes {
  std::int64_t end = 0;  // last work of any stage
  std::vector<std::int64_t> stage_end;
  std::vector<std::int64_t> last_start,
      last_end;                            // of the last micro-batch's gradient work, by stage * v + chunk
  std::vector<std::int64_t> busy;          // by stage
  std::vector<std::int64_t> dynamic_peak;  // bytes above static, by stage
};

// Schedules are kept: the same shape is asked for with many costs.
class Pipeline {
 public:
  // `chunks[stage * v + chunk]`, `transfer` ps per boundary crossing.
  const PipelineTimes& run(const PipelineShape& shape, const std::vector<const ChunkCost*>& chunks,
                           std::int64_t transfer);

 private:
  struct StageOrders {
    std::vector<std::vector<program::Slot>> stages;
  };
  const StageOrders& schedule(const PipelineShape& shape);
  void walk(const PipelineShape& shape, const std::vector<const ChunkCost*>& chunks, std::int64_t transfer,
            PipelineTimes& out);

  std::map<PipelineShape, StageOrders> schedules_;
  PipelineTimes shorter_, longer_;
  std::vector<std::int64_t> forward_end_, backward_end_;
};

}  // namespace orrery::sim
