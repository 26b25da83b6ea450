// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/recorder.h"

#include <fmt/format.h>

#include <map>

namespace orrery::sim {

Timeline Recorder::timeline(const program::Program& program, const Layout& layout) const {
  Timeline t;
  t.source = "predicted: event engine";
  t.program_hash = program.hash();
  for (const char* s : program::kStreamNames) t.streams.emplace_back(s);
  for (const char* s : program::kSegmentNames) t.segments.emplace_back(s);
  std::map<std::string_view, std::int32_t> names;
  for (const Done& d : done_) {
    const Place& place = layout.places[static_cast<std::size_t>(d.place)];
    const program::RankClass& rank = program.classes[static_cast<std::size_t>(place.stage)];
    const program::Step& step = rank.steps[static_cast<std::size_t>(d.step)];
    const program::Segment& s = rank.segments[static_cast<std::size_t>(step.segment)];
    const program::Op& op = s.ops[static_cast<std::size_t>(d.op)];
    const auto [name, added] = names.try_emplace(op.name, static_cast<std::int32_t>(t.names.size()));
    if (added) t.names.push_back(op.name);
    t.slices.push_back({name->second, static_cast<std::int32_t>(s.kind),
                        rank.chunks[static_cast<std::size_t>(s.chunk)], step.micro_batch, d.place, d.stream,
                        Time{d.ready}, Time{d.start}, Time{d.active}, Time{d.end}});
  }
  const bool one_a_stage = layout.places.size() == program.classes.size();
  for (const Place& p : layout.places) {
    std::string label = fmt::format("stage {}", p.stage);
    if (!one_a_stage) label += fmt::format(" (rank {}", p.first_rank);
    if (!one_a_stage && p.ranks > 1) label += fmt::format(" and {} like it", p.ranks - 1);
    t.rank_labels.push_back(one_a_stage ? label : label + ")");
  }
  return t;
}

}  // namespace orrery::sim
