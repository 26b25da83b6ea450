// SPDX-License-Identifier: Apache-2.0
#include "gui/plans/parallel.h"

#include <QMouseEvent>
#include <QPainter>
#include <algorithm>
#include <cmath>

#include "gui/geometry.h"
#include "gui/text.h"
#include "gui/theme.h"

namespace orrery::gui {
namespace {

constexpr int kSide = 44, kTop = 44, kBottom = 26;  // pixels around the axes
constexpr double kReach = 8;                        // pixels from an axis or a line
constexpr double kDragBegins = 4;

}  // namespace

ParallelChart::ParallelChart(QWidget* parent) : QWidget(parent) {
  setAccessibleName(tr("Plans across degrees and measures"));
  setMinimumSize(240, 160);
  setToolTip(
      tr("Click a line to select its plan. Drag along an axis to keep plans in a range; click its name "
         "to keep all again."));
}

void ParallelChart::set(std::vector<Axis> axes, std::vector<QColor> colours) {
  std::erase_if(axes, [](const Axis& a) {
    return std::adjacent_find(a.values.begin(), a.values.end(), std::not_equal_to<>()) == a.values.end();
  });
  colours_ = std::move(colours);
  update();
  if (axes == axes_) return;  // in other colours
  const bool narrowed =
      std::any_of(ranges_.begin(), ranges_.end(), [](const auto& r) { return r.has_value(); });
  axes_ = std::move(axes);
  ranges_.assign(axes_.size(), std::nullopt);
  marked_.clear();
  dragged_.reset();
  if (narrowed) Q_EMIT kept_changed();
}

void ParallelChart::mark(const std::vector<int>& numbers) {
  marked_ = numbers;
  update();
}

ParallelChart::Range ParallelChart::span(std::size_t axis) const {
  const auto [low, high] = std::minmax_element(axes_[axis].values.begin(), axes_[axis].values.end());
  return {*low, *high};
}

QPointF ParallelChart::point(std::size_t axis, double value) const {
  const Range r = span(axis);
  const double gaps = static_cast<double>(std::max<std::size_t>(1, axes_.size() - 1));
  const double x = kSide + (width() - 2.0 * kSide) * static_cast<double>(axis) / gaps;
  const double high = height() - kTop - kBottom;
  return {x, kTop + high * (1 - (value - r.low) / (r.high - r.low))};
}

double ParallelChart::value_at(std::size_t axis, double y) const {
  const Range r = span(axis);
  const double high = height() - kTop - kBottom;
  return r.low + (r.high - r.low) * std::clamp(1 - (y - kTop) / high, 0.0, 1.0);
}

std::optional<std::size_t> ParallelChart::axis_at(const QPointF& at) const {
  // Names reach to the middle between axes, lines a few pixels.
  const double gap =
      (width() - 2.0 * kSide) / static_cast<double>(std::max<std::size_t>(1, axes_.size() - 1));
  const double reach = at.y() < kTop - kReach ? std::max(kReach, gap / 2) : kReach;
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    if (std::abs(point(a, span(a).low).x() - at.x()) <= reach) return a;
  }
  return std::nullopt;
}

// With as many digits as tell its ends apart.
QString ParallelChart::text_of(std::size_t axis, double value) const {
  const auto& values = axes_[axis].values;
  const Range r = span(axis);
  const bool whole = std::all_of(values.begin(), values.end(), [](double v) { return v == std::floor(v); });
  const int decimals = static_cast<int>(std::clamp(2 - std::floor(std::log10(r.high - r.low)), 0.0, 6.0));
  return number(value, whole ? 0 : decimals);
}

std::vector<bool> ParallelChart::kept() const {
  std::vector<bool> out(colours_.size(), true);
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    if (!ranges_[a]) continue;
    for (std::size_t i = 0; i < colours_.size(); ++i) {
      const double v = axes_[a].values[i];
      out[i] = out[i] && v >= ranges_[a]->low && v <= ranges_[a]->high;
    }
  }
  return out;
}

void ParallelChart::paintEvent(QPaintEvent*) {
  const Theme theme = Theme::of(palette());
  QPainter painter(this);
  painter.fillRect(rect(), theme.background);
  if (axes_.empty()) {
    painter.setPen(theme.faint_text);
    painter.drawText(rect(), Qt::AlignCenter, tr("Two plans that differ, or more, come here as lines."));
    return;
  }
  painter.setRenderHint(QPainter::Antialiasing);
  const std::vector<bool> keep = kept();
  const auto is_marked = [&](std::size_t line) {
    return std::find(marked_.begin(), marked_.end(), static_cast<int>(line)) != marked_.end();
  };
  const auto draw = [&](std::size_t i, const QPen& pen) {
    painter.setPen(pen);
    QPolygonF line;
    for (std::size_t a = 0; a < axes_.size(); ++a) line << point(a, axes_[a].values[i]);
    painter.drawPolyline(line);
  };
  // What is left out is under what is kept, and that under what is marked.
  for (std::size_t i = 0; i < colours_.size(); ++i) {
    if (!keep[i]) draw(i, QPen(theme.grid, 1));
  }
  for (std::size_t i = colours_.size(); i-- > 0;) {
    QColor colour = colours_[i];
    colour.setAlpha(150);
    if (keep[i] && !is_marked(i)) draw(i, QPen(colour, 1.2));
  }
  for (std::size_t i = 0; i < colours_.size(); ++i) {
    if (is_marked(i)) draw(i, QPen(theme.text, 2.6));
  }
  painter.setRenderHint(QPainter::Antialiasing, false);
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    const Range r = span(a);
    const QPointF top = point(a, r.high), bottom = point(a, r.low);
    painter.setPen(QPen(theme.faint_text, 1));
    painter.drawLine(top, bottom);
    if (ranges_[a]) {
      const QPointF from = point(a, ranges_[a]->high), to = point(a, ranges_[a]->low);
      QColor shade = theme.selection;
      shade.setAlpha(90);
      painter.fillRect(QRectF(from.x() - 5, from.y(), 10, std::max(2.0, to.y() - from.y())), shade);
    }
    const double wide =
        (width() - 2.0 * kSide) / static_cast<double>(std::max<std::size_t>(1, axes_.size() - 1));
    const auto text_at = [&](double y, const QString& text) {
      painter.drawText(QRectF(top.x() - wide, y, 2 * wide, 16), Qt::AlignCenter, text);
    };
    painter.setPen(theme.text);
    // Every second name a line lower, so that neighbours have room.
    text_at(a % 2 == 0 ? 4 : 18, axes_[a].title);
    painter.setPen(theme.faint_text);
    text_at(height() - kBottom + 4, text_of(a, r.low));
    painter.drawText(QRectF(top.x() + 4, top.y() - 2, wide, 14), Qt::AlignLeft, text_of(a, r.high));
  }
}

void ParallelChart::pick(const QPointF& at) {
  double best = kReach;
  std::optional<std::size_t> line;
  const std::vector<bool> keep = kept();
  for (std::size_t i = 0; i < colours_.size(); ++i) {
    if (!keep[i]) continue;
    for (std::size_t a = 0; a + 1 < axes_.size(); ++a) {
      const double d = distance(at, point(a, axes_[a].values[i]), point(a + 1, axes_[a + 1].values[i]));
      if (d < best) {
        best = d;
        line = i;
      }
    }
  }
  if (line) Q_EMIT picked(static_cast<int>(*line));
}

void ParallelChart::mousePressEvent(QMouseEvent* event) {
  pressed_ = event->position();
  dragged_ = axes_.empty() ? std::nullopt : axis_at(pressed_);
}

void ParallelChart::mouseMoveEvent(QMouseEvent* event) {
  if (!dragged_ || pressed_.y() < kTop - kReach) return;
  if (std::abs(event->position().y() - pressed_.y()) < kDragBegins) return;
  const double a = value_at(*dragged_, pressed_.y()), b = value_at(*dragged_, event->position().y());
  ranges_[*dragged_] = Range{std::min(a, b), std::max(a, b)};
  update();
  Q_EMIT kept_changed();
}

void ParallelChart::mouseReleaseEvent(QMouseEvent* event) {
  const QPointF at = event->position();
  const bool clicked =
      std::abs(at.y() - pressed_.y()) < kDragBegins && std::abs(at.x() - pressed_.x()) < kDragBegins;
  if (!clicked) return;
  if (at.y() >= kTop - kReach) return pick(at);
  const auto axis = axes_.empty() ? std::nullopt : axis_at(at);
  if (!axis || !ranges_[*axis]) return;
  ranges_[*axis].reset();
  update();
  Q_EMIT kept_changed();
}

}  // namespace orrery::gui
