// SPDX-License-Identifier: Apache-2.0
//
// One run's timeline: labels on the left, a ruler on top, rows of slices. Time is the TimeView's, which other
// views share.
//
//   wheel                rows up and down            Ctrl + wheel         zoom at the pointer
//   drag                 select a part               Ctrl + drag          zoom to what is framed
//   Shift or middle drag pan                         click                select a slice, open or close a row
#pragma once

#include <QAbstractScrollArea>
#include <QPointer>
#include <map>
#include <optional>

#include "gui/run.h"
#include "gui/time_view.h"
#include "gui/timeline/ruler.h"
#include "gui/timeline/tracks.h"
#include "sim/analysis/meetings.h"
#include "sim/analysis/statistics.h"

namespace orrery::gui {

class TimelineView : public QAbstractScrollArea {
  Q_OBJECT

 public:
  explicit TimelineView(TimeView& time, QWidget* parent = nullptr);
  ~TimelineView() override;

  void set_run(RunPtr run);
  const RunPtr& run() const { return run_; }
  // Of the run; arrows to partners are drawn once it is there.
  void set_meetings(std::shared_ptr<const sim::Meetings> meetings);
  const std::shared_ptr<const sim::Meetings>& meetings() const { return meetings_; }
  void set_grouping(Grouping grouping);
  Grouping grouping() const { return grouping_; }
  void set_colouring(Colouring colouring);
  void set_emphasis(Emphasis emphasis);
  const Emphasis& emphasis() const { return emphasis_; }

  std::optional<std::size_t> selected() const { return selected_; }
  // Selects a slice and scrolls to it; opens its rows.
  void select(std::optional<std::size_t> slice);
  void reveal(std::int32_t process, std::int64_t rank, std::int32_t stream);
  // The neighbour of the selected slice on its lane.
  void step(int by);

  const Rows& rows() const { return *rows_; }
  bool has_rows() const { return rows_ != nullptr; }
  // By row at the top; of the rows that there are.
  void set_bins(std::map<std::size_t, std::vector<float>> bins);
  void set_open(Row& row, bool open);
  // Opens or closes all rows at the top.
  void set_all_open(bool open);
  // Processes of the rows between two places of the viewport.
  std::vector<std::int32_t> processes_between(int y1, int y2) const;
  std::optional<std::size_t> slice_at(const QPoint& position) const;

  int label_width() const { return label_width_; }
  // The picture as it is on screen; as shapes where `painter` is of a file of vectors.
  void draw(QPainter& painter, bool shapes);

 Q_SIGNALS:
  void slice_selected(std::size_t slice);
  void part_selected(const orrery::sim::Part& part);
  // There are new rows; those of many parts want bins.
  void rows_rebuilt();

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void showEvent(QShowEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  void changeEvent(QEvent* event) override;
  bool viewportEvent(QEvent* event) override;
  void scrollContentsBy(int dx, int dy) override;

 private:
  enum class Drag { kNone, kPressed, kSelect, kZoom, kPan };
  struct Key {
    TimeAxis axis;
    int first = -1, count = 0;
    std::int64_t version = -1;
    friend bool operator==(const Key&, const Key&) = default;
  };

  void set_width();
  void find_partners();
  void rebuild_rows();
  void rows_changed();
  void repaint_tracks();
  int tracks_width() const;
  int first_row() const;
  int row_top(int row) const;  // in the viewport
  int row_at(int y) const;
  int row_of_lane(std::size_t lane) const;
  QRectF slice_rect(std::size_t slice) const;
  void draw_title(QPainter& painter) const;
  void draw_labels(QPainter& painter, int first, int count) const;
  void draw_overlays(QPainter& painter) const;
  void draw_arrows(QPainter& painter) const;
  QString tip(std::size_t slice) const;
  void finish_drag(const QPoint& at);

  TimeView& time_;
  RunPtr run_;
  std::shared_ptr<const sim::Meetings> meetings_;
  std::unique_ptr<Rows> rows_;
  std::unique_ptr<Tracks> tracks_;
  Theme theme_;
  Grouping grouping_ = Grouping::kStage;
  Colouring colouring_ = Colouring::kKind;
  Emphasis emphasis_;
  std::optional<std::size_t> selected_;
  std::vector<std::size_t> partners_;
  int label_width_ = 240;
  std::int64_t version_ = 0;
  Key drawn_;
  QImage picture_;
  Drag drag_ = Drag::kNone;
  QPoint pressed_, pointer_;
};

}  // namespace orrery::gui
