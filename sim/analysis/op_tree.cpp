// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/op_tree.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

namespace orrery::sim {
namespace {

// 17 of "layer17".
std::optional<std::int64_t> layer_of(std::string_view name) {
  constexpr std::string_view kLayer = "layer";
  if (!name.starts_with(kLayer)) return std::nullopt;
  std::int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [at, wrong] = std::from_chars(name.data() + kLayer.size(), end, number);
  return wrong == std::errc() && at == end ? std::optional(number) : std::nullopt;
}

// Of what has one stream, segment and name.
struct Sum {
  std::int32_t stream = 0, segment = 0, name = 0;
  Time time{0};
  std::int64_t count = 0;
};

std::vector<Sum> sums_of(const Lanes& lanes, const Part& part, const std::function<void()>& go_on) {
  const auto names = static_cast<std::int64_t>(lanes.timeline().names.size());
  std::vector<Sum> out;
  std::unordered_map<std::int64_t, std::size_t> known;  // of a segment and a name, in out
  for (const std::int32_t rank : part.ranks) {
    for (const Lane& lane : lanes.of(rank)) {
      if (go_on) go_on();
      known.clear();
      const auto slices = lanes.slices(lane);
      for (std::size_t i = slices.first_after(part.from); i < slices.size(); ++i) {
        const Slice s = slices[i];
        if (s.start >= part.to) break;
        const auto [at, added] = known.try_emplace(s.segment * names + s.name, out.size());
        if (added) out.push_back({lane.stream, s.segment, s.name});
        Sum& sum = out[at->second];
        sum.time += std::max(Time{0}, std::min(s.end, part.to) - std::max(s.active, part.from));
        ++sum.count;
      }
    }
  }
  return out;
}

// A node while it grows.
struct Growing {
  Time time{0};
  std::int64_t count = 0;
  std::map<std::string, std::unique_ptr<Growing>> parts;
};

OpNode grown(const std::string& name, const Growing& from) {
  OpNode out{.name = name, .time = from.time, .count = from.count, .parts = {}};
  for (const auto& [part, of] : from.parts) out.parts.push_back(grown(part, *of));
  std::stable_sort(out.parts.begin(), out.parts.end(), [](const OpNode& a, const OpNode& b) {
    const auto x = layer_of(a.name), y = layer_of(b.name);
    if (x && y) return *x < *y;
    if (x.has_value() != y.has_value()) return x.has_value();
    return a.time > b.time;
  });
  return out;
}

}  // namespace

OpNode op_tree(const Lanes& lanes, const Part& part, bool apart, const std::function<void()>& go_on) {
  const TimelineHead& t = lanes.timeline();
  Growing root;
  for (const Sum& sum : sums_of(lanes, part, go_on)) {
    Growing* at = &root;
    const auto add = [&](Growing& n) {
      n.time += sum.time;
      n.count += sum.count;
    };
    const auto down = [&](const std::string& name) {
      auto& next = at->parts[name];
      if (!next) next = std::make_unique<Growing>();
      add(*(at = next.get()));
    };
    add(root);
    down(t.streams[static_cast<std::size_t>(sum.stream)]);
    if (t.segments.size() > 1) down(t.segments[static_cast<std::size_t>(sum.segment)]);
    const std::string& full = t.names[static_cast<std::size_t>(sum.name)];
    for (std::size_t begin = 0; begin <= full.size();) {
      const std::size_t end = std::min(full.find('/', begin), full.size());
      const std::string piece = full.substr(begin, end - begin);
      down(!apart && layer_of(piece) ? "layers" : piece);
      begin = end + 1;
    }
  }
  return grown("all", root);
}

}  // namespace orrery::sim
