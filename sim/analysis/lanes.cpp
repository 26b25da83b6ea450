// SPDX-License-Identifier: Apache-2.0
#include "sim/analysis/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "core/error.h"

namespace orrery::sim {
namespace {

constexpr std::size_t kBlock = PackedSlices::kBlock;

auto lane_order(const Slice& s) {
  return std::tie(s.rank, s.stream, s.start, s.end);
}
bool before(const Slice& a, const Slice& b) {
  return lane_order(a) < lane_order(b);
}

// Slices of a stream that overlap: each goes to the lane that is free first.
std::vector<std::vector<const Slice*>> by_depth(std::span<const Slice> slices) {
  using Free = std::pair<Time, std::size_t>;  // since when, depth
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  std::vector<std::vector<const Slice*>> out;
  for (const Slice& s : slices) {
    std::size_t depth = out.size();
    if (!free.empty() && free.top().first <= s.start) {
      depth = free.top().second;
      free.pop();
    } else {
      out.emplace_back();
    }
    out[depth].push_back(&s);
    free.emplace(s.end, depth);
  }
  return out;
}

void check_size(std::size_t slices) {
  if (slices > std::numeric_limits<std::uint32_t>::max())
    throw Error(fmt::format("a timeline of {} slices is too long", slices));
}

}  // namespace

Lanes::Lanes(Timeline timeline) {
  take(std::move(timeline));
}

Lanes::Lanes(PackedTimeline timeline) {
  if (!timeline.slices.in_order()) {
    take(unpack(timeline));
    return;
  }
  check_size(timeline.slices.size());
  packed_ = std::move(timeline);
  for (const PackedSlices::Lane& lane : packed_.slices.lanes()) lanes_.push_back({lane, 0});
  index();
}

void Lanes::take(Timeline timeline) {
  std::vector<Slice> slices = std::move(timeline.slices);
  check_size(slices.size());
  packed_.head = std::move(timeline);
  if (!std::is_sorted(slices.begin(), slices.end(), before))
    std::stable_sort(slices.begin(), slices.end(), before);
  std::vector<std::int32_t> depths;
  for (std::size_t i = 0; i < slices.size();) {
    const std::size_t first = i;
    while (i < slices.size() && slices[i].rank == slices[first].rank &&
           slices[i].stream == slices[first].stream)
      ++i;
    std::int32_t depth = 0;
    for (const std::vector<const Slice*>& lane : by_depth(std::span(slices).subspan(first, i - first))) {
      packed_.slices.begin_lane(lane.front()->rank, lane.front()->stream);
      for (const Slice* const s : lane) packed_.slices.add(*s);
      packed_.slices.end_lane();
      depths.push_back(depth++);
    }
  }
  const auto lanes = packed_.slices.lanes();
  for (std::size_t l = 0; l < lanes.size(); ++l) lanes_.push_back({lanes[l], depths[l]});
  index();
}

void Lanes::index() {
  constexpr std::int32_t kMostStreams = 256;
  begin_ = Time{lanes_.empty() ? 0 : std::numeric_limits<std::int64_t>::max()};
  for (const Lane& lane : lanes_) {
    if (lane.stream >= kMostStreams) {
      throw Error(
          fmt::format("a timeline of {} streams has too many: at most {}", lane.stream + 1, kMostStreams));
    }
    std::vector<std::string>& streams = packed_.head.streams;
    for (auto i = streams.size(); i <= static_cast<std::size_t>(lane.stream); ++i)
      streams.push_back(fmt::format("stream {}", i));
    begin_ = std::min(begin_, slices(lane)[0].start);
    end_ = std::max(end_, lane.end);
  }
  blocks_ = packed_.slices.blocks().size() - 1;
  longest_.resize(2 * blocks_);
  for (std::size_t b = 0; b < blocks_; ++b) longest_[blocks_ + b] = static_cast<std::uint32_t>(b);
  for (std::size_t node = blocks_; node-- > 1;)
    longest_[node] = longer(longest_[2 * node], longest_[2 * node + 1]);
}

// Of two blocks the one with the longer slice; of equal ones the first.
std::uint32_t Lanes::longer(std::uint32_t a, std::uint32_t b) const {
  const auto blocks = packed_.slices.blocks();
  if (blocks[a].longest == blocks[b].longest) return std::min(a, b);
  return blocks[b].longest > blocks[a].longest ? b : a;
}

std::span<const Lane> Lanes::of(std::int32_t rank) const {
  const auto low =
      std::partition_point(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return l.rank < rank; });
  const auto high = std::partition_point(low, lanes_.end(), [&](const Lane& l) { return l.rank == rank; });
  return {low, high};
}

std::size_t Lanes::lane_of(std::size_t slice) const {
  const auto after =
      std::partition_point(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return l.first <= slice; });
  return static_cast<std::size_t>(after - lanes_.begin()) - 1;
}

Slice Lanes::slice(std::size_t slice) const {
  const Lane& lane = lanes_[lane_of(slice)];
  const std::size_t i = slice - lane.first;
  PackedSlices::Times times;
  packed_.slices.unpack(lane, i / kBlock, times);
  return packed_.slices.with_times(lane, i, times);
}

// --- the slices of a lane -----------------------------------------------------------------------------

void LaneSlices::read(std::size_t b, Unpacked& into) const {
  lanes_.packed_.slices.unpack(lane_, b, into.times);
  into.number = b;
}

Slice LaneSlices::without_times(std::size_t i) const {
  return lanes_.packed_.slices.without_times(lane_, i);
}

Slice LaneSlices::operator[](std::size_t i) const {
  return lanes_.packed_.slices.with_times(lane_, i, times(i));
}

Time LaneSlices::end_of_block(std::size_t b) const {
  if (b + 1 == lane_.blocks()) return lane_.end;
  return lanes_.packed_.slices.blocks()[lane_.first_block + b + 1].end_before;
}

std::size_t LaneSlices::first_after(Time t) const {
  std::size_t low = 0, high = lane_.blocks();  // blocks
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (end_of_block(middle) <= t)
      low = middle + 1;
    else
      high = middle;
  }
  std::size_t i = low * kBlock;
  while (i < size() && end(i) <= t) ++i;
  return std::min(i, size());
}

std::size_t LaneSlices::first_from(std::size_t i, Time t) const {
  // Slices that end before t start before it; of those that end at t, some may be of no length.
  std::size_t low = std::min(i / kBlock, lane_.blocks()), high = low;
  for (std::size_t step = 1; high < lane_.blocks() && end_of_block(high) < t; step *= 2) {
    low = high + 1;
    high += step;
  }
  high = std::min(high, lane_.blocks());
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (end_of_block(middle) < t)
      low = middle + 1;
    else
      high = middle;
  }
  i = std::max(i, low * kBlock);
  while (i < size() && start(i) < t) ++i;
  return std::min(i, size());
}

// Where a lane ends with a block, the next entry is behind it, or another lane's.
LaneSlices::Sums LaneSlices::before(std::size_t i) const {
  for (const Known& k : known_) {
    if (k.slice == i) return k.sums;
  }
  const PackedSlices::Block& block = lanes_.packed_.slices.blocks()[lane_.first_block + i / kBlock];
  Sums out{block.busy_before, block.waiting_before};
  if (i % kBlock > 0) {
    const PackedSlices::Times& in = times(i - 1);
    for (std::size_t k = 0; k < i % kBlock; ++k) {
      out.busy += static_cast<std::uint64_t>((in.end[k] - in.start[k]).value);
      out.waiting += static_cast<std::uint64_t>((in.active[k] - in.start[k]).value);
    }
  }
  known_[oldest_] = {i, out};
  oldest_ = 1 - oldest_;
  return out;
}

Time LaneSlices::busy_of(std::size_t first, std::size_t last, Time from, Time to) const {
  const Time whole{static_cast<std::int64_t>(before(last).busy - before(first).busy)};
  return whole - std::max(Time{0}, from - start(first)) - std::max(Time{0}, end(last - 1) - to);
}

Time LaneSlices::waiting_of(std::size_t first, std::size_t last, Time from, Time to) const {
  const Time whole{static_cast<std::int64_t>(before(last).waiting - before(first).waiting)};
  const Time ahead = std::max(Time{0}, std::min(active(first), from) - start(first));
  const Time behind = std::max(Time{0}, active(last - 1) - std::max(start(last - 1), to));
  return whole - ahead - behind;
}

LaneSlices::Longest LaneSlices::longest(std::size_t first, std::size_t last) const {
  Longest best;
  const auto see = [&](std::size_t begin, std::size_t finish) {
    for (std::size_t i = begin; i < finish; ++i) {
      if (const Time length = end(i) - start(i); length > best.length) best = {i, length};
    }
  };
  const std::size_t whole = (first + kBlock - 1) / kBlock, behind = last / kBlock;  // blocks
  if (whole >= behind) {
    see(first, last);
    return best;
  }
  see(first, whole * kBlock);
  // The first of the blocks between with the longest slice.
  const std::size_t root = lane_.first_block + lanes_.blocks_;
  auto found = static_cast<std::uint32_t>(lane_.first_block + whole);
  for (std::size_t left = root + whole, right = root + behind; left < right; left /= 2, right /= 2) {
    if (left % 2 == 1) found = lanes_.longer(found, lanes_.longest_[left++]);
    if (right % 2 == 1) found = lanes_.longer(found, lanes_.longest_[--right]);
  }
  const PackedSlices::Block& block = lanes_.packed_.slices.blocks()[found];
  if (block.longest > best.length)
    best = {(found - lane_.first_block) * kBlock + block.longest_at, block.longest};
  see(behind * kBlock, last);
  return best;
}

Time LaneSlices::busy_until(Time t) const {
  const std::size_t i = first_after(t);
  Time sum{static_cast<std::int64_t>(before(i).busy - before(0).busy)};
  if (i < size()) sum += std::max(Time{0}, t - start(i));
  return sum;
}

Time LaneSlices::busy(Time from, Time to) const {
  return to <= from ? Time{0} : busy_until(to) - busy_until(from);
}

}  // namespace orrery::sim
