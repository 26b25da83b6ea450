// SPDX-License-Identifier: Apache-2.0
//
// Dollars and doubt: what the best plans cost and how sure that is, where the money of the selected one goes,
// and which change of the machine would help.
#pragma once

#include <QComboBox>
#include <QLabel>
#include <QWidget>

#include "gui/charts.h"
#include "gui/session.h"
#include "gui/tables.h"

namespace orrery::gui {

class CostPage : public QWidget {
  Q_OBJECT

 public:
  explicit CostPage(Session& session, QWidget* parent = nullptr);
  const Table& table() const { return *table_; }

 protected:
  void changeEvent(QEvent* event) override;

 private:
  void refresh();

  Session& session_;
  QLabel* headline_;
  QComboBox* measure_;
  IntervalChart* intervals_;
  StackedBarChart *money_, *help_;
  Table* table_;
};

}  // namespace orrery::gui
