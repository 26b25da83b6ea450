// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/estimate/pipeline.h"

namespace orrery::sim {
namespace {

using program::Slot;
using program::Work;

std::size_t index(std::int64_t a, std::int64_t b, std::int64_t width) {
  return static_cast<std::size_t>(a * width + b);
}

std::int64_t global_chunk(const PipelineShape& s, std::int64_t stage, std::int64_t chunk) {
  return s.schedule == Schedule::kZeroBubbleV && chunk % 2 == 1 ? (chunk + 1) * s.p - 1 - stage
                                                                : chunk * s.p + stage;
}

std::int64_t home(const PipelineShape& s, std::int64_t chunk) {
  const std::int64_t lap = chunk / s.p, place = chunk % s.p;
  return s.schedule == Schedule::kZeroBubbleV && lap % 2 == 1 ? s.p - 1 - place : place;
}

}  // namespace

void walk_pipeline(const PipelineShape& s, const std::vector<std::vector<Slot>>& order,
                   const PipelineCosts& costs, PipelineTimes& out) {
  const std::int64_t total_chunks = s.p * s.v;
  // To the stage of another chunk.
  const auto hop = [&](std::int64_t from, std::int64_t chunk) {
    if (chunk < 0 || chunk >= total_chunks) return Hop{};
    const std::int64_t to = home(s, chunk);
    if (to == from || costs.hops.empty()) return to == from ? Hop{} : Hop{costs.transfer, 0};
    const bool around = to - from > 1 || from - to > 1;
    return costs.hops[static_cast<std::size_t>(around ? s.p - 1 : std::min(from, to))];
  };
  constexpr std::int64_t kNotYet = -1;
  // When the output of (chunk, micro-batch) has arrived at its consumer.
  std::vector<std::int64_t> forward_there(static_cast<std::size_t>(total_chunks * s.m), kNotYet);
  std::vector<std::int64_t> backward_there(forward_there.size(), kNotYet);
  // A stage sends one tensor at a time in each direction, and reduces gradients until some time. A transfer
  // and a reduction that share links have half of them each.
  std::vector<std::int64_t> sent(static_cast<std::size_t>(s.p)), grad_sent(sent), reduced(sent);
  const auto send = [&](std::int64_t& lane, std::int64_t from, std::int64_t ready, std::int64_t chunk) {
    const Hop h = hop(from, chunk);
    lane = std::max(lane, ready) + h.time();
    if (!h.beside_reductions) return lane;
    std::int64_t& here = reduced[static_cast<std::size_t>(from)];
    std::int64_t& there = reduced[static_cast<std::size_t>(home(s, chunk))];
    const std::int64_t busy = std::max(here, there);
    const std::int64_t slowed = std::clamp<std::int64_t>((busy - (lane - h.flow)) / 2, 0, h.flow);
    (here > there ? here : there) += slowed;
    return lane += slowed;
  };
  std::vector<std::int64_t> hosted(static_cast<std::size_t>(s.p));  // until when the host was at it
  std::vector<std::int64_t> live(static_cast<std::size_t>(s.p));
  std::vector<std::size_t> next(static_cast<std::size_t>(s.p));
  out.places.assign(static_cast<std::size_t>(s.p), {});
  out.last_start.assign(static_cast<std::size_t>(total_chunks), 0);
  out.last_end.assign(static_cast<std::size_t>(total_chunks), 0);
  for (std::size_t r = 0; r < costs.runs.size(); ++r) {
    for (std::int64_t i = costs.runs[r].first; i <= costs.runs[r].last(); ++i) {
      out.places[static_cast<std::size_t>(i)].stage = i;
      out.places[static_cast<std::size_t>(i)].run = static_cast<std::int64_t>(r);
    }
  }
  std::vector<std::int64_t> work_list;
  for (std::int64_t i = s.p - 1; i >= 0; --i) work_list.push_back(i);
  std::vector<bool> listed(static_cast<std::size_t>(s.p), true);
  // A stage runs until it needs something another stage has not produced; producers put it back.
  while (!work_list.empty()) {
    const std::int64_t stage = work_list.back();
    work_list.pop_back();
    const auto i = static_cast<std::size_t>(stage);
    listed[i] = false;
    PipelinePlace& place = out.places[i];
    const auto& slots = order[i];
    const auto release = [&](std::int64_t chunk) {
      const auto to = static_cast<std::size_t>(home(s, chunk));
      if (to != i && !listed[to]) {
        listed[to] = true;
        work_list.push_back(static_cast<std::int64_t>(to));
      }
    };
    for (; next[i] < slots.size(); ++next[i]) {
      const Slot& slot = slots[next[i]];
      const std::int64_t g = global_chunk(s, stage, slot.chunk);
      std::int64_t ready = 0;
      if (slot.work == Work::kForward && g > 0) {
        ready = forward_there[index(g - 1, slot.micro_batch, s.m)];
      } else if (slot.work != Work::kForward && slot.work != Work::kBackwardWeight && g + 1 < total_chunks) {
        ready = backward_there[index(g + 1, slot.micro_batch, s.m)];
      }
      if (ready == kNotYet) break;
      const ChunkWork kind = slot.work == Work::kForward          ? kChunkForward
                             : slot.work == Work::kBackwardWeight ? kChunkWeight
                                                                  : kChunkBackward;
      const WorkCost& cost = (*costs.chunks[index(place.run, slot.chunk, s.v)])[kind];
      // What the stage waited for finds its parameters fetched and earlier reductions done.
      const std::int64_t start = std::max(place.end, ready);
      const bool row = next[i] > 0 && slots[next[i] - 1].work == slot.work;
      const std::int64_t device = std::max(start + cost.latency, place.end + (row ? cost.row : cost.time));
      // The host issues ahead, and never waits.
      const std::int64_t end = std::max(device, hosted[i] + cost.hosted);
      hosted[i] += cost.host;
      place.end = end;
      place.peak = std::max(place.peak, live[i] + cost.peak);
      live[i] += cost.net;
      if (slot.work == Work::kForward) {
        forward_there[index(g, slot.micro_batch, s.m)] = send(sent[i], stage, end, g + 1);
        if (g + 1 < total_chunks) release(g + 1);
        continue;
      }
      const bool gradients = slot.micro_batch == s.m - 1 && slot.work != Work::kBackwardInput;
      if (gradients && !costs.hops.empty())
        reduced[i] = std::max(reduced[i], start) + costs.reductions[index(place.run, slot.chunk, s.v)];
      if (slot.work != Work::kBackwardWeight) {
        backward_there[index(g, slot.micro_batch, s.m)] = send(grad_sent[i], stage, end, g - 1);
        if (g > 0) release(g - 1);
      }
      if (gradients) {
        out.last_start[index(stage, slot.chunk, s.v)] = start;
        out.last_end[index(stage, slot.chunk, s.v)] = end;
      }
    }
  }
  out.end = 0;
  for (const PipelinePlace& p : out.places) out.end = std::max(out.end, p.end);
}

}  // namespace orrery::sim
