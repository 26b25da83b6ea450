// SPDX-License-Identifier: Apache-2.0
//
// A timeline indexed by lane, for drawing and for questions about it. A lane is what one stream of one
// process did, in order of time and one thing at a time; slices of a stream that overlap (of a file that is
// not ours) are told apart by depth.
//
//   Lanes lanes(load_timeline(file));
//   for (const Lane& l : lanes.all()) lanes.busy(l, from, to);
//
// Memory: 17 bytes a slice beside the timeline. Questions cost O(log slices), whatever the window.
#pragma once

#include <span>
#include <vector>

#include "core/timeline.h"

namespace orrery::sim {

// Streams of copies between a device, its host and the host's drives, and of the host's work: no
// communication between ranks.
inline bool is_of_host(std::string_view stream) {
  return stream == "host" || stream == "to-host" || stream == "from-host" || stream == "to-nvme" ||
         stream == "from-nvme";
}

struct Lane {
  std::int32_t rank = 0, stream = 0, depth = 0;
  std::size_t first = 0, count = 0;  // slices
};

class Lanes {
 public:
  explicit Lanes(Timeline timeline);

  // Its slices are in the order of lanes.
  const Timeline& timeline() const { return timeline_; }
  std::span<const Lane> all() const { return lanes_; }
  // Of one process.
  std::span<const Lane> of(std::int32_t rank) const;
  std::span<const Slice> slices(const Lane& lane) const {
    return std::span(timeline_.slices).subspan(lane.first, lane.count);
  }
  // The index in all() of the lane that a slice of the timeline is in.
  std::size_t lane_of(std::size_t slice) const;
  Time begin() const { return begin_; }
  Time end() const { return end_; }

  // In the lane: the first slice that ends after `t`; the number of slices if there is none.
  std::size_t first_after(const Lane& lane, Time t) const;
  // How much of [from, to) the lane ran something, waiting for partners included.
  Time busy(const Lane& lane, Time from, Time to) const;
  // The same where slices [first, last) of the lane are those that reach into it, which are not none; O(1).
  Time busy_of(const Lane& lane, std::size_t first, std::size_t last, Time from, Time to) const;
  // Of that, how much it waited for partners.
  Time waiting_of(const Lane& lane, std::size_t first, std::size_t last, Time from, Time to) const;
  // The longest of slices [first, last) of the lane, which are not none.
  std::size_t longest(const Lane& lane, std::size_t first, std::size_t last) const;

 private:
  void sort();
  void split_overlapping(std::size_t first, std::size_t last);
  void build_tree();
  std::size_t longer(std::size_t a, std::size_t b) const;
  Time busy_until(const Lane& lane, Time t) const;

  Timeline timeline_;
  std::vector<Lane> lanes_;
  // By slice, and one more: durations, and times of waiting, of all slices before it, modulo 2^64.
  std::vector<std::uint64_t> busy_before_, waiting_before_;
  std::vector<std::uint32_t> longest_;
  std::size_t blocks_ = 0;
  Time begin_{0}, end_{0};
};

}  // namespace orrery::sim
