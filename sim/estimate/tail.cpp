// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/tail.h"

#include <algorithm>
#include <array>
#include <limits>

namespace orrery::sim {

TailEnds run_tail(double start, std::span<const TailJob> compute, std::span<const TailJob> communication,
                  double compute_slowdown, double communication_slowdown) {
  struct Lane {
    std::span<const TailJob> jobs;
    double slowdown, left, end;
    std::size_t next = 0;
    bool over() const { return next == jobs.size(); }
  };
  const auto lane = [&](std::span<const TailJob> jobs, double slowdown) {
    return Lane{jobs, slowdown, jobs.empty() ? 0 : jobs.front().duration, start};
  };
  std::array lanes{lane(compute, compute_slowdown), lane(communication, communication_slowdown)};
  constexpr double kNever = std::numeric_limits<double>::max();
  double now = start;
  while (!lanes[0].over() || !lanes[1].over()) {
    std::array<bool, 2> runs{};
    double next = kNever;  // when something changes
    for (const std::size_t i : {0UL, 1UL}) {
      const Lane& mine = lanes[i];
      if (mine.over()) continue;
      const TailJob& job = mine.jobs[mine.next];
      if (job.after >= static_cast<std::int64_t>(lanes[1 - i].next)) continue;
      runs[i] = job.not_before <= now;
      if (!runs[i]) next = std::min(next, job.not_before);
    }
    const bool both = runs[0] && runs[1];
    const auto rate = [&](const Lane& l) { return both ? 1 / l.slowdown : 1; };
    for (const std::size_t i : {0UL, 1UL}) {
      if (runs[i]) next = std::min(next, now + lanes[i].left / rate(lanes[i]));
    }
    for (const std::size_t i : {0UL, 1UL}) {
      Lane& l = lanes[i];
      if (!runs[i]) continue;
      if (now + l.left / rate(l) > next) {
        l.left -= (next - now) * rate(l);
        continue;
      }
      l.end = next;
      if (++l.next < l.jobs.size()) l.left = l.jobs[l.next].duration;
    }
    now = next;
  }
  return {lanes[0].end, lanes[1].end};
}

}  // namespace orrery::sim
