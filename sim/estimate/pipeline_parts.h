// SPDX-License-Identifier: Apache-2.0
//
// The parts of pipeline.h's closed forms. Internal to sim/estimate/.
#pragma once

#include "sim/estimate/pipeline.h"

namespace orrery::sim {

inline const WorkCost& cost_of(const PipelineCosts& costs, std::size_t run, std::int64_t v,
                               std::int64_t chunk, ChunkWork work) {
  return (*costs.chunks[run * static_cast<std::size_t>(v) + static_cast<std::size_t>(chunk)])[work];
}

// When each place of `out` finishes, for the schedules with one chunk a stage, and for the interleaved one.
void one_chunk_times(const PipelineShape& shape, const PipelineCosts& costs, PipelineTimes& out);
void interleaved_times(const PipelineShape& shape, const PipelineCosts& costs, PipelineTimes& out);

// Bytes above the begin of a forward and a backward side by side: most, and at their end.
PieceBytes side_by_side(const PairCost& forward, const PairCost& backward);

// Most bytes a stage of a run holds above its static ones. Not for schedules that are always walked.
std::int64_t stage_peak(const PipelineShape& shape, const PipelineCosts& costs, std::size_t run,
                        std::int64_t stage);

}  // namespace orrery::sim
