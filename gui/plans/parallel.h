// SPDX-License-Identifier: Apache-2.0
//
// Plans as lines across axes, one for each degree and measure (parallel coordinates): what fast plans have in
// common, and what a wish rules out.
//
//   click near a line      picks its plan
//   drag along an axis     keeps plans in that range; a click on the axis's name keeps all again
#pragma once

#include <QColor>
#include <QWidget>
#include <optional>
#include <vector>

namespace orrery::gui {

class ParallelChart : public QWidget {
  Q_OBJECT

 public:
  explicit ParallelChart(QWidget* parent = nullptr);

  struct Axis {
    QString title;
    std::vector<double> values;  // by line
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  // A colour for each line, which is known by its number. Axes on which all lines have one value are left
  // out. Ranges stay where nothing but colours is new.
  void set(std::vector<Axis> axes, std::vector<QColor> colours);
  void mark(const std::vector<int>& numbers);
  // By line: whether it is in all ranges.
  std::vector<bool> kept() const;
  const std::vector<Axis>& axes() const { return axes_; }
  QPointF point(std::size_t axis, double value) const;

 Q_SIGNALS:
  void picked(int number);
  void kept_changed();

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;

 private:
  struct Range {
    double low = 0, high = 0;
  };
  Range span(std::size_t axis) const;
  double value_at(std::size_t axis, double y) const;
  std::optional<std::size_t> axis_at(const QPointF& at) const;
  QString text_of(std::size_t axis, double value) const;
  void pick(const QPointF& at);

  std::vector<Axis> axes_;
  std::vector<QColor> colours_;
  std::vector<std::optional<Range>> ranges_;  // by axis
  std::vector<int> marked_;
  std::optional<std::size_t> dragged_;  // axis
  QPointF pressed_;
};

}  // namespace orrery::gui
