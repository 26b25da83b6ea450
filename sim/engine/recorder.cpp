// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "program/live.h"

namespace orrery::sim {
namespace {

// By rank; nothing where every rank is a place of its own.
std::vector<std::int32_t> places_of_ranks(const program::Program& program, const Layout& layout) {
  const std::int64_t ranks = program.mesh.ranks();
  if (static_cast<std::int64_t>(layout.places.size()) == ranks) return {};
  if (!layout.place_of.empty()) return layout.place_of;
  std::vector<std::int32_t> out;
  for (std::int64_t r = 0; r < ranks; ++r) out.push_back(static_cast<std::int32_t>(program.stage_of(r)));
  return out;
}

}  // namespace

// Live bytes of each place, by when its ops started.
void Recorder::add_memory(const program::Program& program, const Layout& layout, Timeline& t) const {
  std::vector<std::vector<const Done*>> by_place(layout.places.size());
  for (const Done& d : done_) by_place[static_cast<std::size_t>(d.place)].push_back(&d);
  for (std::size_t p = 0; p < by_place.size(); ++p) {
    const program::RankClass& rank = program.classes[static_cast<std::size_t>(layout.places[p].stage)];
    const program::OpNumbers number(rank);
    std::vector<Time> starts(number.size());
    for (const Done* d : by_place[p]) starts[number(d->step, d->op)] = Time{d->start};
    const auto points = program::live_bytes(rank, static_cast<std::int32_t>(p), starts);
    t.memory.insert(t.memory.end(), points.begin(), points.end());
  }
}

Timeline Recorder::timeline(const program::Program& program, const Layout& layout) const {
  Timeline t;
  t.source = "predicted: event engine";
  t.program_hash = program.hash();
  for (const program::Stream& s : program.communication.streams) t.streams.push_back(s.name);
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
  t.axes = program::axes_of(program.mesh);
  t.process_of = places_of_ranks(program, layout);
  add_memory(program, layout, t);
  return t;
}

}  // namespace orrery::sim
