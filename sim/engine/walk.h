// SPDX-License-Identifier: Apache-2.0
//
// A class's program as the engine walks it: what all places of a stage and a pace have in common. Internal to
// sim/engine/.
#pragma once

#include "sim/engine/layout.h"

namespace orrery::sim {

struct Walk {
  const program::RankClass* rank = nullptr;
  Pace pace;
  // Pace's, in the engine's fixed point.
  std::int64_t compute_slow = 0, exchange_slow = 0, communication_slow = 0;
  std::vector<std::array<std::vector<std::int32_t>, program::kMostStreams>> ops;  // by segment and stream
  std::vector<std::array<std::int32_t, program::kMostStreams>> base;  // by step: ops of each stream before it
  std::vector<Time> issued;                                           // by step: when the host comes to it
};

inline Walk walk_of(const program::RankClass& rank, const Pace& pace) {
  Walk w;
  w.rank = &rank;
  w.pace = pace;
  for (const program::Segment& s : rank.segments) {
    auto& lists = w.ops.emplace_back();
    for (std::size_t i = 0; i < s.ops.size(); ++i)
      lists[s.ops[i].stream].push_back(static_cast<std::int32_t>(i));
  }
  std::array<std::int32_t, program::kMostStreams> count{};
  Time issued{0};
  for (const program::Step& step : rank.steps) {
    const program::Segment& s = rank.segments[static_cast<std::size_t>(step.segment)];
    w.base.push_back(count);
    w.issued.push_back(issued);
    for (std::size_t q = 0; q < program::kMostStreams; ++q) count[q] += s.stream_ops[q];
    issued += pace.host_segment + pace.host_op * static_cast<std::int64_t>(s.ops.size());
  }
  return w;
}

}  // namespace orrery::sim
