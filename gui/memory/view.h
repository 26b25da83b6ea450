// SPDX-License-Identifier: Apache-2.0
//
// Live memory of each process by class over the time that the timeline shows, with its cursor: a strip a
// process. Each column shows the fullest moment in it, so no peak is lost.
#pragma once

#include <QAbstractScrollArea>
#include <optional>

#include "gui/run.h"
#include "gui/theme.h"
#include "gui/time_view.h"

namespace orrery::gui {

// What a process has beside what its program says: context, communicators, what the allocator wastes.
struct Overheads {
  std::vector<std::int64_t> bytes;     // by process
  std::vector<std::int64_t> capacity;  // of its device, by process; empty: unknown
};

class MemoryView : public QAbstractScrollArea {
  Q_OBJECT

 public:
  explicit MemoryView(TimeView& time, QWidget* parent = nullptr);
  void set_run(RunPtr run, Overheads overheads);
  std::int32_t selected() const { return selected_; }  // process; -1: none
  void select(std::int32_t process);
  const std::vector<std::int32_t>& processes() const { return processes_; }
  // The fullest point of a process; null where there is none.
  const MemoryPoint* peak(std::int32_t process) const;
  // What is live at a time.
  const MemoryPoint* at(std::int32_t process, Time t) const;
  std::int64_t overhead(std::int32_t process) const;
  std::int64_t capacity(std::int32_t process) const;  // 0: unknown

  static constexpr int kLabelWidth = 240, kStripHeight = 118;

 Q_SIGNALS:
  void process_selected(int process);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void showEvent(QShowEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void changeEvent(QEvent* event) override;

 private:
  void set_sizes();
  std::span<const MemoryPoint> points(std::int32_t process) const;
  void draw_strip(QPainter& painter, std::int32_t process, const QRect& area) const;
  void draw_labels(QPainter& painter, std::int32_t process, const QRect& area) const;

  TimeView& time_;
  RunPtr run_;
  Overheads overheads_;
  Theme theme_;
  std::vector<std::int32_t> processes_;
  std::int64_t most_ = 1;  // bytes at the top of a strip
  std::int32_t selected_ = -1;
};

}  // namespace orrery::gui
