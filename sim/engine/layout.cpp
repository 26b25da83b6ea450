// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/layout.h"

#include <algorithm>

namespace orrery::sim {

namespace {

program::Pattern pattern_of(const program::Op& op) {
  if (op.is_transfer()) return program::Pattern::kRing;
  return program::pattern_of(std::get<program::ops::Collective>(op.kind).collective);
}

}  // namespace

Partners partners_of(const program::Program& program, std::size_t rank_class) {
  Partners out;
  for (const program::Segment& s : program.classes[rank_class].segments) {
    auto& slots = out.slot.emplace_back(s.ops.size(), -1);
    for (std::size_t i = 0; i < s.ops.size(); ++i) {
      const program::Op& op = s.ops[i];
      if (!program::is_communication(op.kind)) continue;
      const program::Stream& stream = program.communication.streams[op.stream];
      const Partners::Slot slot{
          op.stream,
          stream.other_end,
          op.group,
          stream.role == program::StreamRole::kReceives,
          op.is_transfer() ? static_cast<std::int32_t>(stage_of_chunk(program.plan, op.peer_chunk)) : -1,
          pattern_of(op)};
      const auto known = std::find(out.slots.begin(), out.slots.end(), slot);
      slots[i] = static_cast<std::int32_t>(known - out.slots.begin());
      if (known == out.slots.end()) out.slots.push_back(slot);
    }
  }
  return out;
}

Partners::Slot other_end(const Partners::Slot& slot, std::int32_t from) {
  return {slot.other_end, slot.stream, slot.group, !slot.receives, from, slot.pattern};
}

Layout by_stage(const program::Program& program, const Durations& durations, const Pace& pace) {
  Layout out;
  out.paces = {pace};
  const auto stages = static_cast<std::int32_t>(program.classes.size());
  for (std::int32_t s = 0; s < stages; ++s) {
    const auto at = static_cast<std::size_t>(s);
    out.places.push_back({.stage = s, .costs = s});
    auto& segments = out.costs.emplace_back();
    for (const auto& ops : durations[at]) {
      auto& costs = segments.emplace_back();
      for (const Time t : ops) costs.push_back({t});
    }
    out.partners.push_back(partners_of(program, at));
    out.meeting.emplace_back(out.partners[at].slots.size(), -1);
  }
  for (std::int32_t s = 0; s < stages; ++s) {
    const auto at = static_cast<std::size_t>(s);
    for (std::size_t k = 0; k < out.partners[at].slots.size(); ++k) {
      if (out.meeting[at][k] >= 0) continue;
      const Partners::Slot& slot = out.partners[at].slots[k];
      const auto id = static_cast<std::int32_t>(out.meetings.size());
      out.meeting[at][k] = id;
      Meeting& m = out.meetings.emplace_back(Meeting{{{s, slot.stream}}});
      if (slot.peer < 0) continue;
      const Partners::Slot there = other_end(slot, s);
      m.ends.push_back({slot.peer, there.stream});
      if (slot.receives) std::swap(m.ends[0], m.ends[1]);
      const auto& slots = out.partners[static_cast<std::size_t>(slot.peer)].slots;
      if (const auto found = std::find(slots.begin(), slots.end(), there); found != slots.end())
        out.meeting[static_cast<std::size_t>(slot.peer)][static_cast<std::size_t>(found - slots.begin())] =
            id;
    }
  }
  return out;
}

}  // namespace orrery::sim
