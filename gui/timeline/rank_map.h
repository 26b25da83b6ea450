// SPDX-License-Identifier: Apache-2.0
//
// A cell for each rank, coloured by what it did in a part of time: stragglers and slow nodes stand out among
// thousands of ranks. Ranks of a node stand side by side. A click picks a rank.
#pragma once

#include <QComboBox>
#include <QLabel>
#include <QWidget>

#include "gui/run.h"
#include "gui/theme.h"

namespace orrery::gui {

// What a rank is coloured by.
struct RankMeasure {
  enum class What { kWorking, kWaiting, kMemory };
  What what = What::kWorking;
  std::int32_t stream = 0;  // of the timeline, but for memory
  friend bool operator==(const RankMeasure&, const RankMeasure&) = default;
};
// Those that the timeline knows about; the first one is computing.
std::vector<RankMeasure> rank_measures(const TimelineHead& timeline);
QString name_of(const RankMeasure& measure, const TimelineHead& timeline);
// By rank: the share of [from, to) in which its stream worked, or waited for partners; or the most bytes that
// were live then; NaN where nothing is recorded.
std::vector<double> rank_values(const sim::Lanes& lanes, const RankMeasure& measure, Time from, Time to);

class RankMap : public QWidget {
  Q_OBJECT

 public:
  explicit RankMap(QWidget* parent = nullptr);

  void set(std::vector<double> values, std::int64_t node_ranks, bool bytes);
  // Of each rank, for a tip.
  void set_labels(std::function<QString(std::int64_t)> label) { label_ = std::move(label); }
  std::int64_t rank_at(const QPoint& position) const;  // -1: none
  QRect cell(std::int64_t rank) const;

 Q_SIGNALS:
  void picked(std::int64_t rank);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;

 private:
  // As large as all cells fit; columns are whole nodes where some fit beside each other.
  struct Grid {
    int columns = 1, size = 1;
  };
  void lay_out();
  QString text_of(double value) const;

  Grid grid_;
  std::vector<double> values_;
  std::int64_t node_ranks_ = 0;
  bool bytes_ = false;
  std::function<QString(std::int64_t)> label_;
};

}  // namespace orrery::gui
