// SPDX-License-Identifier: Apache-2.0
//
// Memory: strips of all processes over time; of the selected one, where the peak is and which buffers make
// it.
#pragma once

#include <QLabel>
#include <QWidget>

#include "gui/memory/view.h"
#include "gui/session.h"
#include "gui/tables.h"
#include "program/live.h"

namespace orrery::gui {

class MemoryPage : public QWidget {
  Q_OBJECT

 public:
  explicit MemoryPage(Session& session, QWidget* parent = nullptr);
  MemoryView& view() { return *view_; }
  const Table& buffers() const { return *buffers_; }

 private:
  void runs_changed();
  void show_process(std::int32_t process);
  void show_peak(const program::RankClass& rank, const program::Peak& peak, const QString& words);

  Session& session_;
  MemoryView* view_;
  QLabel* words_;
  Table* buffers_;
};

}  // namespace orrery::gui
