// SPDX-License-Identifier: Apache-2.0
//
// What pointers do in a timeline.
#include <QHelpEvent>
#include <QMouseEvent>
#include <QScrollBar>
#include <QToolTip>
#include <QWheelEvent>
#include <algorithm>
#include <cmath>

#include "gui/text.h"
#include "gui/timeline/view.h"

namespace orrery::gui {
namespace {

constexpr double kZoomOfWheel = 1.25;
constexpr int kDragBegins = 5;  // pixels

}  // namespace

void TimelineView::wheelEvent(QWheelEvent* event) {
  const double notches = event->angleDelta().y() / 120.0;
  const double x = event->position().x() - label_width_;
  if (event->modifiers() & Qt::ControlModifier) {
    time_.change([&](TimeAxis& a) { a.zoom(std::pow(kZoomOfWheel, notches), std::max(0.0, x)); });
  } else if ((event->modifiers() & Qt::ShiftModifier) || event->angleDelta().x() != 0) {
    const double by =
        (event->angleDelta().x() != 0 ? event->angleDelta().x() : event->angleDelta().y()) / 120.0;
    time_.change([&](TimeAxis& a) { a.pan(-by * a.width() / 12.0); });
  } else {
    QAbstractScrollArea::wheelEvent(event);
  }
  event->accept();
}

void TimelineView::mousePressEvent(QMouseEvent* event) {
  setFocus();
  pressed_ = pointer_ = event->pos();
  const int row = row_at(event->pos().y());
  if (event->pos().x() < label_width_) {
    if (row >= 0 && event->button() == Qt::LeftButton) {
      Row& r = *rows_->visible()[static_cast<std::size_t>(row)];
      set_open(r, !r.open);
    }
    return;
  }
  if (event->button() == Qt::MiddleButton || (event->modifiers() & Qt::ShiftModifier))
    drag_ = Drag::kPan;
  else if (event->button() == Qt::LeftButton)
    drag_ = (event->modifiers() & Qt::ControlModifier) ? Drag::kZoom : Drag::kPressed;
}

void TimelineView::mouseMoveEvent(QMouseEvent* event) {
  const QPoint last = pointer_;
  pointer_ = event->pos();
  const int x = pointer_.x() - label_width_;
  time_.set_cursor(x >= 0 && run_ ? std::optional(time_.axis().time_at(x)) : std::nullopt);
  if (drag_ == Drag::kPressed && (pointer_ - pressed_).manhattanLength() >= kDragBegins)
    drag_ = Drag::kSelect;
  if (drag_ == Drag::kPan) {
    time_.change([&](TimeAxis& a) { a.pan(last.x() - pointer_.x()); });
    verticalScrollBar()->setValue(verticalScrollBar()->value() + last.y() - pointer_.y());
  }
  if (drag_ != Drag::kNone) viewport()->update();
}

void TimelineView::mouseReleaseEvent(QMouseEvent* event) {
  finish_drag(event->pos());
  drag_ = Drag::kNone;
  viewport()->update();
}

void TimelineView::finish_drag(const QPoint& at) {
  if (drag_ == Drag::kNone || drag_ == Drag::kPan || !run_) return;
  if (drag_ == Drag::kPressed) {
    time_.select(std::nullopt);
    select(slice_at(at));
    return;
  }
  const auto [left, right] = std::minmax({pressed_.x(), at.x()});
  const Time from = time_.axis().time_at(std::max(0, left - label_width_)),
             to = time_.axis().time_at(std::clamp(right - label_width_, 0, time_.axis().width()));
  if (to <= from) return;
  if (drag_ == Drag::kZoom) {
    time_.change([&](TimeAxis& a) { a.show(from, to); });
    return;
  }
  time_.select(TimeView::Range{from, to});
  Q_EMIT part_selected({processes_between(pressed_.y(), at.y()), from, to});
}

void TimelineView::leaveEvent(QEvent*) {
  time_.set_cursor(std::nullopt);
}

QString TimelineView::tip(std::size_t slice) const {
  const TimelineHead& t = run_->timeline();
  const Slice s = run_->lanes.slice(slice);
  QString out =
      QString("<b>%1</b><br>%2, micro-batch %3<br>%4")
          .arg(QString::fromStdString(t.names[static_cast<std::size_t>(s.name)]).toHtmlEscaped(),
               QString::fromStdString(t.segments[static_cast<std::size_t>(s.segment)]).toHtmlEscaped())
          .arg(s.micro_batch)
          .arg(text(s.end - s.start));
  if (s.active > s.start) out += tr(", of that %1 waiting").arg(text(s.active - s.start));
  return out;
}

bool TimelineView::viewportEvent(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const auto slice = run_ ? slice_at(help->pos()) : std::nullopt;
    if (slice)
      QToolTip::showText(help->globalPos(), tip(*slice), viewport());
    else if (const int row = row_at(help->pos().y()); row >= 0 && help->pos().x() < label_width_)
      QToolTip::showText(help->globalPos(), plain_tip(rows_->visible()[static_cast<std::size_t>(row)]->label),
                         viewport());
    else
      QToolTip::hideText();
    return true;
  }
  return QAbstractScrollArea::viewportEvent(event);
}

}  // namespace orrery::gui
