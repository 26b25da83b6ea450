// SPDX-License-Identifier: Apache-2.0
//
// Colours, light and dark. Hues follow Okabe and Ito (2008), which stay apart for colour-blind eyes; each is
// a little lighter on dark ground so that black text stays readable on it.
#pragma once

#include <QColor>
#include <QPalette>
#include <QString>
#include <vector>

#include "core/timeline.h"
#include "sim/analysis/lanes.h"

namespace orrery::gui {

// What a slice is coloured by. Kinds are those of our programs; ops of other software's traces are coloured
// by their class instead.
enum class Colouring { kKind, kMicroBatch, kOp, kBound };

struct Theme {
  bool dark = false;
  QColor background, row, row_alternate, grid, text, faint_text, selection, cursor, path;
  QColor forward, backward, optimizer, tensor, data, context, expert, pipeline, other;

  static Theme of(const QPalette& palette);
  QPalette palette() const;  // for widgets
  // Of a memory class, a part of a breakdown or a series, by its number: all apart, as many as there are.
  QColor series(std::size_t i) const;
};
const Theme& light_theme();
const Theme& dark_theme();

// The colour of each slice of a timeline, looked up.
class SliceColours {
 public:
  SliceColours(const Theme& theme, const TimelineHead& timeline, Colouring colouring);
  QRgb of(const Slice& s) const {
    const std::size_t i =
        colouring_ == Colouring::kKind
            ? static_cast<std::size_t>(s.stream) * segments_ + static_cast<std::size_t>(s.segment)
            : static_cast<std::size_t>(colouring_ == Colouring::kMicroBatch ? s.micro_batch : s.name);
    return table_[i % table_.size()];
  }

 private:
  Colouring colouring_;
  std::size_t segments_;
  std::vector<QRgb> table_;
};

// Of what a stream runs in a segment.
QColor kind_colour(const Theme& theme, const std::string& stream, const std::string& segment);

// What a colour means.
struct Meaning {
  QColor colour;
  QString text;
};
// Where colours are few; none for single ops and micro-batches.
std::vector<Meaning> legend(const Theme& theme, const sim::Lanes& lanes, Colouring colouring);

}  // namespace orrery::gui
