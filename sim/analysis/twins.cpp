// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/twins.h"

#include <algorithm>
#include <charconv>

namespace orrery::sim {
namespace {

// Where `text` stands in `list`; -1 if nowhere.
std::int32_t index_of(const std::vector<std::string>& list, const std::string& text) {
  const auto found = std::find(list.begin(), list.end(), text);
  return found == list.end() ? -1 : static_cast<std::int32_t>(found - list.begin());
}

std::int32_t stage_by_label(const TimelineHead& t, std::int32_t process) {
  const auto at = static_cast<std::size_t>(process);
  const std::string_view label = at < t.rank_labels.size() ? t.rank_labels[at] : std::string_view();
  for (const std::string_view name : {"stage ", "pp "}) {
    const std::size_t found = label.find(name);
    std::int32_t stage = 0;
    if (found == std::string_view::npos) continue;
    const char* const begin = label.data() + found + name.size();
    if (std::from_chars(begin, label.data() + label.size(), stage).ec == std::errc()) return stage;
  }
  return process;
}

}  // namespace

std::int64_t coordinate(const TimelineHead& t, std::int64_t rank, std::string_view axis) {
  for (const Axis& a : t.axes) {
    if (a.name == axis) return rank % a.size;
    rank /= a.size;
  }
  return -1;
}

Stages::Stages(const TimelineHead& timeline) : timeline_(timeline) {
  for (std::size_t r = 0; r < timeline.process_of.size(); ++r)
    first_rank_.try_emplace(timeline.process_of[r], static_cast<std::int64_t>(r));
}

std::int32_t Stages::operator()(std::int32_t process) const {
  const auto first = first_rank_.find(process);
  const std::int64_t rank = first != first_rank_.end() ? first->second : process;
  const std::int64_t stage = coordinate(timeline_, rank, "pp");
  return stage < 0 ? stage_by_label(timeline_, process) : static_cast<std::int32_t>(stage);
}

std::optional<std::size_t> twin(const Lanes& here, std::size_t slice, const Lanes& there) {
  const TimelineHead &a = here.timeline(), &b = there.timeline();
  const Slice s = here.slice(slice);
  const std::int32_t name = index_of(b.names, a.names[static_cast<std::size_t>(s.name)]);
  const std::int32_t segment = index_of(b.segments, a.segments[static_cast<std::size_t>(s.segment)]);
  const std::int32_t stream = index_of(b.streams, a.streams[static_cast<std::size_t>(s.stream)]);
  if (name < 0 || segment < 0 || stream < 0) return std::nullopt;
  const Stages stage_here(a), stage_there(b);
  const std::int32_t stage = stage_here(s.rank);
  std::optional<std::size_t> first;
  std::int32_t seen = -1;  // the process whose stage was looked up last
  bool same_stage = false;
  for (const Lane& lane : there.all()) {
    if (lane.rank != seen) {
      seen = lane.rank;
      same_stage = stage_there(seen) == stage;
    }
    if (!same_stage || lane.stream != stream || (first && lane.rank != s.rank)) continue;
    const LaneSlices slices = there.slices(lane);
    std::size_t found = 0;
    for (; found < slices.size(); ++found) {
      const Slice o = slices.without_times(found);
      if (o.name == name && o.segment == segment && o.chunk == s.chunk && o.micro_batch == s.micro_batch)
        break;
    }
    if (found == slices.size()) continue;
    const std::size_t at = lane.first + found;
    if (lane.rank == s.rank) return at;
    if (!first) first = at;
  }
  return first;
}

}  // namespace orrery::sim
