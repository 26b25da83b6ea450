// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/estimate/pipeline_parts.h"

namespace orrery::sim {
namespace {

using program::Slot;
using program::Work;

// A tensor's way to the chunk that takes it.
struct Way {
  Hop hop;
  std::size_t to = 0;             // its stage
  std::int64_t* there = nullptr;  // when it has arrived, by micro-batch
  bool back = false;              // it comes back in a V
};

// A chunk on its stage.
struct Seat {
  const ChunkCost* cost = nullptr;
  const PairCost* pair = nullptr;          // of turns in pairs
  const std::int64_t* input = nullptr;     // by micro-batch; null for the first chunk
  const std::int64_t* gradient = nullptr;  // null for the last
  Way down, up;
  std::int64_t reduction = 0;  // of its gradients after the last micro-batch
};

// A stage sends one tensor at a time of the activations, of those that come back in a V, and of the
// gradients, and reduces gradients until some time.
struct Stage {
  std::int64_t sent = 0, back_sent = 0, grad_sent = 0, reduced = 0;
  std::int64_t hosted = 0;  // until when the host was at it
  std::int64_t live = 0;
};

}  // namespace

// A stage runs until it needs something another stage has not produced; producers put it back.
std::vector<PipelineWalk::Turn> PipelineWalk::in_turn(const PipelineShape& s) {
  const std::vector<std::vector<Slot>> order =
      s.listed != nullptr ? *s.listed : program::pipeline_schedule(s.schedule, s.p, s.v, s.m, s.in_pairs);
  const std::int64_t chunks = s.p * s.v;
  struct Progress {
    std::size_t next = 0;  // of its slots
    bool listed = true;
  };
  std::vector<Progress> progress(order.size());
  std::vector<std::size_t> work_list(order.size());
  std::size_t slots_in_all = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    work_list[i] = order.size() - 1 - i;
    slots_in_all += order[i].size();
  }
  std::vector<bool> forward_done(static_cast<std::size_t>(chunks * s.m)), backward_done(forward_done.size());
  const auto at = [&](std::int64_t chunk, std::int32_t micro_batch) {
    return static_cast<std::size_t>(chunk * s.m + micro_batch);
  };
  const auto release = [&](std::int64_t chunk) {
    if (chunk < 0 || chunk >= chunks) return;
    const auto to = static_cast<std::size_t>(stage_of_chunk(s.chunks(), s.p, chunk));
    if (progress[to].listed) return;
    progress[to].listed = true;
    work_list.push_back(to);
  };
  std::vector<Turn> turns;
  turns.reserve(slots_in_all);
  while (!work_list.empty()) {
    const std::size_t i = work_list.back();
    work_list.pop_back();
    const std::vector<Slot>& slots = order[i];
    std::size_t& next = progress[i].next;
    // Whether what a slot takes from another stage is there.
    const auto ready = [&](const Slot& slot) {
      const std::int64_t chunk =
          program::global_chunk(s.chunks(), s.p, static_cast<std::int64_t>(i), slot.chunk);
      const bool forward = slot.work == Work::kForward;
      const std::int64_t from = forward ? chunk - 1 : chunk + 1;
      return slot.work == Work::kBackwardWeight || from < 0 || from >= chunks ||
             (forward ? forward_done : backward_done)[at(from, slot.micro_batch)];
    };
    for (; next < slots.size(); ++next) {
      const Slot& slot = slots[next];
      const bool begins_pair = next + 1 < slots.size() && slots[next + 1].beside;
      if (!ready(slot) || (begins_pair && !ready(slots[next + 1]))) break;
      turns.push_back({.work = slot.work,
                       .in_row = next > 0 && slots[next - 1].work == slot.work,
                       .paired = begins_pair || slot.beside,
                       .stage = static_cast<std::int32_t>(i),
                       .chunk = slot.chunk,
                       .micro_batch = slot.micro_batch});
      if (slot.work == Work::kBackwardWeight) continue;
      const std::int64_t chunk =
          program::global_chunk(s.chunks(), s.p, static_cast<std::int64_t>(i), slot.chunk);
      const bool forward = slot.work == Work::kForward;
      (forward ? forward_done : backward_done)[at(chunk, slot.micro_batch)] = true;
      release(forward ? chunk + 1 : chunk - 1);
    }
    progress[i].listed = false;
  }
  return turns;
}

void PipelineWalk::run(const PipelineShape& s, const PipelineCosts& costs, PipelineTimes& out) {
  const auto [turns, added] = turns_.try_emplace(s);
  if (added) turns->second = in_turn(s);
  const std::int64_t chunks = s.p * s.v;
  const auto stages = static_cast<std::size_t>(s.p), width = static_cast<std::size_t>(s.v),
             micro_batches = static_cast<std::size_t>(s.m);
  out.places.assign(stages, {});
  out.last_start.assign(stages * width, 0);
  out.last_end.assign(stages * width, 0);
  out.last_work.assign(stages * width, kChunkBackward);
  pairs_.clear();
  for (std::size_t r = 0; r < costs.runs.size(); ++r) {
    for (std::int64_t i = costs.runs[r].first; i <= costs.runs[r].last(); ++i)
      out.places[static_cast<std::size_t>(i)] = {.stage = i, .run = static_cast<std::int64_t>(r)};
  }
  // Turns write a time before they read it.
  forward_there_.resize(static_cast<std::size_t>(chunks) * micro_batches);
  backward_there_.resize(forward_there_.size());
  const auto row = [&](std::vector<std::int64_t>& there, std::int64_t chunk) {
    return &there[static_cast<std::size_t>(chunk) * micro_batches];
  };
  const auto way = [&](std::int64_t from, std::int64_t chunk, std::int64_t* there) {
    Way w{.there = there, .back = program::comes_back(s.chunks(), s.p, chunk - 1)};
    if (chunk < 0 || chunk >= chunks) return w;
    const std::int64_t to = stage_of_chunk(s.chunks(), s.p, chunk);
    w.to = static_cast<std::size_t>(to);
    if (to == from) return w;
    const bool around = to - from > 1 || from - to > 1;
    w.hop = costs.hops.empty() ? Hop{costs.transfer, 0}
                               : costs.hops[static_cast<std::size_t>(around ? s.p - 1 : std::min(from, to))];
    return w;
  };
  std::vector<Seat> seats;
  seats.reserve(stages * width);
  for (std::int64_t i = 0; i < s.p; ++i) {
    for (std::int64_t c = 0; c < s.v; ++c) {
      const std::int64_t g = program::global_chunk(s.chunks(), s.p, i, c);
      const auto alike = static_cast<std::size_t>(out.places[static_cast<std::size_t>(i)].run * s.v + c);
      seats.push_back({.cost = costs.chunks[alike],
                       .pair = s.in_pairs ? costs.pairs[alike] : nullptr,
                       .input = g > 0 ? row(forward_there_, g - 1) : nullptr,
                       .gradient = g + 1 < chunks ? row(backward_there_, g + 1) : nullptr,
                       .down = way(i, g + 1, row(forward_there_, g)),
                       .up = way(i, g - 1, row(backward_there_, g)),
                       .reduction = costs.reductions.empty() ? 0 : costs.reductions[alike]});
    }
  }
  std::vector<Stage> state(stages);
  // A transfer and a reduction that share links have half of them each.
  const auto send = [&](Stage& from, std::int64_t& lane, std::int64_t ready, const Way& w) {
    lane = std::max(lane, ready) + w.hop.time();
    if (!w.hop.beside_reductions) return lane;
    std::int64_t& there = state[w.to].reduced;
    const std::int64_t busy = std::max(from.reduced, there);
    const std::int64_t slowed = std::clamp<std::int64_t>((busy - (lane - w.hop.flow)) / 2, 0, w.hop.flow);
    (from.reduced > there ? from.reduced : there) += slowed;
    return lane += slowed;
  };
  // Side by side both begin when both can, and end together. The forward's output is sent then.
  const auto run_pair = [&](const Turn& forward, const Turn& backward) {
    const auto i = static_cast<std::size_t>(forward.stage);
    const auto seat_of = [&](const Turn& t) -> const Seat& {
      return seats[i * width + static_cast<std::size_t>(t.chunk)];
    };
    const auto there = [](const std::int64_t* from, const Turn& t) {
      return from == nullptr ? 0 : from[t.micro_batch];
    };
    const Seat &down = seat_of(forward), &up = seat_of(backward);
    Stage& stage = state[i];
    PipelinePlace& place = out.places[i];
    const WorkCost &f = (*down.cost)[kChunkForward], &b = (*up.cost)[kChunkBackward];
    const std::int64_t start =
        std::max({place.end, there(down.input, forward), there(up.gradient, backward)});
    const std::int64_t device = start + f.time + b.time - saved_by(*down.pair, *up.pair);
    const auto [bytes, first] = pairs_.try_emplace({down.pair, up.pair});
    if (first) bytes->second = side_by_side(*down.pair, *up.pair);
    place.peak = std::max(place.peak, stage.live + bytes->second.peak);
    stage.live += bytes->second.net;
    stage.hosted += f.host + b.host + (down.pair->host + up.pair->host) / 2;
    place.end = std::max(device, stage.hosted);
    // What they send to one stage at once shares the links to it.
    Way sent = down.down, grad_sent = up.up;
    if (sent.to == grad_sent.to && sent.hop.time() > 0 && grad_sent.hop.time() > 0) {
      sent.hop.flow *= 2;
      grad_sent.hop.flow *= 2;
    }
    sent.there[forward.micro_batch] = send(stage, sent.back ? stage.back_sent : stage.sent, place.end, sent);
    if (backward.micro_batch + 1 == s.m) {
      if (!costs.reductions.empty()) stage.reduced = std::max(stage.reduced, start) + up.reduction;
      const auto chunk = i * width + static_cast<std::size_t>(backward.chunk);
      out.last_start[chunk] = start;
      out.last_end[chunk] = place.end;
    }
    grad_sent.there[backward.micro_batch] = send(stage, stage.grad_sent, place.end, grad_sent);
  };
  for (auto t = turns->second.begin(); t != turns->second.end(); ++t) {
    const Turn& turn = *t;
    if (turn.paired) {
      run_pair(turn, *++t);
      continue;
    }
    const auto i = static_cast<std::size_t>(turn.stage);
    const auto chunk = i * width + static_cast<std::size_t>(turn.chunk);
    const auto micro_batch = static_cast<std::size_t>(turn.micro_batch);
    const Seat& seat = seats[chunk];
    Stage& stage = state[i];
    PipelinePlace& place = out.places[i];
    const std::int64_t* from = turn.work == Work::kForward          ? seat.input
                               : turn.work == Work::kBackwardWeight ? nullptr
                                                                    : seat.gradient;
    const WorkCost& cost = (*seat.cost)[chunk_work(turn.work)];
    // What the stage waited for finds its parameters fetched and earlier reductions done.
    const std::int64_t start = std::max(place.end, from == nullptr ? 0 : from[micro_batch]);
    const std::int64_t device =
        std::max(start + cost.latency, place.end + (turn.in_row ? cost.row : cost.time));
    // The host issues ahead, and never waits.
    const std::int64_t end = std::max(device, stage.hosted + cost.hosted);
    stage.hosted += cost.host;
    place.end = end;
    place.peak = std::max(place.peak, stage.live + cost.peak);
    stage.live += cost.net;
    if (turn.work == Work::kForward) {
      seat.down.there[micro_batch] =
          send(stage, seat.down.back ? stage.back_sent : stage.sent, end, seat.down);
      continue;
    }
    const bool gradients = micro_batch + 1 == micro_batches && turn.work != Work::kBackwardInput;
    if (gradients && !costs.reductions.empty())
      stage.reduced = std::max(stage.reduced, start) + seat.reduction;
    if (turn.work != Work::kBackwardWeight)
      seat.up.there[micro_batch] = send(stage, stage.grad_sent, end, seat.up);
    if (gradients) {
      out.last_start[chunk] = start;
      out.last_end[chunk] = end;
      out.last_work[chunk] = chunk_work(turn.work);
    }
  }
  out.end = 0;
  for (const PipelinePlace& p : out.places) out.end = std::max(out.end, p.end);
}

}  // namespace orrery::sim
