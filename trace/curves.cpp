// SPDX-License-Identifier: Apache-2.0
#include "trace/curves.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace orrery::trace {
namespace {

// Those that link profiles have curves of.
std::optional<CollectiveKind> collective_of(OpClass is) {
  switch (is) {
    case OpClass::kAllReduce:
      return CollectiveKind::kAllReduce;
    case OpClass::kAllGather:
      return CollectiveKind::kAllGather;
    case OpClass::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case OpClass::kAllToAll:
      return CollectiveKind::kAllToAll;
    case OpClass::kUnknown:
    case OpClass::kProduct:
    case OpClass::kAttention:
    case OpClass::kElementwise:
    case OpClass::kRouting:
    case OpClass::kOptimizer:
    case OpClass::kSoftware:
    case OpClass::kCopy:
    case OpClass::kBroadcast:
    case OpClass::kSendReceive:
      return std::nullopt;
  }
  return std::nullopt;
}

// Hosts number their devices alike, so members of several have numbers in common.
bool of_one_node(const Merged& merged, const Meeting& m) {
  std::set<std::int64_t> devices;
  return std::all_of(m.here.begin(), m.here.end(), [&](const Member& member) {
    return devices.insert(merged.processes[static_cast<std::size_t>(member.process)].device).second;
  });
}

}  // namespace

std::vector<CollectiveCurve> curves_of(const Merged& merged, const std::string& system) {
  std::map<std::tuple<CollectiveKind, std::int64_t>, std::map<std::int64_t, std::vector<Time>>> times;
  for (const Meeting& m : merged.meetings) {
    const auto kind = collective_of(m.is);
    if (!kind || !m.whole() || m.bytes == 0 || !of_one_node(merged, m)) continue;
    Time begun{0}, ended{0};
    for (const Member& member : m.here) {
      const Slice& s = merged.timeline.slices[member.slice];
      begun = std::max(begun, s.start);
      ended = std::max(ended, s.end);
    }
    if (ended > begun) times[{*kind, m.members}][m.bytes].push_back(ended - begun);
  }
  std::vector<CollectiveCurve> out;
  for (auto& [key, by_size] : times) {
    CollectiveCurve& curve = out.emplace_back();
    curve.system = system;
    std::tie(curve.collective, curve.ranks) = key;
    for (auto& [bytes, all] : by_size) {
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
      std::nth_element(all.begin(), middle, all.end());
      curve.bytes.push_back(Bytes{bytes});
      curve.times.push_back(*middle);
    }
  }
  return out;
}

}  // namespace orrery::trace
