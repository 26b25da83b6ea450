// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/columns.h"

#include <algorithm>

namespace orrery::gui {

void find_columns(const sim::Lanes& lanes, const sim::Lane& lane, std::span<const Time> edges,
                  std::span<Column> out) {
  const sim::LaneSlices slices = lanes.slices(lane);
  // A slice of no length that is on the first edge too.
  std::size_t i = slices.first_after(edges.front() - Time{1});  // the first that may reach into the column
  Time from = edges.front();
  for (std::size_t x = 0; x < out.size(); ++x) {
    Column& column = out[x];
    const Time to = edges[x + 1];
    column = {};
    while (i < slices.size() && slices.end(i) <= from && slices.end(i) > slices.start(i)) ++i;
    if (i == slices.size() || slices.start(i) >= to) {
      from = to;
      continue;
    }
    const std::size_t last = slices.first_from(i, to);  // one past the last that reaches into it
    const auto inside = [&](std::size_t s) {
      return std::min(slices.end(s), to) - std::max(slices.start(s), from);
    };
    const double whole = std::max<double>(1, static_cast<double>((to - from).value));
    // The first and the last may reach out of it; those between do not.
    std::size_t best = inside(last - 1) > inside(i) ? last - 1 : i;
    if (last - i > 2) {
      const sim::LaneSlices::Longest middle = slices.longest(i + 1, last - 1);
      if (middle.length > inside(best)) best = middle.slice;
    }
    const auto share = [&](Time t) { return static_cast<float>(static_cast<double>(t.value) / whole); };
    column = {static_cast<std::int32_t>(best), share(slices.busy_of(i, last, from, to)),
              share(slices.waiting_of(i, last, from, to))};
    i = slices.end(last - 1) > to ? last - 1 : last;
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
