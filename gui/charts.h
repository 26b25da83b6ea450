// SPDX-License-Identifier: Apache-2.0
//
// The charts we need, over Qt Charts. Nothing else names that library, which is deprecated from Qt 6.10 on.
// Charts are for what people can count: thousands of points, not millions.
#pragma once

#include <QChartView>
#include <QColor>
#include <QString>
#include <QStringList>
#include <vector>

class QValueAxis;

namespace orrery::gui {

// In the colours of the palette, which it follows.
class Chart : public QChartView {
  Q_OBJECT

 public:
  Chart(const QString& name, QWidget* parent = nullptr);

 protected:
  void changeEvent(QEvent* event) override;
  void clear();
  void style();
  QValueAxis* value_axis(const QString& title, Qt::Alignment side, double least, double most);
  static void set_range(QValueAxis& axis, double least, double most);
};

class ScatterChart : public Chart {
  Q_OBJECT

 public:
  using Chart::Chart;
  struct Point {
    double x = 0, y = 0;
    int group = 0;
    QString label;
  };
  // Groups have a name and a colour each; points are known by their number. Axes reach to three times the
  // median of what they show, so that a few points far out do not press the others together; a title says how
  // many are further out. They come into view once they are marked.
  void set(std::vector<Point> points, const QStringList& groups, const std::vector<QColor>& colours,
           const QString& x_title, const QString& y_title);
  void mark(const std::vector<int>& numbers);

 Q_SIGNALS:
  void picked(int number);

 protected:
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;

 private:
  int nearest(const QPointF& position) const;
  void fit(QValueAxis* axis, double Point::*value, const QString& title);
  void fit_axes();
  std::vector<Point> points_;
  std::vector<int> marked_;
  QStringList groups_;
  std::vector<QColor> colours_;
  QString x_title_, y_title_;
};

// Bars from left to right, a row each, made of parts.
class StackedBarChart : public Chart {
  Q_OBJECT

 public:
  using Chart::Chart;
  struct Part {
    QString name;
    QColor colour;
    std::vector<double> values;  // by row
  };
  void set(const QStringList& rows, const std::vector<Part>& parts, const QString& title);
};

// Counts of values in equally wide bars; lines mark some values.
class HistogramChart : public Chart {
  Q_OBJECT

 public:
  using Chart::Chart;
  struct Mark {
    QString name;
    double at = 0;
  };
  static constexpr int kBars = 40;
  // By bar, from the least value to the greatest.
  static std::vector<int> counts(const std::vector<double>& sorted);
  void set(const std::vector<double>& sorted, const std::vector<Mark>& marks, const QString& title,
           const QColor& colour);
};

// For each name an interval and what is expected in it.
class IntervalChart : public Chart {
  Q_OBJECT

 public:
  using Chart::Chart;
  struct Interval {
    QString name;
    double low = 0, expected = 0, high = 0;
  };
  void set(const std::vector<Interval>& intervals, const QString& title, const QColor& colour);
};

}  // namespace orrery::gui
