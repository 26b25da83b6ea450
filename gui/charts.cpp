// SPDX-License-Identifier: Apache-2.0
#include "gui/charts.h"

#include <QAreaSeries>
#include <QBarCategoryAxis>
#include <QBarSet>
#include <QBoxPlotSeries>
#include <QBoxSet>
#include <QChart>
#include <QEvent>
#include <QGraphicsLayout>
#include <QHorizontalStackedBarSeries>
#include <QLegend>
#include <QLegendMarker>
#include <QLineSeries>
#include <QMouseEvent>
#include <QScatterSeries>
#include <QToolTip>
#include <QValueAxis>
#include <algorithm>
#include <array>
#include <cmath>

namespace orrery::gui {

Chart::Chart(const QString& name, QWidget* parent) : QChartView(parent) {
  setAccessibleName(name);
  setRenderHint(QPainter::Antialiasing);
  setFrameShape(QFrame::NoFrame);
  setMouseTracking(true);
  setMinimumSize(260, 150);
  chart()->setMargins({4, 4, 4, 4});
  chart()->setBackgroundRoundness(0);
  chart()->layout()->setContentsMargins(0, 0, 0, 0);
  style();
}

void Chart::changeEvent(QEvent* event) {
  QChartView::changeEvent(event);
  if (event->type() == QEvent::PaletteChange) style();
}

void Chart::clear() {
  chart()->removeAllSeries();
  for (QAbstractAxis* axis : chart()->axes()) {
    chart()->removeAxis(axis);
    delete axis;
  }
}

void Chart::style() {
  chart()->setBackgroundBrush(palette().color(QPalette::Base));
  setBackgroundBrush(palette().color(QPalette::Base));
  chart()->setTitleBrush(palette().color(QPalette::Text));
  chart()->legend()->setLabelColor(palette().color(QPalette::Text));
  for (QAbstractAxis* axis : chart()->axes()) {
    axis->setLabelsColor(palette().color(QPalette::Text));
    axis->setTitleBrush(palette().color(QPalette::Text));
    axis->setGridLineColor(palette().color(QPalette::Mid));
    axis->setLinePenColor(palette().color(QPalette::Mid));
  }
}

QValueAxis* Chart::value_axis(const QString& title, Qt::Alignment side, double least, double most) {
  auto* axis = new QValueAxis;
  axis->setTitleText(title);
  set_range(*axis, least, most);
  chart()->addAxis(axis, side);
  return axis;
}

void Chart::set_range(QValueAxis& axis, double least, double most) {
  const double margin = most > least ? (most - least) * 0.06 : std::max(1e-9, std::abs(most) * 0.1);
  axis.setTickCount(5);  // nice numbers begin from it
  axis.setRange(least == 0 ? 0 : least - margin, most + margin);
  axis.applyNiceNumbers();
  const double top = std::max(std::abs(axis.max()), std::abs(axis.min()));
  axis.setLabelFormat(top >= 100 ? "%.0f" : top >= 10 ? "%.1f" : top >= 1 ? "%.2f" : "%.3g");
}

void ScatterChart::set(std::vector<Point> points, const QStringList& groups,
                       const std::vector<QColor>& colours, const QString& x_title, const QString& y_title) {
  clear();
  points_ = std::move(points);
  groups_ = groups;
  colours_ = colours;
  x_title_ = x_title;
  y_title_ = y_title;
  if (points_.empty()) return;
  QValueAxis* x = value_axis(x_title, Qt::AlignBottom, 0, 1);
  QValueAxis* y = value_axis(y_title, Qt::AlignLeft, 0, 1);
  const auto add = [&](const QString& name, const QColor& colour, double size) {
    auto* series = new QScatterSeries;
    series->setName(name);
    series->setColor(colour);
    series->setBorderColor(palette().color(QPalette::Base));
    series->setMarkerSize(size);
    return series;
  };
  const auto finish = [&](QScatterSeries* series) {
    chart()->addSeries(series);
    series->attachAxis(x);
    series->attachAxis(y);
  };
  for (int g = 0; g < groups_.size(); ++g) {
    QList<QPointF> in_group;
    for (const Point& p : points_) {
      if (p.group == g) in_group << QPointF(p.x, p.y);
    }
    if (in_group.isEmpty()) continue;
    QScatterSeries* series = add(groups_[g], colours_[static_cast<std::size_t>(g)], 9);
    series->replace(in_group);
    finish(series);
  }
  QScatterSeries* marks = add({}, Qt::transparent, 15);
  marks->setObjectName("marks");
  marks->setBorderColor(palette().color(QPalette::Text));
  finish(marks);
  for (auto* marker : chart()->legend()->markers(marks)) marker->setVisible(false);
  chart()->legend()->setAlignment(Qt::AlignTop);
  mark(marked_);
  style();
}

void ScatterChart::mark(const std::vector<int>& numbers) {
  marked_ = numbers;
  for (QAbstractSeries* series : chart()->series()) {
    if (series->objectName() != "marks") continue;
    QList<QPointF> at;
    for (const int n : numbers) {
      if (n >= 0 && static_cast<std::size_t>(n) < points_.size())
        at << QPointF(points_[static_cast<std::size_t>(n)].x, points_[static_cast<std::size_t>(n)].y);
    }
    static_cast<QScatterSeries*>(series)->replace(at);
    fit_axes();
  }
}

void ScatterChart::fit(QValueAxis* axis, double Point::*value, const QString& title) {
  constexpr double kFarOut = 3;  // medians
  std::vector<double> values;
  for (const Point& p : points_) values.push_back(p.*value);
  std::sort(values.begin(), values.end());
  double limit = kFarOut * values[values.size() / 2];
  for (const int n : marked_) {
    if (n >= 0 && static_cast<std::size_t>(n) < points_.size())
      limit = std::max(limit, points_[static_cast<std::size_t>(n)].*value);
  }
  const auto out = std::upper_bound(values.begin(), values.end(), std::max(limit, values.front()));
  set_range(*axis, values.front(), *(out - 1));
  const auto further = values.end() - out;
  axis->setTitleText(further == 0 ? title : title + tr(" (%1 further out)").arg(further));
}

void ScatterChart::fit_axes() {
  fit(qobject_cast<QValueAxis*>(chart()->axes(Qt::Horizontal).front()), &Point::x, x_title_);
  fit(qobject_cast<QValueAxis*>(chart()->axes(Qt::Vertical).front()), &Point::y, y_title_);
}

int ScatterChart::nearest(const QPointF& position) const {
  constexpr double kReach = 14;  // pixels
  int best = -1;
  double least = kReach * kReach;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const QPointF d = chart()->mapToPosition({points_[i].x, points_[i].y}) - position;
    const double distance = QPointF::dotProduct(d, d);
    if (distance < least) {
      least = distance;
      best = static_cast<int>(i);
    }
  }
  return best;
}

void ScatterChart::mousePressEvent(QMouseEvent* event) {
  if (const int n = nearest(event->position()); n >= 0) Q_EMIT picked(n);
}

void ScatterChart::mouseMoveEvent(QMouseEvent* event) {
  const int n = points_.empty() ? -1 : nearest(event->position());
  if (n >= 0)
    QToolTip::showText(event->globalPosition().toPoint(), points_[static_cast<std::size_t>(n)].label, this);
  else
    QToolTip::hideText();
}

void StackedBarChart::set(const QStringList& rows, const std::vector<Part>& parts, const QString& title) {
  clear();
  if (rows.isEmpty()) return;
  auto* series = new QHorizontalStackedBarSeries;
  std::vector<double> total(static_cast<std::size_t>(rows.size()));
  for (const Part& part : parts) {
    auto* set = new QBarSet(part.name);
    set->setColor(part.colour);
    set->setBorderColor(palette().color(QPalette::Base));
    // Qt puts the first category at the bottom.
    for (std::size_t i = part.values.size(); i-- > 0;) {
      *set << part.values[i];
      total[i] += part.values[i];
    }
    series->append(set);
  }
  series->setBarWidth(0.6);
  chart()->addSeries(series);
  auto* categories = new QBarCategoryAxis;
  for (qsizetype i = rows.size(); i-- > 0;) categories->append(rows[i]);
  chart()->addAxis(categories, Qt::AlignLeft);
  series->attachAxis(categories);
  QValueAxis* values = value_axis(title, Qt::AlignBottom, 0, *std::max_element(total.begin(), total.end()));
  series->attachAxis(values);
  chart()->legend()->setAlignment(Qt::AlignRight);  // in a line names are cut
  chart()->legend()->setVisible(parts.size() > 1);
  style();
}

std::vector<int> HistogramChart::counts(const std::vector<double>& sorted) {
  std::vector<int> out(kBars, 0);
  if (sorted.empty()) return out;
  const double least = sorted.front(), width = (sorted.back() - least) / kBars;
  for (const double v : sorted)
    ++out[static_cast<std::size_t>(width > 0 ? std::min(kBars - 1.0, (v - least) / width) : 0)];
  return out;
}

void HistogramChart::set(const std::vector<double>& sorted, const std::vector<Mark>& marks,
                         const QString& title, const QColor& colour) {
  clear();
  if (sorted.empty()) return;
  const std::vector<int> bars = counts(sorted);
  const double least = sorted.front();
  // Values that are all alike make one bar of some width.
  const double width = sorted.back() > least ? (sorted.back() - least) / kBars : std::max(1e-9, least / 100);
  auto* top = new QLineSeries;
  for (int i = 0; i < kBars; ++i) {
    const double x = least + i * width, y = bars[static_cast<std::size_t>(i)];
    *top << QPointF(x, y) << QPointF(x + width, y);
  }
  const double most = *std::max_element(bars.begin(), bars.end());
  QValueAxis* x = value_axis(title, Qt::AlignBottom, least, least + kBars * width);
  QValueAxis* y = value_axis(tr("runs"), Qt::AlignLeft, 0, most);
  const auto add = [&](QAbstractSeries* series) {
    chart()->addSeries(series);
    series->attachAxis(x);
    series->attachAxis(y);
  };
  auto* area = new QAreaSeries(top);
  top->setParent(area);
  area->setColor(colour);
  area->setBorderColor(colour);
  add(area);
  for (auto* marker : chart()->legend()->markers(area)) marker->setVisible(false);
  constexpr std::array kStyles{Qt::DotLine, Qt::SolidLine, Qt::DashLine};
  for (std::size_t i = 0; i < marks.size(); ++i) {
    auto* line = new QLineSeries;
    line->setName(QString("%1 %L2").arg(marks[i].name).arg(marks[i].at, 0, 'f', marks[i].at < 1000 ? 2 : 0));
    line->setPen(QPen(palette().color(QPalette::Text), 1.5, kStyles[i % kStyles.size()]));
    *line << QPointF(marks[i].at, 0) << QPointF(marks[i].at, most);
    add(line);
  }
  chart()->legend()->setAlignment(Qt::AlignTop);
  style();
}

void IntervalChart::set(const std::vector<Interval>& intervals, const QString& title, const QColor& colour) {
  clear();
  if (intervals.empty()) return;
  auto* series = new QBoxPlotSeries;
  series->setBrush(colour);
  series->setPen(QPen(palette().color(QPalette::Text)));
  series->setBoxWidth(0.5);
  QStringList names;
  double most = 0;
  for (const Interval& i : intervals) {
    auto* set = new QBoxSet(i.name);
    *set << i.low << i.low << i.expected << i.high << i.high;
    series->append(set);
    names << i.name;
    most = std::max(most, i.high);
  }
  chart()->addSeries(series);
  auto* categories = new QBarCategoryAxis;
  categories->append(names);
  chart()->addAxis(categories, Qt::AlignBottom);
  series->attachAxis(categories);
  QValueAxis* values = value_axis(title, Qt::AlignLeft, 0, most);
  series->attachAxis(values);
  chart()->legend()->hide();
  style();
}

}  // namespace orrery::gui
