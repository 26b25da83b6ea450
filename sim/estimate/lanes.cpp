// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/lanes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace orrery::sim {

std::pair<double, double> sharing_of(double a, double b) {
  if (a + b <= 1) return {1, 1};
  const double to_a = a <= 0.5 ? a : b <= 0.5 ? 1 - b : 0.5;
  return {a / to_a, b / std::min(b, 1 - to_a)};
}

LaneEnds run_segments(std::initializer_list<const TimedSegment*> segments, const Pace& pace,
                      const Sharing& sharing, InputComes input) {
  struct Lane {
    const TimedOp* next = nullptr;  // null: there are no more
    std::size_t segment = 0, index = 0;
    bool running = false;
    double remaining = 0;
  };
  const TimedSegment* const* const at = segments.begin();
  const std::size_t n = segments.size();
  std::array<Waits, kMostSegments + 1> before{};  // ops of each lane in earlier segments
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t q = 0; q < kLanes; ++q)
      before[k + 1][q] = before[k][q] + static_cast<std::int32_t>((*at[k])[q].size());
  }
  std::array<Lane, kLanes> lanes;
  const auto seek = [&](std::size_t l) {
    Lane& lane = lanes[l];
    while (lane.segment < n && lane.index == (*at[lane.segment])[l].size()) {
      ++lane.segment;
      lane.index = 0;
    }
    lane.next = lane.segment < n ? &(*at[lane.segment])[l][lane.index] : nullptr;
  };
  for (std::size_t l = 0; l < kLanes; ++l) seek(l);
  LaneEnds out;
  std::size_t finished = 0;  // segments whose compute is done
  Waits done{};
  const auto complete = [&](std::size_t l) {
    lanes[l].running = false;
    ++done[l];
    ++lanes[l].index;
    seek(l);
  };
  const auto needs_input = [](std::size_t l) { return l != kDpLane && !is_copies(l); };
  bool arrived = input == InputComes::kAtOnce;
  double now = 0;
  for (;;) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t l = 0; l < kLanes; ++l) {
        Lane& lane = lanes[l];
        while (!lane.running && lane.next != nullptr) {
          const Waits &waits = lane.next->waits, &base = before[lane.segment];
          bool ready = lane.next->issued <= now && (arrived || !needs_input(l));
          for (std::size_t q = 0; q < kLanes; ++q) ready &= done[q] - base[q] >= waits[q];
          if (!ready) break;
          moved = true;
          lane.remaining = lane.next->time.duration;
          if (lane.remaining > 0)
            lane.running = true;
          else
            complete(l);
        }
      }
    }
    while (finished < n && done[kComputeLane] >= before[finished + 1][kComputeLane])
      out.ends[finished++] = now;
    const bool compute = lanes[kComputeLane].running,
               communication = std::any_of(lanes.begin() + kTpLane, lanes.begin() + kToHostLane,
                                           [](const auto&lane) { return lane.running; });
    double next_issue = std::numeric_limits<double>::infinity();
    for (const Lane& lane : lanes) {
      if (!lane.running && lane.next != nullptr && lane.next->issued > now)
        next_issue = std::min(next_issue, lane.next->issued);
    }
    const bool copies =
        std::any_of(lanes.begin() + kToHostLane, lanes.end(), [](const auto& lane) { return lane.running; });
    if (!compute && !communication && !copies && std::isinf(next_issue) && !arrived) {
      arrived = true;
      continue;
    }
    if (!compute && !communication && !copies && std::isinf(next_issue)) {
      out.drained = now;
      return out;
    }
    if ((compute || lanes[kTpLane].running || lanes[kEpLane].running || lanes[kCpLane].running) &&
        out.begin < 0)
      out.begin = now;
    std::array<double, kLanes> slow;
    slow.fill(compute ? pace.communication_slowdown : 1.0);
    std::fill(slow.begin() + kToHostLane, slow.end(), 1.0);
    slow[kComputeLane] = lanes[kEpLane].running ? pace.beside_exchanges()
                         : communication        ? pace.compute_slowdown
                                                : 1.0;
    double step = next_issue - now;
    for (const auto& [shares, other] :
         {std::pair{sharing.tp, kTpLane}, std::pair{sharing.ep, kEpLane}, std::pair{sharing.cp, kCpLane}}) {
      if (!shares || !lanes[other].running || !lanes[kDpLane].running) continue;
      std::array<double, kLanes> share{};
      for (const std::size_t l : {std::size_t{other}, std::size_t{kDpLane}}) {
        const OpTime& op = lanes[l].next->time;
        const double quiet = lanes[l].remaining - (op.duration - op.latency);
        if (quiet > 0.5)
          step = std::min(step, quiet * slow[l]);
        else
          share[l] = op.share;
      }
      const auto [of_other, of_dp] = sharing_of(share[other], share[kDpLane]);
      slow[other] = std::max(slow[other], of_other);
      slow[kDpLane] = std::max(slow[kDpLane], of_dp);
    }
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (lanes[l].running) step = std::min(step, lanes[l].remaining * slow[l]);
    }
    now += step;
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (!lanes[l].running) continue;
      lanes[l].remaining -= step / slow[l];
      if (lanes[l].remaining <= 0.5) complete(l);
    }
  }
}

}  // namespace orrery::sim
