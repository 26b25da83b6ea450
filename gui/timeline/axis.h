// SPDX-License-Identifier: Apache-2.0
//
// Time against pixels: what part of a timeline is on screen. Column x of the screen shows
// [time_at(x), time_at(x + 1)); columns of a window neither overlap nor leave gaps.
//
//   TimeAxis axis;
//   axis.set_limits(Time{0}, lanes.end());
//   axis.zoom(2, 300);          // twice as close, what is under column 300 stays there
#pragma once

#include <vector>

#include "core/units.h"

namespace orrery::gui {

class TimeAxis {
 public:
  // The timeline's begin and end; shows all of it. An empty one gets a length of ten nanoseconds.
  void set_limits(Time begin, Time end);
  void set_width(int pixels);

  Time begin() const { return begin_; }
  Time end() const { return end_; }
  Time from() const { return from_; }
  Time to() const { return to_; }
  Time span() const { return to_ - from_; }
  int width() const { return width_; }

  Time time_at(int x) const;
  double x_of(Time t) const;
  // time_at of every column's left edge, and of the last one's right edge.
  std::vector<Time> edges() const;

  // Each keeps the window inside the limits and at least ten nanoseconds wide.
  void show(Time from, Time to);
  void show_all() { show(begin_, end_); }
  void zoom(double factor, double x);
  void pan(double pixels);

  friend bool operator==(const TimeAxis&, const TimeAxis&) = default;

 private:
  Time begin_{0}, end_{10'000}, from_{0}, to_{10'000};
  int width_ = 1;
};

}  // namespace orrery::gui
