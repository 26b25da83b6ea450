// SPDX-License-Identifier: Apache-2.0
//
// A timeline indexed by lane, for drawing and for questions about it. A lane is what one stream of one
// process did, in order of time and one thing at a time; slices of a stream that overlap (of a file that is
// not ours) are told apart by depth.
//
//   Lanes lanes(load_timeline(file));
//   for (const Lane& l : lanes.all()) lanes.busy(l, from, to);
//
// Slices are packed (core/packed_slices.h), with half a byte each for all that is here. Questions cost
// O(log slices), whatever the window.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "core/packed_slices.h"

namespace orrery::sim {

// Streams of copies between a device, its host and the host's drives, and of the host's work: no
// communication between ranks.
inline bool is_of_host(std::string_view stream) {
  return stream == "host" || stream == "to-host" || stream == "from-host" || stream == "to-nvme" ||
         stream == "from-nvme";
}

struct Lane : PackedSlices::Lane {
  std::int32_t depth = 0;
};

class Lanes;

// The slices of a lane, numbered from 0 in order of time. Reads sixteen at a time and keeps some, so each
// thread has its own.
class LaneSlices {
 public:
  LaneSlices(const Lanes& lanes, const Lane& lane) : lanes_(lanes), lane_(lane) {}
  std::size_t size() const { return lane_.count; }
  Slice operator[](std::size_t i) const;
  Time start(std::size_t i) const { return times(i).start[i % PackedSlices::kBlock]; }
  Time active(std::size_t i) const { return times(i).active[i % PackedSlices::kBlock]; }
  Time end(std::size_t i) const { return times(i).end[i % PackedSlices::kBlock]; }
  // Slice i but for its times, which are dearer.
  Slice without_times(std::size_t i) const;
  // The first slice that ends after `t`, and the first from `i` on that starts at `t` or later; the number of
  // slices if there is none.
  std::size_t first_after(Time t) const;
  std::size_t first_from(std::size_t i, Time t) const;
  // How much of [from, to) slices [first, last) take, which are those that reach into it, and not none; and
  // of that, how much they wait for partners. O(1).
  Time busy_of(std::size_t first, std::size_t last, Time from, Time to) const;
  Time waiting_of(std::size_t first, std::size_t last, Time from, Time to) const;
  // The longest of slices [first, last), which are not none; of several the first.
  struct Longest {
    std::size_t slice = 0;
    Time length{-1};
  };
  Longest longest(std::size_t first, std::size_t last) const;
  // How much of [from, to) the lane ran something, waiting for partners included.
  Time busy(Time from, Time to) const;

 private:
  struct Unpacked {
    std::size_t number = ~std::size_t{0};
    PackedSlices::Times times;
  };
  // Of the block that slice i is in, until another is asked for.
  const PackedSlices::Times& times(std::size_t i) const {
    const std::size_t b = i / PackedSlices::kBlock;
    Unpacked& in = kept_[b % kKept];
    if (in.number != b) read(b, in);
    return in.times;
  }
  void read(std::size_t b, Unpacked& into) const;
  // Of the slices before slice i, and of all lanes before: durations, and times of waiting.
  struct Sums {
    std::uint64_t busy = 0, waiting = 0;
  };
  Sums before(std::size_t i) const;
  Time end_of_block(std::size_t b) const;
  Time busy_until(Time t) const;

  const Lanes& lanes_;
  const Lane& lane_;
  static constexpr std::size_t kKept = 4;
  mutable std::array<Unpacked, kKept> kept_;
  // Who asks for one part after the other asks twice for the sums between them.
  struct Known {
    std::size_t slice = ~std::size_t{0};
    Sums sums;
  };
  mutable std::array<Known, 2> known_;
  mutable std::size_t oldest_ = 0;
};

class Lanes {
 public:
  explicit Lanes(Timeline timeline);
  explicit Lanes(PackedTimeline timeline);

  const TimelineHead& timeline() const { return packed_.head; }
  const PackedTimeline& packed() const { return packed_; }
  Timeline unpacked() const { return unpack(packed_); }
  std::span<const Lane> all() const { return lanes_; }
  // Of one process.
  std::span<const Lane> of(std::int32_t rank) const;
  LaneSlices slices(const Lane& lane) const { return {*this, lane}; }
  // Slices are numbered in the order of lanes.
  std::size_t size() const { return packed_.slices.size(); }
  Slice slice(std::size_t slice) const;
  // Calls use(slice, number) for all of them in order.
  template <class Use>
  void for_each_slice(Use use) const;
  // The index in all() of the lane that a slice is in.
  std::size_t lane_of(std::size_t slice) const;
  Time begin() const { return begin_; }
  Time end() const { return end_; }
  // As of LaneSlices, for who asks once.
  std::size_t first_after(const Lane& lane, Time t) const { return slices(lane).first_after(t); }
  Time busy(const Lane& lane, Time from, Time to) const { return slices(lane).busy(from, to); }

 private:
  friend class LaneSlices;
  void take(Timeline timeline);
  void index();
  std::uint32_t longer(std::uint32_t a, std::uint32_t b) const;

  PackedTimeline packed_;
  std::vector<Lane> lanes_;
  // A tree whose leaves are the blocks, in order: by node, the one with the longest slice.
  std::vector<std::uint32_t> longest_;
  std::size_t blocks_ = 0;
  Time begin_{0}, end_{0};
};

template <class Use>
void Lanes::for_each_slice(Use use) const {
  std::array<Slice, PackedSlices::kBlock> some;
  for (const Lane& lane : lanes_) {
    for (std::size_t b = 0; b < lane.blocks(); ++b) {
      const std::size_t n = packed_.slices.unpack(lane, b, some);
      for (std::size_t i = 0; i < n; ++i) use(some[i], lane.first + b * PackedSlices::kBlock + i);
    }
  }
}

}  // namespace orrery::sim
