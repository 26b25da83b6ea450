// SPDX-License-Identifier: Apache-2.0
//
// The slices of a timeline in a few bytes each: lane by lane, in blocks of sixteen. A block has, of each
// number, as many bits as its largest needs; times are differences from those before. An entry for each block
// says what its first slice is relative to, so any block can be read by itself, and sums up what is before.
//
// Memory: 9 to 14 bytes a slice for ops of microseconds, of which 3 are the entries' and half a byte the
// widths'.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/timeline.h"

namespace orrery {

class PackedSlices {
 public:
  static constexpr std::size_t kBlock = 16;
  struct Lane {
    std::int32_t rank = 0, stream = 0;
    std::size_t first = 0, count = 0;  // slices
    std::size_t first_block = 0;
    Time end{0};  // of its last slice
    std::size_t blocks() const { return (count + kBlock - 1) / kBlock; }
  };
  struct Block {
    std::uint64_t at = 0;          // of its bytes
    Time end_before{0};            // of the slice before in its lane
    std::uint32_t context = 0;     // of its slices, where they have one
    std::uint32_t longest_at = 0;  // in the block: its longest slice, of several the first
    // Of all slices before, of other lanes too: durations, and times of waiting, modulo 2^64.
    std::uint64_t busy_before = 0, waiting_before = 0;
    Time longest{0};  // duration of that slice
  };
  // Of the slices of a block.
  struct Times {
    std::array<Time, kBlock> start, active, end;
  };

  // Appends a lane slice by slice; its slices are of one process and stream, in any order.
  void begin_lane(std::int32_t rank, std::int32_t stream);
  void add(const Slice& s);
  void end_lane();

  std::size_t size() const { return lanes_.empty() ? 0 : lanes_.back().first + lanes_.back().count; }
  std::span<const Lane> lanes() const { return lanes_; }
  // By lane, and one more at the end.
  std::span<const Block> blocks() const { return blocks_; }
  std::size_t bytes() const { return bytes_.size() + blocks_.size() * sizeof(Block); }
  // Whether lanes are in order of process and stream, each once, and slices of a lane one after the other
  // without overlap.
  bool in_order() const { return in_order_; }
  // Reads block b of the lane; returns the number of its slices.
  std::size_t unpack(const Lane& lane, std::size_t b, std::array<Slice, kBlock>& out) const;
  std::size_t unpack(const Lane& lane, std::size_t b, Times& out) const;
  // Slice i of the lane but for its times; and with those of its block.
  Slice without_times(const Lane& lane, std::size_t i) const;
  Slice with_times(const Lane& lane, std::size_t i, const Times& times) const;
  // Calls use(slice) for all of a lane, in order.
  template <class Use>
  void for_each(const Lane& lane, Use use) const;

 private:
  void end_block();
  std::uint64_t number(const Lane& lane, std::size_t i, std::size_t field) const;

  // What slices share with those around them: segment, chunk, micro-batch.
  using Context = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
  std::uint32_t context_of(const Slice& s);

  std::vector<Context> contexts_;
  std::map<Context, std::uint32_t> known_;
  std::uint32_t context_ = 0;  // of the slice before
  std::vector<Lane> lanes_;
  std::vector<Block> blocks_{{}};
  std::string bytes_;
  // The block that is being filled.
  std::array<Slice, kBlock> open_;
  std::size_t open_count_ = 0;
  Time end_{0};  // of the slice before it
  std::uint64_t busy_ = 0, waiting_ = 0;
  bool in_order_ = true;
};

template <class Use>
void PackedSlices::for_each(const Lane& lane, Use use) const {
  std::array<Slice, kBlock> some;
  for (std::size_t b = 0; b < lane.blocks(); ++b) {
    const std::size_t n = unpack(lane, b, some);
    for (std::size_t i = 0; i < n; ++i) use(some[i]);
  }
}

// A timeline whose slices are packed.
struct PackedTimeline {
  TimelineHead head;
  PackedSlices slices;
};

// Lane by lane, in order of time.
PackedTimeline pack(const Timeline& t);
Timeline unpack(const PackedTimeline& t);

// The binary form. A file is read in pieces.
std::string to_binary(const PackedTimeline& t);
PackedTimeline packed_from_binary(std::string_view bytes, const std::string& file);
PackedTimeline load_packed(const std::filesystem::path& path);
// By suffix, as of a timeline that is not packed.
void save_timeline(const std::filesystem::path& path, const PackedTimeline& t);

}  // namespace orrery
