// SPDX-License-Identifier: Apache-2.0
//
// The part of time that all views show, the cursor in it and what is selected: timelines of two runs, memory
// and the links of the network follow one.
#pragma once

#include <QElapsedTimer>
#include <QObject>
#include <optional>
#include <utility>
#include <vector>

#include "gui/timeline/axis.h"

namespace orrery::gui {

class TimeView : public QObject {
  Q_OBJECT

 public:
  using QObject::QObject;
  using Range = std::pair<Time, Time>;

  const TimeAxis& axis() const { return axis_; }
  // Changes the axis by a function of it.
  template <class Change>
  void change(Change&& how) {
    const TimeAxis before = axis_;
    how(axis_);
    if (axis_ == before) return;
    remember(before);
    Q_EMIT axis_changed();
  }
  // Shows the part of time that was shown before, or after that again. Changes that follow each other within
  // kGesture_ms, as those of a wheel or a drag, are one. Other limits forget what was shown.
  static constexpr int kGesture_ms = 400;
  void back() { go(past_, future_); }
  void forward() { go(future_, past_); }

  std::optional<Time> cursor() const { return cursor_; }
  void set_cursor(std::optional<Time> t) {
    if (cursor_ == t) return;
    cursor_ = t;
    Q_EMIT cursor_changed();
  }

  const std::optional<Range>& selection() const { return selection_; }
  void select(std::optional<Range> range) {
    if (selection_ == range) return;
    selection_ = range;
    Q_EMIT selection_changed();
  }

 Q_SIGNALS:
  void axis_changed();
  void cursor_changed();
  void selection_changed();

 private:
  void remember(const TimeAxis& before);
  void go(std::vector<Range>& from, std::vector<Range>& to);

  TimeAxis axis_;
  std::vector<Range> past_, future_;  // the last is the nearest
  QElapsedTimer since_change_;
  std::optional<Time> cursor_;
  std::optional<Range> selection_;
};

}  // namespace orrery::gui
