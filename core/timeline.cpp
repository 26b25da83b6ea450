// SPDX-License-Identifier: Apache-2.0
#include "core/timeline.h"

#include <algorithm>
#include <tuple>

#include "core/json.h"
#include "core/packed_slices.h"

namespace orrery {

Time Timeline::length() const {
  Time end{0};
  for (const Slice& s : slices) end = std::max(end, s.end);
  return end;
}

void ExpertCounts::tidy() {
  std::vector<std::int32_t> number(groups.size(), -1);
  for (const ExpertTokens& e : of) number[static_cast<std::size_t>(e.group)] = 0;
  std::int32_t used = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (number[g] < 0) continue;
    const auto to = static_cast<std::size_t>(number[g] = used++);
    if (to != g) groups[to] = std::move(groups[g]);
  }
  groups.resize(static_cast<std::size_t>(used));
  for (ExpertTokens& e : of) e.group = number[static_cast<std::size_t>(e.group)];
  std::stable_sort(of.begin(), of.end(), [](const ExpertTokens& a, const ExpertTokens& b) {
    return std::tie(a.group, a.start) < std::tie(b.group, b.start);
  });
}

std::string kind_of(const TimelineHead& t) {
  return t.source.substr(0, t.source.find(':'));
}

void save_timeline(const std::filesystem::path& path, const Timeline& t) {
  save_text(path, path.extension() == ".timeline" ? to_binary(t) : to_chrome_trace(t));
}

void save_timeline(const std::filesystem::path& path, const PackedTimeline& t) {
  save_text(path, path.extension() == ".timeline" ? to_binary(t) : to_chrome_trace(unpack(t)));
}

Timeline load_timeline(const std::filesystem::path& path) {
  const std::string text = load_text(path, kLargestTimelineFile);
  if (text.starts_with("orrery.timeline")) return from_binary(text, path.string());
  return from_chrome_trace(parse_json(text, path.string(), kLargestTimelineFile), path.string());
}

}  // namespace orrery
