// SPDX-License-Identifier: Apache-2.0
//
// Level of detail: what one lane shows in each column of pixels. The work is bounded by pixels, however many
// slices they stand for: O(columns log slices).
#pragma once

#include <span>
#include <vector>

#include "sim/analysis/lanes.h"

namespace orrery::gui {

struct Column {
  std::int32_t slice = -1;  // of the lane: the longest that reaches into the column; -1: none
  float busy = 0;           // share of the column's time in which the lane ran something
  float waiting = 0;        // of the column's time, waiting for partners; part of busy
  friend bool operator==(const Column&, const Column&) = default;
};

// Column x reaches from edges[x] to edges[x + 1].
void find_columns(const sim::Lanes& lanes, const sim::Lane& lane, std::span<const Time> edges,
                  std::span<Column> out);

// Neighbouring columns that show one slice.
struct ColumnRun {
  std::int32_t slice = -1;
  int first = 0, count = 0;
};
// Of at least `least` columns.
std::vector<ColumnRun> find_runs(std::span<const Column> columns, int least);

}  // namespace orrery::gui
