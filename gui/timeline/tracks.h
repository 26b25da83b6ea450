// SPDX-License-Identifier: Apache-2.0
//
// Paints the rows of a timeline over a window of time. A lane's row is a line of columns (columns.h), copied
// down; names are written on slices that are wide enough. A closed row shows the share of its ranks that
// compute. The work depends on pixels and rows on screen, not on slices.
#pragma once

#include <QFont>
#include <QImage>
#include <QPainter>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "gui/theme.h"
#include "gui/timeline/axis.h"
#include "gui/timeline/columns.h"
#include "gui/timeline/rows.h"
#include "sim/analysis/critical_path.h"

namespace orrery::gui {

inline constexpr int kRowHeight = 20;

// What stands out from the rest, which fades.
struct Emphasis {
  std::vector<bool> names;                   // by name: found by a search; empty: none asked for
  std::vector<std::vector<sim::Link>> path;  // by lane: its part of the critical path; empty: not shown
};

class Tracks {
 public:
  Tracks(const sim::Lanes& lanes, const Theme& theme, Colouring colouring);

  // `rows` from the top of the picture on, kRowHeight each, as wide as the axis.
  // Where the axis of the last picture was moved by whole columns, what was found for it serves again.
  QImage picture(const TimeAxis& axis, std::span<Row* const> rows, const Emphasis& emphasis,
                 const QFont& font);
  // Of the last picture: columns of lanes that were looked for. The others were known.
  std::int64_t looked_for() const { return looked_for_; }
  // By column: the share of the ranks of a row of several that compute.
  std::vector<float> shares(const Row& row, const TimeAxis& axis) const;
  // The same as shapes, for files of vectors.
  void draw(QPainter& painter, const TimeAxis& axis, std::span<Row* const> rows,
            const Emphasis& emphasis) const;

 private:
  struct Line {
    std::vector<QRgb> colours;  // by column; 0: nothing
    std::vector<Column> columns;
  };
  // An axis with its edges, which all rows share.
  struct Scale {
    const TimeAxis& axis;
    std::vector<Time> edges;
  };
  // What was found for the last picture: columns by lane. `axis` is that of the first of the pictures since
  // which the axis only moved, by `moved` columns in all.
  struct Found {
    TimeAxis axis;
    std::int64_t moved = 0;
    std::map<std::size_t, std::vector<Column>> columns;
  };
  // How far an axis is from that; none where it is another one, or between columns.
  std::optional<std::int64_t> moved(const TimeAxis& axis) const;
  // `by`: columns that the axis moved since `before` were found, where they were.
  std::vector<Column> columns_of(std::size_t lane, const Scale& scale, const std::vector<Column>* before,
                                 std::int64_t by) const;
  Line lane_line(const Row& row, const Scale& scale, const Emphasis& emphasis,
                 std::vector<Column> columns) const;
  std::vector<float> shares(const Row& row, const Scale& scale) const;
  void names(QPainter& painter, const Row& row, const Line& line, int top) const;
  void path(QPainter& painter, const Row& row, const TimeAxis& axis, const Emphasis& emphasis, int top) const;
  QRgb faded(QRgb colour, double share) const;

  const sim::Lanes& lanes_;
  const Theme& theme_;
  SliceColours colours_;
  Found found_;
  std::int64_t looked_for_ = 0;
};

}  // namespace orrery::gui
