// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/columns.h"

#include <algorithm>

namespace orrery::gui {
namespace {

// The first slice from `i` on that starts at `t` or later: in steps that double, as it is mostly near.
std::size_t first_from(std::span<const Slice> slices, std::size_t i, Time t) {
  std::size_t step = 1, low = i;
  while (i + step < slices.size() && slices[i + step].start < t) {
    low = i + step;
    step *= 2;
  }
  const auto begin = slices.begin() + static_cast<std::ptrdiff_t>(low);
  const auto end = slices.begin() + static_cast<std::ptrdiff_t>(std::min(i + step, slices.size()));
  return static_cast<std::size_t>(
      std::partition_point(begin, end, [&](const Slice& s) { return s.start < t; }) - slices.begin());
}

}  // namespace

void find_columns(const sim::Lanes& lanes, const sim::Lane& lane, std::span<const Time> edges,
                  std::span<Column> out) {
  const auto slices = lanes.slices(lane);
  std::size_t i = lanes.first_after(lane, edges.front());  // the first that may reach into the column
  Time from = edges.front();
  for (std::size_t x = 0; x < out.size(); ++x) {
    Column& column = out[x];
    const Time to = edges[x + 1];
    column = {};
    while (i < slices.size() && slices[i].end <= from && slices[i].end > slices[i].start) ++i;
    if (i == slices.size() || slices[i].start >= to) {
      from = to;
      continue;
    }
    const std::size_t last = first_from(slices, i, to);  // one past the last that reaches into it
    const auto inside = [&](const Slice& s) { return std::min(s.end, to) - std::max(s.start, from); };
    const double whole = std::max<double>(1, static_cast<double>((to - from).value));
    // The first and the last may reach out of it; those between do not.
    std::size_t best = inside(slices[last - 1]) > inside(slices[i]) ? last - 1 : i;
    if (last - i > 2) {
      const std::size_t middle = lanes.longest(lane, i + 1, last - 1);
      if (inside(slices[middle]) > inside(slices[best])) best = middle;
    }
    const auto share = [&](Time t) { return static_cast<float>(static_cast<double>(t.value) / whole); };
    column = {static_cast<std::int32_t>(best), share(lanes.busy_of(lane, i, last, from, to)),
              share(lanes.waiting_of(lane, i, last, from, to))};
    i = slices[last - 1].end > to ? last - 1 : last;
    from = to;
  }
}

std::vector<ColumnRun> find_runs(std::span<const Column> columns, int least) {
  std::vector<ColumnRun> out;
  const int n = static_cast<int>(columns.size());
  for (int x = 0; x < n;) {
    const int first = x;
    const std::int32_t slice = columns[static_cast<std::size_t>(x)].slice;
    while (x < n && columns[static_cast<std::size_t>(x)].slice == slice) ++x;
    if (slice >= 0 && x - first >= least) out.push_back({slice, first, x - first});
  }
  return out;
}

}  // namespace orrery::gui
