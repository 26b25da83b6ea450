// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/overview.h"

#include <QMouseEvent>
#include <QPainter>
#include <algorithm>
#include <cmath>

#include "gui/timeline/rows.h"

namespace orrery::gui {
namespace {

constexpr int kHeight = 34;
constexpr int kReach = 5;       // pixels from an edge in which it is held
constexpr int kLeastFrame = 3;  // pixels, however little is shown

}  // namespace

Overview::Overview(TimeView& time, QWidget* parent) : QWidget(parent), time_(time) {
  setAccessibleName(tr("The whole run"));
  setToolTip(tr("The whole run. Drag the frame to move, its edges to zoom; double-click shows everything."));
  setMouseTracking(true);
  setFixedHeight(kHeight);
  const auto repaint = [this] { update(); };
  connect(&time_, &TimeView::axis_changed, this, repaint);
  connect(&time_, &TimeView::cursor_changed, this, repaint);
  connect(&time_, &TimeView::selection_changed, this, repaint);
}

void Overview::set_bins(std::vector<float> bins, Time from, Time to) {
  bins_ = std::move(bins);
  bins_from_ = from;
  bins_to_ = to;
  update();
}

void Overview::set_sides(int left, int right) {
  left_ = left;
  right_ = right;
  update();
}

QSize Overview::sizeHint() const {
  return {400, kHeight};
}

int Overview::tracks() const {
  return std::max(1, width() - left_ - right_);
}

double Overview::x_of(Time t) const {
  const TimeAxis& a = time_.axis();
  return left_ + tracks() * ratio(t - a.begin(), a.end() - a.begin());
}

Time Overview::time_at(double x) const {
  const TimeAxis& a = time_.axis();
  const double share = std::clamp((x - left_) / tracks(), 0.0, 1.0);
  return a.begin() + Time{std::llround(share * static_cast<double>((a.end() - a.begin()).value))};
}

double Overview::share_between(Time from, Time to) const {
  if (bins_.empty() || from >= bins_to_ || to <= bins_from_) return 0;
  const auto place = [&](Time t) { return ratio(t - bins_from_, bins_to_ - bins_from_); };
  return static_cast<double>(mean_bin(bins_, place(from), place(to)));
}

void Overview::paintEvent(QPaintEvent*) {
  const Theme theme = Theme::of(palette());
  const TimeAxis& axis = time_.axis();
  QPainter painter(this);
  painter.fillRect(rect(), theme.background);
  painter.setPen(theme.faint_text);
  painter.drawText(QRect(8, 0, left_ - 12, height()), Qt::AlignVCenter, tr("the whole run"));
  const QRect tracks_rect(left_, 0, tracks(), height());
  painter.fillRect(tracks_rect, theme.row_alternate);
  const int high = height() - 4;
  for (int x = 0; !bins_.empty() && x < tracks(); ++x) {
    const double share = share_between(time_at(left_ + x), time_at(left_ + x + 1));
    const int bar = static_cast<int>(std::lround(share * high));
    painter.fillRect(left_ + x, height() - 2 - bar, 1, bar, theme.forward);
  }
  if (time_.selection()) {
    QColor shade = theme.selection;
    shade.setAlpha(90);
    const double from = x_of(time_.selection()->first), to = x_of(time_.selection()->second);
    painter.fillRect(QRectF(from, 0, std::max(1.0, to - from), height()), shade);
  }
  const double from = x_of(axis.from()), to = std::max(from + kLeastFrame, x_of(axis.to()));
  if (axis.from() > axis.begin() || axis.to() < axis.end()) {
    QColor shade = theme.background;
    shade.setAlpha(170);
    painter.fillRect(QRectF(left_, 0, from - left_, height()), shade);
    painter.fillRect(QRectF(to, 0, left_ + tracks() - to, height()), shade);
  }
  painter.setPen(QPen(theme.selection, 1.5));
  painter.drawRect(QRectF(from + 0.5, 1, to - from - 1.5, height() - 2.5));
  if (time_.cursor()) {
    painter.setPen(theme.cursor);
    painter.drawLine(QPointF(x_of(*time_.cursor()), 0), QPointF(x_of(*time_.cursor()), height()));
  }
}

Overview::Drag Overview::at(double x) const {
  const TimeAxis& axis = time_.axis();
  const double from = x_of(axis.from()), to = std::max(from + kLeastFrame, x_of(axis.to()));
  // A narrow frame is held, not pulled apart.
  if (to - from > 4 * kReach) {
    if (std::abs(x - from) <= kReach) return Drag::kFrom;
    if (std::abs(x - to) <= kReach) return Drag::kTo;
  }
  return x > from - kReach && x < to + kReach ? Drag::kFrame : Drag::kNone;
}

void Overview::mousePressEvent(QMouseEvent* event) {
  const double x = event->position().x();
  if (event->button() != Qt::LeftButton || x < left_) return;
  drag_ = at(x);
  if (drag_ == Drag::kNone) {
    const Time middle = time_at(x), span = time_.axis().span();
    time_.change([&](TimeAxis& a) { a.show(middle - span / 2, middle - span / 2 + span); });
    drag_ = Drag::kFrame;
  }
  held_ = time_at(x) - time_.axis().from();
}

void Overview::mouseMoveEvent(QMouseEvent* event) {
  const double x = event->position().x();
  const Time t = time_at(x);
  switch (drag_) {
    case Drag::kNone: {
      const Drag over = x < left_ ? Drag::kNone : at(x);
      setCursor(over == Drag::kFrom || over == Drag::kTo ? Qt::SizeHorCursor
                : over == Drag::kFrame                   ? Qt::OpenHandCursor
                                                         : Qt::ArrowCursor);
      return;
    }
    case Drag::kFrame:
      return time_.change([&](TimeAxis& a) { a.show(t - held_, t - held_ + a.span()); });
    case Drag::kFrom:
      return time_.change([&](TimeAxis& a) { a.show(std::min(t, a.to()), a.to()); });
    case Drag::kTo:
      return time_.change([&](TimeAxis& a) { a.show(a.from(), std::max(t, a.from())); });
  }
}

void Overview::mouseReleaseEvent(QMouseEvent*) {
  drag_ = Drag::kNone;
}

void Overview::mouseDoubleClickEvent(QMouseEvent*) {
  time_.change([](TimeAxis& a) { a.show_all(); });
}

}  // namespace orrery::gui
