// SPDX-License-Identifier: Apache-2.0
//
// The life of a run like a calendar: time goes from left to right and on in the next row, coloured by what
// the job does.
#pragma once

#include <QWidget>
#include <optional>
#include <vector>

#include "gui/theme.h"
#include "sim/reliability/diary.h"

namespace orrery::gui {

QColor colour_of(const Theme& theme, sim::Doing doing);

class LifeView : public QWidget {
  Q_OBJECT

 public:
  explicit LifeView(QWidget* parent = nullptr);
  void set(const sim::Diary& diary);
  // Frames the outage of that number; none for -1.
  void mark(int outage);

  // A row lasts so long, from an hour on, that there are at most kMostRows.
  static constexpr std::int64_t kMostRows = 60;
  sim::Ticks row_length() const { return row_; }
  int marked() const { return marked_; }
  int rows() const;
  // What the job does at a point of the view.
  std::optional<sim::Period> at(const QPointF& position) const;
  QRectF place_of(sim::Ticks begin, sim::Ticks end, std::int64_t row) const;

  QSize sizeHint() const override { return {700, 260}; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  bool event(QEvent* event) override;

 private:
  sim::Ticks end() const { return periods_.empty() ? sim::Ticks{0} : periods_.back().end; }
  double row_height() const;
  // Calls use(row, rectangle) for each row that a time touches.
  template <class Use>
  void over_rows(sim::Ticks begin, sim::Ticks end, const Use& use) const;

  std::vector<sim::Period> periods_;
  std::vector<sim::Outage> outages_;
  sim::Ticks row_{1};
  int marked_ = -1;
};

}  // namespace orrery::gui
