// SPDX-License-Identifier: Apache-2.0
//
// A strip of the whole run over a timeline: the share of ranks that compute, and a frame around the part of
// time that is shown.
//
//   drag the frame   another part          drag an edge     more or less of it
//   click beside     that part             double-click     everything
#pragma once

#include <QWidget>

#include "gui/run.h"
#include "gui/theme.h"
#include "gui/time_view.h"

namespace orrery::gui {

class Overview : public QWidget {
  Q_OBJECT

 public:
  explicit Overview(TimeView& time, QWidget* parent = nullptr);

  // Over the length of a run in equal bins (bins_of); none: not known.
  void set_bins(std::vector<float> bins, Time from, Time to);
  const std::vector<float>& bins() const { return bins_; }
  // The mean of the bins between two times; 0 outside of the run.
  double share_between(Time from, Time to) const;
  // Pixels beside the tracks below.
  void set_sides(int left, int right);
  QSize sizeHint() const override;
  // Of a time, in the widget; and the other way round.
  double x_of(Time t) const;
  Time time_at(double x) const;

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;

 private:
  enum class Drag { kNone, kFrame, kFrom, kTo };
  Drag at(double x) const;
  int tracks() const;  // pixels

  TimeView& time_;
  std::vector<float> bins_;
  Time bins_from_{0}, bins_to_{0};
  int left_ = 0, right_ = 0;
  Drag drag_ = Drag::kNone;
  Time held_{0};  // from the frame's begin to where it is held
};

}  // namespace orrery::gui
