// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/pipeline.h"

#include <algorithm>

#include "sim/estimate/pipeline_parts.h"

namespace orrery::sim {
namespace {

// Times p micro-batches, after which a schedule is in its steady state.
std::int64_t settled(Schedule s) {
  return always_walked(s) ? 3 : 2;
}

// The ends of runs. The first stage of a run holds most and ends last; where a stage's weight gradients wait
// for longer the further down it is, so may the last one.
void add_places(const PipelineShape& s, const PipelineCosts& costs, PipelineTimes& out) {
  out.end = 0;
  out.places.clear();
  const bool both = s.schedule == Schedule::kZeroBubbleH1;
  for (std::size_t r = 0; r < costs.runs.size(); ++r) {
    const StageRun& run = costs.runs[r];
    out.places.push_back({run.first, static_cast<std::int64_t>(r), 0, 0});
    if (both && run.count > 1) out.places.push_back({run.last(), static_cast<std::int64_t>(r), 0, 0});
  }
  out.last_start.resize(out.places.size() * static_cast<std::size_t>(s.v));
  out.last_end.resize(out.last_start.size());
}

void find_peaks(const PipelineShape& s, const PipelineCosts& costs, PipelineTimes& out) {
  for (PipelinePlace& place : out.places)
    place.peak = stage_peak(s, costs, static_cast<std::size_t>(place.run), place.stage);
}

}  // namespace

// A long step is a short one and more of its steady state, p micro-batches at a time.
void Pipeline::walk(const PipelineShape& shape, const PipelineCosts& costs) {
  PipelineShape s = shape;
  // A list has no steady state that is known.
  const std::int64_t enough = s.listed != nullptr ? s.m : (settled(s.schedule) + 1) * s.p;
  s.m = std::min(shape.m, enough);
  walk_.run(s, costs, times_);
  if (shape.m <= enough) return;
  s.m -= s.p;
  walk_.run(s, costs, shorter_);
  const std::int64_t more = shape.m - enough;
  const auto extend = [&](std::int64_t& longer, std::int64_t shorter) {
    longer += (longer - shorter) * more / shape.p;
  };
  extend(times_.end, shorter_.end);
  for (std::size_t i = 0; i < times_.places.size(); ++i) extend(times_.places[i].end, shorter_.places[i].end);
  for (std::size_t i = 0; i < times_.last_end.size(); ++i) {
    const std::int64_t length = times_.last_end[i] - times_.last_start[i];
    extend(times_.last_end[i], shorter_.last_end[i]);
    times_.last_start[i] = times_.last_end[i] - length;
  }
}

void Pipeline::close(const PipelineShape& shape, const PipelineCosts& costs, PipelineTimes& out) {
  add_places(shape, costs, out);
  (shape.schedule == Schedule::kInterleaved ? interleaved_times : one_chunk_times)(shape, costs, out);
}

std::int64_t Pipeline::least_end(const PipelineShape& shape, const PipelineCosts& costs) {
  close(shape, costs, least_);
  return least_.end;
}

const PipelineTimes& Pipeline::run(const PipelineShape& shape, const PipelineCosts& costs) {
  if (always_walked(shape.schedule) || costs.walk) {
    walk(shape, costs);
    if (always_walked(shape.schedule)) return times_;
  } else {
    close(shape, costs, times_);
  }
  find_peaks(shape, costs, times_);
  return times_;
}

const PipelineTimes& Pipeline::peaks(const PipelineShape& shape, const PipelineCosts& costs) {
  if (always_walked(shape.schedule)) return run(shape, costs);
  add_places(shape, costs, peaks_);
  find_peaks(shape, costs, peaks_);
  return peaks_;
}

}  // namespace orrery::sim
