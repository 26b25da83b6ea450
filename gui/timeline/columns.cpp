// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/columns.h"

#include <algorithm>
#include <optional>

namespace orrery::gui {
namespace {

// Up to so many slices of a column are looked at one by one: it takes less time than to find the last one.
constexpr std::size_t kFew = 12;

// Slices from `first` on that reach into [from, to), up to `last`: how much of it they take, and wait for
// partners, and one of the longest of them there.
struct Reaching {
  std::size_t last = 0, longest = 0;
  Time busy{0}, waiting{0};
};

// Nothing where they are more than a few.
std::optional<Reaching> reaching_one_by_one(const sim::LaneSlices& slices, std::size_t first, Time from,
                                            Time to) {
  Reaching out{.last = first, .longest = first};
  Time most{-1};
  for (; out.last < slices.size() && slices.start(out.last) < to; ++out.last) {
    if (out.last == first + kFew) return std::nullopt;
    const Time start = std::max(slices.start(out.last), from), end = std::min(slices.end(out.last), to);
    out.busy += end - start;
    out.waiting += std::max(Time{0}, std::min(slices.active(out.last), to) - start);
    if (end - start > most) {
      out.longest = out.last;
      most = end - start;
    }
  }
  return out;
}

Reaching reaching(const sim::LaneSlices& slices, std::size_t first, Time from, Time to) {
  Reaching out{.last = slices.first_from(first, to)};
  // The first and the last may reach out of it; those between do not.
  const auto inside = [&](std::size_t s) {
    return std::min(slices.end(s), to) - std::max(slices.start(s), from);
  };
  out.longest = inside(out.last - 1) > inside(first) ? out.last - 1 : first;
  if (out.last - first > 2) {
    const sim::LaneSlices::Longest between = slices.longest(first + 1, out.last - 1);
    if (between.length > inside(out.longest)) out.longest = between.slice;
  }
  out.busy = slices.busy_of(first, out.last, from, to);
  out.waiting = slices.waiting_of(first, out.last, from, to);
  return out;
}

}  // namespace

void find_columns(const sim::Lanes& lanes, const sim::Lane& lane, std::span<const Time> edges,
                  std::span<Column> out) {
  const sim::LaneSlices slices = lanes.slices(lane);
  // A slice of no length that is on the first edge too.
  std::size_t i = slices.first_after(edges.front() - Time{1});  // the first that may reach into the column
  Time from = edges.front();
  bool few = true;  // in the column before
  for (std::size_t x = 0; x < out.size(); ++x) {
    Column& column = out[x];
    const Time to = edges[x + 1];
    column = {};
    while (i < slices.size() && slices.end(i) <= from && slices.end(i) > slices.start(i)) ++i;
    if (i == slices.size() || slices.start(i) >= to) {
      from = to;
      continue;
    }
    const double whole = std::max<double>(1, static_cast<double>((to - from).value));
    const auto share = [&](Time t) { return static_cast<float>(static_cast<double>(t.value) / whole); };
    std::optional<Reaching> found;
    if (few) found = reaching_one_by_one(slices, i, from, to);
    if (!found) found = reaching(slices, i, from, to);
    column = {static_cast<std::int32_t>(found->longest), share(found->busy), share(found->waiting)};
    few = found->last - i <= kFew;
    i = slices.end(found->last - 1) > to ? found->last - 1 : found->last;
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
