// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/op_tree.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

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

struct Sum {
  Time time{0};
  std::int64_t count = 0;
};
using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // stream, segment, name

std::map<Key, Sum> sums_of(const Lanes& lanes, const Part& part) {
  std::map<Key, Sum> out;
  for (const std::int32_t rank : part.ranks) {
    for (const Lane& lane : lanes.of(rank)) {
      const auto slices = lanes.slices(lane);
      for (std::size_t i = lanes.first_after(lane, part.from); i < slices.size(); ++i) {
        const Slice& s = slices[i];
        if (s.start >= part.to) break;
        Sum& sum = out[{lane.stream, s.segment, s.name}];
        sum.time += std::max(Time{0}, std::min(s.end, part.to) - std::max(s.active, part.from));
        ++sum.count;
      }
    }
  }
  return out;
}

OpNode& child(OpNode& of, const std::string& name) {
  const auto found =
      std::find_if(of.parts.begin(), of.parts.end(), [&](const OpNode& n) { return n.name == name; });
  if (found != of.parts.end()) return *found;
  return of.parts.emplace_back(OpNode{.name = name, .time = Time{0}, .count = 0, .parts = {}});
}

void sort(OpNode& node) {
  std::stable_sort(node.parts.begin(), node.parts.end(), [](const OpNode& a, const OpNode& b) {
    const auto x = layer_of(a.name), y = layer_of(b.name);
    if (x && y) return *x < *y;
    if (x.has_value() != y.has_value()) return x.has_value();
    return a.time > b.time;
  });
  for (OpNode& part : node.parts) sort(part);
}

}  // namespace

OpNode op_tree(const Lanes& lanes, const Part& part, bool apart) {
  const Timeline& t = lanes.timeline();
  OpNode root{.name = "all", .time = Time{0}, .count = 0, .parts = {}};
  for (const auto& [key, sum] : sums_of(lanes, part)) {
    const auto& [stream, segment, name] = key;
    std::vector<std::string> path{t.streams[static_cast<std::size_t>(stream)]};
    if (t.segments.size() > 1) path.push_back(t.segments[static_cast<std::size_t>(segment)]);
    const std::string& full = t.names[static_cast<std::size_t>(name)];
    for (std::size_t begin = 0; begin <= full.size();) {
      const std::size_t end = std::min(full.find('/', begin), full.size());
      std::string piece = full.substr(begin, end - begin);
      if (!apart && layer_of(piece)) piece = "layers";
      path.push_back(std::move(piece));
      begin = end + 1;
    }
    OpNode* at = &root;
    const auto add = [&sum](OpNode& n) {
      n.time += sum.time;
      n.count += sum.count;
    };
    add(*at);
    for (const std::string& piece : path) add(*(at = &child(*at, piece)));
  }
  sort(root);
  return root;
}

}  // namespace orrery::sim
