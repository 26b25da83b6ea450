// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/lanes.h"

namespace orrery::sim {

Lanes run_segments(std::initializer_list<const std::vector<TimedOp>*> segments,
                   const EngineOptions& options) {
  std::vector<TimedOp> ops;
  Waits before{};
  std::array<std::int32_t, 4> compute_ops{};  // so many are done when a segment's compute is
  std::size_t n = 0;
  for (const std::vector<TimedOp>* segment : segments) {
    Waits count{};
    for (TimedOp op : *segment) {
      for (std::size_t q = 0; q < kLanes; ++q) op.waits[q] += before[q];
      ++count[op.lane];
      ops.push_back(op);
    }
    for (std::size_t q = 0; q < kLanes; ++q) before[q] += count[q];
    compute_ops[n++] = before[program::kCompute];
  }
  Lanes out;
  std::size_t finished = 0;
  std::array<std::size_t, kLanes> cursor{};  // index into ops of the lane's head
  Waits done{};
  std::array<bool, kLanes> running{};
  std::array<double, kLanes> remaining{}, slow{};
  const auto seek = [&](std::size_t lane, std::size_t from) {
    while (from < ops.size() && ops[from].lane != lane) ++from;
    cursor[lane] = from;
  };
  for (std::size_t l = 0; l < kLanes; ++l) seek(l, 0);
  double now = 0;
  for (;;) {
    while (finished < n && done[program::kCompute] >= compute_ops[finished]) out.ends[finished++] = now;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t l = 0; l < kLanes; ++l) {
        while (!running[l] && cursor[l] < ops.size()) {
          const TimedOp& op = ops[cursor[l]];
          bool ready = true;
          for (std::size_t q = 0; q < kLanes; ++q) ready = ready && done[q] >= op.waits[q];
          if (!ready) break;
          moved = true;
          if (op.duration > 0) {
            running[l] = true;
            remaining[l] = op.duration;
          } else {
            ++done[l];
            seek(l, cursor[l] + 1);
          }
        }
      }
    }
    slow[0] = running[1] || running[2] ? options.compute_slowdown : 1.0;
    slow[1] = slow[2] = running[0] ? options.communication_slowdown : 1.0;
    double step = -1;
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (running[l] && (step < 0 || remaining[l] * slow[l] < step)) step = remaining[l] * slow[l];
    }
    if (step < 0) return out;
    if ((running[program::kCompute] || running[program::kTp]) && out.begin < 0) out.begin = now;
    now += step;
    for (std::size_t l = 0; l < kLanes; ++l) {
      if (!running[l]) continue;
      remaining[l] -= step / slow[l];
      if (remaining[l] > 0.5) continue;
      running[l] = false;
      ++done[l];
      seek(l, cursor[l] + 1);
    }
  }
}

}  // namespace orrery::sim
