// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/critical_path.h"

#include <algorithm>
#include <optional>

namespace orrery::sim {
namespace {

class Search {
 public:
  explicit Search(const Lanes& lanes, const Meetings& meetings) : lanes_(lanes), meetings_(meetings) {}

  std::vector<Link> path() const {
    std::vector<Link> out;
    std::optional<std::size_t> at = last();
    Time until = lanes_.end();
    while (at && out.size() < lanes_.size()) {
      const Slice s = lanes_.slice(*at);
      const std::optional<std::size_t> partner = meetings_.last_to_come(*at);
      const Slice late = partner ? lanes_.slice(*partner) : s;
      const Time from = std::clamp(partner ? s.active : s.start, lanes_.begin(), until);
      const std::optional<std::size_t> next = before(late);
      const Time done = next ? std::min(lanes_.slice(*next).end, from) : lanes_.begin();
      out.push_back({*at, from, until, from - done});
      until = done;
      at = next;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  std::optional<std::size_t> last() const {
    for (const Lane& lane : lanes_.all()) {
      if (lane.end == lanes_.end()) return lane.first + lanes_.first_after(lane, lane.end - Time{1});
    }
    return std::nullopt;
  }

  // Of the same process: what ended last before `s` began.
  std::optional<std::size_t> before(const Slice& s) const {
    std::optional<std::size_t> best;
    Time end{0};
    for (const Lane& lane : lanes_.of(s.rank)) {
      const LaneSlices in = lanes_.slices(lane);
      std::size_t later = in.first_from(0, s.start);
      if (later > 0 && in.end(later - 1) > s.start) --later;
      if (later == 0) continue;
      const Time ended = in.end(later - 1);
      if (best && ended <= end) continue;
      best = lane.first + later - 1;
      end = ended;
    }
    return best;
  }

  const Lanes& lanes_;
  const Meetings& meetings_;
};

}  // namespace

std::vector<Link> critical_path(const Lanes& lanes, const Meetings& meetings) {
  return Search(lanes, meetings).path();
}

}  // namespace orrery::sim
