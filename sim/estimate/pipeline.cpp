// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/pipeline.h"

#include <algorithm>

namespace orrery::sim {
namespace {

using program::Slot;
using program::Work;

std::int64_t global_chunk(const PipelineShape& s, std::int64_t stage, std::int64_t chunk) {
  return s.schedule == Schedule::kZeroBubbleV && chunk % 2 == 1 ? (chunk + 1) * s.p - 1 - stage
                                                                : chunk * s.p + stage;
}

std::size_t index(std::int64_t a, std::int64_t b, std::int64_t width) {
  return static_cast<std::size_t>(a * width + b);
}

}  // namespace

const Pipeline::StageOrders& Pipeline::schedule(const PipelineShape& shape) {
  const auto [found, added] = schedules_.try_emplace(shape);
  if (added) found->second.stages = program::pipeline_schedule(shape.schedule, shape.p, shape.v, shape.m);
  return found->second;
}

void Pipeline::walk(const PipelineShape& s, const std::vector<const ChunkCost*>& chunks,
                    std::int64_t transfer, PipelineTimes& out) {
  const StageOrders& order = schedule(s);
  const std::int64_t total_chunks = s.p * s.v;
  constexpr std::int64_t kNotYet = -1;
  forward_end_.assign(static_cast<std::size_t>(total_chunks * s.m), kNotYet);
  backward_end_.assign(forward_end_.size(), kNotYet);
  out = {};
  out.stage_end.assign(static_cast<std::size_t>(s.p), 0);
  out.busy = out.dynamic_peak = out.stage_end;
  out.last_start.assign(static_cast<std::size_t>(total_chunks), 0);
  out.last_end = out.last_start;
  std::vector<std::size_t> next(static_cast<std::size_t>(s.p));
  std::vector<std::int64_t> live(static_cast<std::size_t>(s.p));
  std::vector<std::int64_t> work_list;
  for (std::int64_t i = s.p - 1; i >= 0; --i) work_list.push_back(i);
  std::vector<bool> listed(static_cast<std::size_t>(s.p), true);
  // A stage runs until it needs something another stage has not produced; producers put it back.
  while (!work_list.empty()) {
    const std::int64_t stage = work_list.back();
    work_list.pop_back();
    const auto i = static_cast<std::size_t>(stage);
    listed[i] = false;
    const auto& slots = order.stages[i];
    const auto release = [&](std::int64_t chunk) {
      const std::int64_t lap = chunk / s.p, place = chunk % s.p;
      const std::int64_t to = s.schedule == Schedule::kZeroBubbleV && lap % 2 == 1 ? s.p - 1 - place : place;
      if (to != stage && !listed[static_cast<std::size_t>(to)]) {
        listed[static_cast<std::size_t>(to)] = true;
        work_list.push_back(to);
      }
    };
    for (; next[i] < slots.size(); ++next[i]) {
      const Slot& slot = slots[next[i]];
      const std::int64_t g = global_chunk(s, stage, slot.chunk);
      std::int64_t ready = 0;
      const std::int64_t hop = s.p > 1 ? transfer : 0;
      if (slot.work == Work::kForward && g > 0) {
        ready = forward_end_[index(g - 1, slot.micro_batch, s.m)];
        if (ready == kNotYet) break;
        ready += hop;
      } else if (slot.work != Work::kForward && slot.work != Work::kBackwardWeight && g + 1 < total_chunks) {
        ready = backward_end_[index(g + 1, slot.micro_batch, s.m)];
        if (ready == kNotYet) break;
        ready += hop;
      }
      const ChunkWork kind = slot.work == Work::kForward          ? kChunkForward
                             : slot.work == Work::kBackwardWeight ? kChunkWeight
                                                                  : kChunkBackward;
      const WorkCost& cost = (*chunks[index(stage, slot.chunk, s.v)])[kind];
      const std::int64_t start = std::max(out.stage_end[i], ready), end = start + cost.time;
      out.stage_end[i] = end;
      out.busy[i] += cost.time;
      out.dynamic_peak[i] = std::max(out.dynamic_peak[i], live[i] + cost.peak);
      live[i] += cost.net;
      if (slot.work == Work::kForward) {
        forward_end_[index(g, slot.micro_batch, s.m)] = end;
        if (g + 1 < total_chunks) release(g + 1);
      } else {
        if (slot.work != Work::kBackwardWeight) {
          backward_end_[index(g, slot.micro_batch, s.m)] = end;
          if (g > 0) release(g - 1);
        }
        if (slot.micro_batch == s.m - 1 && slot.work != Work::kBackwardInput) {
          out.last_start[index(stage, slot.chunk, s.v)] = start;
          out.last_end[index(stage, slot.chunk, s.v)] = end;
        }
      }
    }
  }
  for (const std::int64_t e : out.stage_end) out.end = std::max(out.end, e);
}

const PipelineTimes& Pipeline::run(const PipelineShape& shape, const std::vector<const ChunkCost*>& chunks,
                                   std::int64_t transfer) {
  const std::int64_t period = shape.schedule == Schedule::kInterleaved ? shape.p : 1;
  const std::int64_t enough = 2 * shape.p + 2 * period;
  // The V schedule is found by list scheduling and has no simple period.
  if (shape.m <= enough + period || shape.schedule == Schedule::kZeroBubbleV) {
    walk(shape, chunks, transfer, longer_);
    return longer_;
  }
  const std::int64_t periods = (shape.m - enough) / period;
  PipelineShape small = shape;
  small.m = shape.m - periods * period;
  walk(small, chunks, transfer, shorter_);
  // GPipe and naive hold or serialise all micro-batches: their growth is a constant too.
  small.m += period;
  walk(small, chunks, transfer, longer_);
  const std::int64_t more = periods - 1;
  const auto extend = [&](std::int64_t& longer, std::int64_t shorter) {
    longer += more * (longer - shorter);
  };
  extend(longer_.end, shorter_.end);
  for (std::size_t i = 0; i < longer_.stage_end.size(); ++i) {
    extend(longer_.stage_end[i], shorter_.stage_end[i]);
    extend(longer_.busy[i], shorter_.busy[i]);
    extend(longer_.dynamic_peak[i], shorter_.dynamic_peak[i]);
  }
  for (std::size_t i = 0; i < longer_.last_end.size(); ++i) {
    extend(longer_.last_end[i], shorter_.last_end[i]);
    extend(longer_.last_start[i], shorter_.last_start[i]);
  }
  return longer_;
}

}  // namespace orrery::sim
