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

constexpr std::size_t kBlock = 16;  // slices under a leaf of the tree

auto lane_order(const Slice& s) {
  return std::tie(s.rank, s.stream, s.start, s.end);
}
bool before(const Slice& a, const Slice& b) {
  return lane_order(a) < lane_order(b);
}

}  // namespace

Lanes::Lanes(Timeline timeline) : timeline_(std::move(timeline)) {
  if (timeline_.slices.size() > std::numeric_limits<std::uint32_t>::max())
    throw Error(fmt::format("a timeline of {} slices is too long", timeline_.slices.size()));
  constexpr std::int32_t kMostStreams = 256;
  for (const Slice& s : timeline_.slices) {
    if (s.stream >= kMostStreams)
      throw Error(
          fmt::format("a timeline of {} streams has too many: at most {}", s.stream + 1, kMostStreams));
    for (auto i = timeline_.streams.size(); i <= static_cast<std::size_t>(s.stream); ++i)
      timeline_.streams.push_back(fmt::format("stream {}", i));
  }
  sort();
  const auto& slices = timeline_.slices;
  busy_before_.reserve(slices.size() + 1);
  busy_before_.push_back(0);
  waiting_before_.reserve(slices.size() + 1);
  waiting_before_.push_back(0);
  begin_ = Time{slices.empty() ? 0 : std::numeric_limits<std::int64_t>::max()};
  for (const Slice& s : slices) {
    busy_before_.push_back(busy_before_.back() + static_cast<std::uint64_t>((s.end - s.start).value));
    waiting_before_.push_back(waiting_before_.back() +
                              static_cast<std::uint64_t>((s.active - s.start).value));
    begin_ = std::min(begin_, s.start);
    end_ = std::max(end_, s.end);
  }
  build_tree();
}

void Lanes::sort() {
  auto& slices = timeline_.slices;
  if (!std::is_sorted(slices.begin(), slices.end(), before))
    std::stable_sort(slices.begin(), slices.end(), before);
  for (std::size_t i = 0; i < slices.size();) {
    const std::size_t first = i;
    bool overlap = false;
    while (i < slices.size() && slices[i].rank == slices[first].rank &&
           slices[i].stream == slices[first].stream) {
      overlap |= i > first && slices[i].start < slices[i - 1].end;
      ++i;
    }
    if (overlap)
      split_overlapping(first, i);
    else
      lanes_.push_back({slices[first].rank, slices[first].stream, 0, first, i - first});
  }
}

// Each slice goes to the lane that is free first.
void Lanes::split_overlapping(std::size_t first, std::size_t last) {
  auto& slices = timeline_.slices;
  using Free = std::pair<Time, std::size_t>;  // since when, depth
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  std::vector<std::vector<Slice>> by_depth;
  for (std::size_t i = first; i < last; ++i) {
    std::size_t depth = by_depth.size();
    if (!free.empty() && free.top().first <= slices[i].start) {
      depth = free.top().second;
      free.pop();
    } else {
      by_depth.emplace_back();
    }
    by_depth[depth].push_back(slices[i]);
    free.emplace(slices[i].end, depth);
  }
  std::size_t at = first;
  for (std::size_t d = 0; d < by_depth.size(); ++d) {
    const Slice& one = by_depth[d].front();
    lanes_.push_back({one.rank, one.stream, static_cast<std::int32_t>(d), at, by_depth[d].size()});
    at = static_cast<std::size_t>(
        std::copy(by_depth[d].begin(), by_depth[d].end(), slices.begin() + static_cast<std::ptrdiff_t>(at)) -
        slices.begin());
  }
}

std::size_t Lanes::longer(std::size_t a, std::size_t b) const {
  const auto length = [&](std::size_t i) { return busy_before_[i + 1] - busy_before_[i]; };
  return length(b) > length(a) ? b : a;
}

void Lanes::build_tree() {
  const std::size_t n = timeline_.slices.size();
  blocks_ = (n + kBlock - 1) / kBlock;
  longest_.resize(2 * blocks_);
  for (std::size_t b = 0; b < blocks_; ++b) {
    std::size_t best = b * kBlock;
    for (std::size_t i = best + 1; i < std::min(n, (b + 1) * kBlock); ++i) best = longer(best, i);
    longest_[blocks_ + b] = static_cast<std::uint32_t>(best);
  }
  for (std::size_t node = blocks_; node-- > 1;)
    longest_[node] = static_cast<std::uint32_t>(longer(longest_[2 * node], longest_[2 * node + 1]));
}

std::span<const Lane> Lanes::of(std::int32_t rank) const {
  const auto [first, last] = std::equal_range(lanes_.begin(), lanes_.end(), Lane{.rank = rank},
                                              [](const Lane& a, const Lane& b) { return a.rank < b.rank; });
  return {first, last};
}

std::size_t Lanes::lane_of(std::size_t slice) const {
  const auto after =
      std::partition_point(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return l.first <= slice; });
  return static_cast<std::size_t>(after - lanes_.begin()) - 1;
}

std::size_t Lanes::first_after(const Lane& lane, Time t) const {
  const auto in = slices(lane);
  return static_cast<std::size_t>(
      std::partition_point(in.begin(), in.end(), [&](const Slice& s) { return s.end <= t; }) - in.begin());
}

Time Lanes::busy_until(const Lane& lane, Time t) const {
  const std::size_t i = first_after(lane, t);
  Time sum{static_cast<std::int64_t>(busy_before_[lane.first + i] - busy_before_[lane.first])};
  if (i < lane.count) sum += std::max(Time{0}, t - slices(lane)[i].start);
  return sum;
}

Time Lanes::busy(const Lane& lane, Time from, Time to) const {
  return to <= from ? Time{0} : busy_until(lane, to) - busy_until(lane, from);
}

Time Lanes::busy_of(const Lane& lane, std::size_t first, std::size_t last, Time from, Time to) const {
  const auto in = slices(lane);
  const Time whole{
      static_cast<std::int64_t>(busy_before_[lane.first + last] - busy_before_[lane.first + first])};
  return whole - std::max(Time{0}, from - in[first].start) - std::max(Time{0}, in[last - 1].end - to);
}

Time Lanes::waiting_of(const Lane& lane, std::size_t first, std::size_t last, Time from, Time to) const {
  const auto in = slices(lane);
  const Time whole{
      static_cast<std::int64_t>(waiting_before_[lane.first + last] - waiting_before_[lane.first + first])};
  const Slice &a = in[first], &b = in[last - 1];
  const Time before = std::max(Time{0}, std::min(a.active, from) - a.start);
  const Time after = std::max(Time{0}, b.active - std::max(b.start, to));
  return whole - before - after;
}

std::size_t Lanes::longest(const Lane& lane, std::size_t first, std::size_t last) const {
  std::size_t i = lane.first + first;
  const std::size_t end = lane.first + last;
  std::size_t best = i;
  for (; i < end && i % kBlock != 0; ++i) best = longer(best, i);
  std::size_t left = i / kBlock + blocks_, right = end / kBlock + blocks_;
  if (i < end) {
    for (; left < right; left /= 2, right /= 2) {
      if (left % 2 == 1) best = longer(best, longest_[left++]);
      if (right % 2 == 1) best = longer(best, longest_[--right]);
    }
    for (std::size_t rest = std::max(i, end / kBlock * kBlock); rest < end; ++rest) best = longer(best, rest);
  }
  return best - lane.first;
}

}  // namespace orrery::sim
