// SPDX-License-Identifier: Apache-2.0
#include "gui/time_view.h"

namespace orrery::gui {

void TimeView::remember(const TimeAxis& before) {
  if (before.begin() != axis_.begin() || before.end() != axis_.end()) {
    past_.clear();
    future_.clear();
    since_change_.invalidate();
    return;
  }
  if (before.from() == axis_.from() && before.to() == axis_.to()) return;
  constexpr std::size_t kMost = 200;
  if (!since_change_.isValid() || since_change_.elapsed() > kGesture_ms) {
    if (past_.size() == kMost) past_.erase(past_.begin());
    past_.push_back({before.from(), before.to()});
  }
  future_.clear();
  since_change_.start();
}

void TimeView::go(std::vector<Range>& from, std::vector<Range>& to) {
  if (from.empty()) return;
  to.push_back({axis_.from(), axis_.to()});
  axis_.show(from.back().first, from.back().second);
  from.pop_back();
  since_change_.invalidate();
  Q_EMIT axis_changed();
}

}  // namespace orrery::gui
