// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/waits.h"

#include <algorithm>
#include <map>
#include <set>

#include "sim/analysis/meetings.h"

namespace orrery::sim {

std::vector<WaitedFor> waited_for(const Lanes& lanes) {
  const Meetings meetings(lanes);
  const std::vector<Slice>& slices = lanes.timeline().slices;
  struct Sums {
    std::set<std::size_t> exchanges;  // slices of the process that came last
    std::map<std::int32_t, Time> by_waiting;
  };
  std::map<std::int32_t, Sums> all;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto last = meetings.last_to_come(i);
    if (!last) continue;
    Sums& s = all[slices[*last].rank];
    s.exchanges.insert(*last);
    s.by_waiting[slices[i].rank] += slices[i].active - slices[i].start;
  }
  std::vector<WaitedFor> out;
  for (const auto& [process, sums] : all) {
    WaitedFor w{.process = process, .exchanges = static_cast<std::int64_t>(sums.exchanges.size())};
    for (const auto& [waiting, time] : sums.by_waiting) {
      w.waited += time;
      if (time > w.by_longest) {
        w.longest = waiting;
        w.by_longest = time;
      }
    }
    out.push_back(w);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const WaitedFor& a, const WaitedFor& b) { return a.waited > b.waited; });
  return out;
}

}  // namespace orrery::sim
