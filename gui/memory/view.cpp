// SPDX-License-Identifier: Apache-2.0
#include "gui/memory/view.h"

#include <QMouseEvent>
#include <QPainter>
#include <QScrollBar>
#include <QWheelEvent>
#include <algorithm>
#include <cmath>

#include "gui/text.h"
#include "gui/timeline/rows.h"
#include "gui/timeline/ruler.h"

namespace orrery::gui {
namespace {

constexpr int kMargin = 10;  // above a strip

}  // namespace

MemoryView::MemoryView(TimeView& time, QWidget* parent)
    : QAbstractScrollArea(parent), time_(time), theme_(Theme::of(palette())) {
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOn);
  setFrameShape(QFrame::NoFrame);
  setAccessibleName(tr("Memory over time"));
  viewport()->setMouseTracking(true);
  const auto update = [this] { viewport()->update(); };
  connect(&time_, &TimeView::axis_changed, this, update);
  connect(&time_, &TimeView::cursor_changed, this, update);
}

void MemoryView::set_run(RunPtr run, Overheads overheads) {
  run_ = std::move(run);
  overheads_ = std::move(overheads);
  processes_.clear();
  selected_ = -1;
  most_ = 1;
  for (const std::int64_t c : overheads_.capacity) most_ = std::max(most_, c);
  if (run_) {
    for (const MemoryPoint& p : run_->timeline().memory) {
      if (processes_.empty() || processes_.back() != p.rank) processes_.push_back(p.rank);
      most_ = std::max(most_, p.total() + overhead(p.rank));
    }
  }
  set_sizes();
  if (!processes_.empty()) {
    // The fullest is what people look for.
    select(*std::max_element(processes_.begin(), processes_.end(), [&](std::int32_t a, std::int32_t b) {
      return peak(a)->total() + overhead(a) < peak(b)->total() + overhead(b);
    }));
  }
  viewport()->update();
}

void MemoryView::select(std::int32_t process) {
  selected_ = process;
  viewport()->update();
  Q_EMIT process_selected(process);
}

std::int64_t MemoryView::overhead(std::int32_t process) const {
  const auto p = static_cast<std::size_t>(process);
  return p < overheads_.bytes.size() ? overheads_.bytes[p] : 0;
}

std::int64_t MemoryView::capacity(std::int32_t process) const {
  const auto p = static_cast<std::size_t>(process);
  return p < overheads_.capacity.size() ? overheads_.capacity[p] : 0;
}

std::span<const MemoryPoint> MemoryView::points(std::int32_t process) const {
  const auto& all = run_->timeline().memory;
  const auto [first, last] =
      std::equal_range(all.begin(), all.end(), MemoryPoint{.rank = process},
                       [](const MemoryPoint& a, const MemoryPoint& b) { return a.rank < b.rank; });
  return {first, last};
}

const MemoryPoint* MemoryView::peak(std::int32_t process) const {
  const auto in = points(process);
  if (in.empty()) return nullptr;
  return &*std::max_element(in.begin(), in.end(),
                            [](const MemoryPoint& a, const MemoryPoint& b) { return a.total() < b.total(); });
}

const MemoryPoint* MemoryView::at(std::int32_t process, Time t) const {
  const auto in = points(process);
  const auto after =
      std::partition_point(in.begin(), in.end(), [&](const MemoryPoint& p) { return p.at <= t; });
  return after == in.begin() ? nullptr : &*std::prev(after);
}

void MemoryView::draw_strip(QPainter& painter, std::int32_t process, const QRect& area) const {
  const TimeAxis& axis = time_.axis();
  const auto in = points(process);
  const double scale = static_cast<double>(area.height()) / static_cast<double>(most_);
  const auto y_of = [&](std::int64_t bytes) {
    return area.bottom() - static_cast<int>(std::lround(static_cast<double>(bytes) * scale));
  };
  auto next =
      std::partition_point(in.begin(), in.end(), [&](const MemoryPoint& p) { return p.at <= axis.from(); });
  const MemoryPoint* now = next == in.begin() ? nullptr : &*std::prev(next);
  for (int x = 0; x < axis.width(); ++x) {
    const Time to = axis.time_at(x + 1);
    const MemoryPoint* fullest = now;
    for (; next != in.end() && next->at < to; ++next) {
      now = &*next;
      if (!fullest || now->total() > fullest->total()) fullest = now;
    }
    if (!fullest) continue;
    std::int64_t sum = 0;
    const int at = area.left() + x;
    for (std::size_t c = 0; c <= kMemoryClasses; ++c) {
      const std::int64_t bytes = c < kMemoryClasses ? fullest->bytes[c] : overhead(process);
      const int bottom = y_of(sum), top = y_of(sum + bytes);
      sum += bytes;
      if (bottom > top) painter.fillRect(at, top, 1, bottom - top, theme_.series(c));
    }
  }
  if (const std::int64_t has = capacity(process); has > 0) {
    painter.setPen(QPen(theme_.cursor, 1, Qt::DashLine));
    painter.drawLine(area.left(), y_of(has), area.right(), y_of(has));
  }
  if (const MemoryPoint* top = peak(process)) {
    const double x = area.left() + axis.x_of(top->at);
    if (x >= area.left() && x <= area.right()) {
      const int y = y_of(top->total() + overhead(process));
      painter.setPen(theme_.text);
      painter.setBrush(theme_.text);
      painter.drawPolygon(QPolygonF{{x, y - 1.0}, {x - 4, y - 8.0}, {x + 4, y - 8.0}});
      painter.setBrush(Qt::NoBrush);
    }
  }
  painter.setPen(theme_.grid);
  painter.drawLine(area.left(), area.bottom(), area.right(), area.bottom());
}

void MemoryView::draw_labels(QPainter& painter, std::int32_t process, const QRect& area) const {
  const QFontMetrics metrics(painter.font());
  int y = area.top() + metrics.ascent();
  const auto line = [&](const QString& words, const QColor& colour) {
    painter.setPen(colour);
    painter.drawText(area.left() + 8, y, metrics.elidedText(words, Qt::ElideRight, area.width() - 12));
    y += metrics.height();
  };
  line(Rows::process_label(run_->timeline(), process), theme_.text);
  if (const MemoryPoint* top = peak(process)) {
    line(tr("peak %1 at %2").arg(text(Bytes{top->total() + overhead(process)}), text(top->at)),
         theme_.faint_text);
  }
  if (const std::int64_t has = capacity(process); has > 0)
    line(tr("device has %1").arg(text(Bytes{has})), theme_.cursor);
  if (time_.cursor()) {
    if (const MemoryPoint* now = at(process, *time_.cursor()))
      line(tr("%1 at the cursor").arg(text(Bytes{now->total() + overhead(process)})), theme_.text);
  }
}

void MemoryView::paintEvent(QPaintEvent*) {
  QPainter painter(viewport());
  painter.fillRect(viewport()->rect(), theme_.background);
  if (processes_.empty()) {
    painter.setPen(theme_.faint_text);
    painter.drawText(viewport()->rect(), Qt::AlignCenter,
                     run_ ? tr("This timeline says nothing about memory.")
                          : tr("Open a timeline, or plan a scenario and pick a plan."));
    return;
  }
  const int offset = verticalScrollBar()->value();
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const int top = kRulerHeight + static_cast<int>(i) * kStripHeight - offset;
    if (top > viewport()->height() || top + kStripHeight < 0) continue;
    const QRect row(0, top, viewport()->width(), kStripHeight);
    if (processes_[i] == selected_) painter.fillRect(row, theme_.row_alternate);
    draw_labels(painter, processes_[i], {0, top + kMargin, kLabelWidth, kStripHeight});
    draw_strip(painter, processes_[i],
               {kLabelWidth, top + kMargin, viewport()->width() - kLabelWidth, kStripHeight - kMargin - 1});
  }
  draw_ruler(painter, time_.axis(), kLabelWidth, theme_);
  if (time_.cursor()) {
    const double x = kLabelWidth + time_.axis().x_of(*time_.cursor());
    painter.setPen(theme_.cursor);
    if (x >= kLabelWidth) painter.drawLine(QPointF(x, 0), QPointF(x, viewport()->height()));
  }
}

void MemoryView::resizeEvent(QResizeEvent*) {
  set_sizes();
}

void MemoryView::showEvent(QShowEvent*) {
  set_sizes();
}

void MemoryView::set_sizes() {
  if (isVisible())
    time_.change([this](TimeAxis& a) { a.set_width(std::max(1, viewport()->width() - kLabelWidth)); });
  const int height = static_cast<int>(processes_.size()) * kStripHeight;
  verticalScrollBar()->setRange(0, std::max(0, height - (viewport()->height() - kRulerHeight)));
  verticalScrollBar()->setPageStep(std::max(1, viewport()->height()));
  verticalScrollBar()->setSingleStep(kStripHeight / 4);
}

void MemoryView::mousePressEvent(QMouseEvent* event) {
  const int i = (event->pos().y() - kRulerHeight + verticalScrollBar()->value()) / kStripHeight;
  if (event->pos().y() >= kRulerHeight && i < static_cast<int>(processes_.size()))
    select(processes_[static_cast<std::size_t>(i)]);
}

void MemoryView::mouseMoveEvent(QMouseEvent* event) {
  const int x = event->pos().x() - kLabelWidth;
  time_.set_cursor(x >= 0 && run_ ? std::optional(time_.axis().time_at(x)) : std::nullopt);
}

void MemoryView::leaveEvent(QEvent*) {
  time_.set_cursor(std::nullopt);
}

void MemoryView::wheelEvent(QWheelEvent* event) {
  if (!(event->modifiers() & Qt::ControlModifier)) return QAbstractScrollArea::wheelEvent(event);
  const double x = std::max(0.0, event->position().x() - kLabelWidth);
  time_.change([&](TimeAxis& a) { a.zoom(std::pow(1.25, event->angleDelta().y() / 120.0), x); });
  event->accept();
}

void MemoryView::changeEvent(QEvent* event) {
  if (event->type() == QEvent::PaletteChange) theme_ = Theme::of(palette());
  QAbstractScrollArea::changeEvent(event);
}

}  // namespace orrery::gui
