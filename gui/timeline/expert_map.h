// SPDX-License-Identifier: Apache-2.0
//
// How tokens fell on experts over the time that the timeline shows: a row for each rank that has experts of a
// layer, or for each expert. Colours say how many even shares of a layer's tokens it got in a micro-batch; a
// pixel shows the most of what it covers. Where no expert works, nothing is drawn. A click picks a rank.
#pragma once

#include <QImage>
#include <QWidget>
#include <optional>
#include <vector>

#include "gui/run.h"
#include "gui/theme.h"
#include "gui/time_view.h"

namespace orrery::gui {

class ExpertMap : public QWidget {
  Q_OBJECT

 public:
  enum class By { kRank, kExpert };
  // What a place of the map shows.
  struct Place {
    const ExpertTokens* of = nullptr;
    std::int64_t rank = 0;
    std::int32_t first = 0, count = 1;  // experts
    std::int64_t tokens = 0;            // of them together
    double shares = 0;                  // even ones
  };

  explicit ExpertMap(TimeView& time, QWidget* parent = nullptr);

  // Null: none. Shows the first group.
  void set_run(RunPtr run);
  void set_group(int group);
  void set_by(By by);
  // Pixels beside the tracks of the timeline, so that both have the same axis.
  void set_sides(int left, int right);

  // "layers 3, 60 to 61, 8 ranks from 0 to 7", by group.
  QStringList group_names() const;
  int rows() const { return static_cast<int>(rows_); }
  std::optional<Place> place_at(const QPoint& at) const;
  // What got most even shares in the time that is shown.
  std::optional<Place> fullest() const;
  // "rank 3, experts 24 to 31: 4,120 tokens, 1.31 even shares, in layer 5, micro-batch 2"
  QString text_of(const Place& place) const;
  QRect tracks() const;
  QSize minimumSizeHint() const override { return {200, 110}; }

 Q_SIGNALS:
  void picked(std::int64_t rank);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  bool event(QEvent* event) override;

 private:
  struct Counted {
    const ExpertTokens* of;
    std::size_t first;  // in shares_, of its rows
  };
  void take();  // what the group has
  Place place(const Counted& c, std::size_t row) const;
  // Of those that worked in [from, to).
  template <class Use>
  void for_each_between(Time from, Time to, Use use) const;
  void draw_map();
  void draw_labels(QPainter& painter, const Theme& theme) const;

  TimeView& time_;
  RunPtr run_;
  int group_ = 0;
  By by_ = By::kRank;
  int left_ = 0, right_ = 0;
  std::size_t rows_ = 0;
  // Layers that work at the same time are in different lists; in each, one follows the other.
  std::vector<std::vector<Counted>> counted_;
  bool alike_ = true;           // all layers have as many experts
  std::vector<float> shares_;   // by row
  float least_ = 0, most_ = 0;  // of shares_
  struct Drawn {
    TimeAxis axis;
    QSize size;
    bool dark = false;
    friend bool operator==(const Drawn&, const Drawn&) = default;
  };
  std::optional<Drawn> drawn_;  // what picture_ is of
  QImage picture_;
};

}  // namespace orrery::gui
