// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/error.h"
#include "sim/drawn_time.h"

namespace orrery::sim {
namespace {

constexpr std::size_t kMostSlices = 20'000'000;
constexpr std::int64_t kMostStreams = 256;  // that readers of a timeline take

}  // namespace

Timeline gantt(const JobQueue& queue, const ClusterNodes& nodes, const ScheduleOutcome& outcome) {
  if (outcome.nodes.size() > kMostSlices)
    throw Error(fmt::format("the timeline would have {} slices, and at most {} are written",
                            outcome.nodes.size(), kMostSlices));
  Timeline t;
  t.source = "predicted: cluster schedule";
  const DrawnTime drawn(outcome.end - outcome.begin, t.source);
  for (std::int32_t n = 0; n < nodes.nodes(); ++n)
    t.rank_labels.push_back(fmt::format("node {} (switch {})", n, nodes.leaf[static_cast<std::size_t>(n)]));
  t.streams.emplace_back("node");
  for (const ClusterTenant& tenant : queue.tenants) t.segments.push_back(tenant.name);
  std::unordered_map<std::string, std::int32_t> known;
  const auto name_of = [&](const std::string& name) {
    const auto [found, added] = known.try_emplace(name, static_cast<std::int32_t>(t.names.size()));
    if (added) t.names.push_back(name);
    return found->second;
  };
  const auto at = [&](Ticks time) { return drawn(time - outcome.begin); };

  std::vector<std::size_t> order(outcome.attempts.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return outcome.attempts[a].start < outcome.attempts[b].start;
  });
  std::vector<std::vector<Ticks>> busy_until(nodes.leaf.size());  // by node and stream that jobs share
  std::vector<std::int32_t> attempts(queue.jobs.size(), 0);
  for (const std::size_t i : order) {
    const Attempt& a = outcome.attempts[i];
    const auto job = static_cast<std::size_t>(a.job);
    Slice s{.name = name_of(queue.jobs[job].name + (a.preempted ? " (preempted)" : "")),
            .segment = queue.jobs[job].tenant,
            .micro_batch = attempts[job]++,
            .ready = at(a.start),
            .start = at(a.start),
            .active = at(a.start),
            .end = at(a.end)};
    for (const std::int32_t node : outcome.nodes_of(a)) {
      s.rank = node;
      s.stream = 0;
      if (queue.jobs[job].devices < nodes.devices_per_node) {
        std::vector<Ticks>& busy = busy_until[static_cast<std::size_t>(node)];
        const auto idle = std::find_if(busy.begin(), busy.end(), [&](Ticks end) { return end <= a.start; });
        s.stream = static_cast<std::int32_t>(idle - busy.begin());
        if (idle == busy.end())
          busy.push_back(a.end);
        else
          *idle = a.end;
      }
      if (s.stream >= kMostStreams)
        throw Error(fmt::format("more than {} jobs share node {}, and a timeline has no more streams",
                                kMostStreams, node));
      while (std::ssize(t.streams) <= s.stream)
        t.streams.push_back(fmt::format("beside {}", t.streams.size()));
      t.slices.push_back(s);
    }
  }
  return t;
}

}  // namespace orrery::sim
