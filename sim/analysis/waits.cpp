// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/waits.h"

#include <algorithm>
#include <map>
#include <set>

#include "sim/analysis/meetings.h"

namespace orrery::sim {

namespace {

class WaitSums {
 public:
  void add(const Slice& waits, const Slice& last, std::size_t exchange) {
    Sums& s = all_[last.rank];
    s.exchanges.insert(exchange);
    s.by_waiting[waits.rank] += waits.active - waits.start;
  }

  std::vector<WaitedFor> longest_first() const {
    std::vector<WaitedFor> out;
    for (const auto& [process, sums] : all_) {
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

 private:
  struct Sums {
    std::set<std::size_t> exchanges;  // by the slice of the one that came last
    std::map<std::int32_t, Time> by_waiting;
  };
  std::map<std::int32_t, Sums> all_;
};

}  // namespace

std::vector<WaitedFor> waited_for(const Lanes& lanes) {
  const Meetings meetings(lanes);
  WaitSums sums;
  lanes.for_each_slice([&](const Slice& s, std::size_t i) {
    if (const auto last = meetings.last_to_come(i)) sums.add(s, lanes.slice(*last), *last);
  });
  return sums.longest_first();
}

std::vector<WaitedFor> waited_for(const Timeline& timeline,
                                  const std::vector<std::vector<std::size_t>>& exchanges) {
  WaitSums sums;
  for (const std::vector<std::size_t>& members : exchanges) {
    const auto last = *std::max_element(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
      return timeline.slices[a].start < timeline.slices[b].start;
    });
    for (const std::size_t m : members) {
      const Slice& s = timeline.slices[m];
      if (s.active > s.start) sums.add(s, timeline.slices[last], last);
    }
  }
  return sums.longest_first();
}

}  // namespace orrery::sim
