// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/critical_path.h"

#include <algorithm>
#include <optional>

namespace orrery::sim {
namespace {

class Search {
 public:
  explicit Search(const Lanes& lanes, const Meetings& meetings)
      : lanes_(lanes), meetings_(meetings), slices_(lanes.timeline().slices) {}

  std::vector<Link> path() const {
    std::vector<Link> out;
    std::optional<std::size_t> at = last();
    Time until = lanes_.end();
    while (at && out.size() < slices_.size()) {
      const Slice& s = slices_[*at];
      const std::optional<std::size_t> partner = meetings_.last_to_come(*at);
      const Slice& late = partner ? slices_[*partner] : s;
      const Time from = std::clamp(partner ? s.active : s.start, lanes_.begin(), until);
      const std::optional<std::size_t> next = before(late);
      const Time done = next ? std::min(slices_[*next].end, from) : lanes_.begin();
      out.push_back({*at, from, until, from - done});
      until = done;
      at = next;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  std::optional<std::size_t> last() const {
    if (slices_.empty()) return std::nullopt;
    const auto end = [](const Slice& a, const Slice& b) { return a.end < b.end; };
    return static_cast<std::size_t>(std::max_element(slices_.begin(), slices_.end(), end) - slices_.begin());
  }

  // Of the same process: what ended last before `s` began.
  std::optional<std::size_t> before(const Slice& s) const {
    std::optional<std::size_t> best;
    for (const Lane& lane : lanes_.of(s.rank)) {
      const auto in = lanes_.slices(lane);
      auto later =
          std::partition_point(in.begin(), in.end(), [&](const Slice& o) { return o.start < s.start; });
      if (later != in.begin() && std::prev(later)->end > s.start) --later;
      if (later == in.begin()) continue;
      const auto i = lane.first + static_cast<std::size_t>(later - in.begin()) - 1;
      if (!best || slices_[i].end > slices_[*best].end) best = i;
    }
    return best;
  }

  const Lanes& lanes_;
  const Meetings& meetings_;
  const std::vector<Slice>& slices_;
};

}  // namespace

std::vector<Link> critical_path(const Lanes& lanes, const Meetings& meetings) {
  return Search(lanes, meetings).path();
}

}  // namespace orrery::sim
