// SPDX-License-Identifier: Apache-2.0
//
// The network: its graph with how full links are, on average or at a moment; of a selected line, whose
// traffic it carries.
#pragma once

#include <QComboBox>
#include <QLabel>
#include <QSlider>
#include <QTimer>
#include <QWidget>

#include "gui/session.h"
#include "gui/tables.h"
#include "gui/topology/view.h"

namespace orrery::gui {

class TopologyPage : public QWidget {
  Q_OBJECT

 public:
  explicit TopologyPage(Session& session, QWidget* parent = nullptr);
  TopologyView& view() { return *view_; }
  const Table& users() const { return *users_; }
  QComboBox& when() { return *when_; }

 private:
  void topology_changed();
  void redraw(std::optional<std::size_t> open = {});
  void show_edge(std::size_t edge);
  Time moment() const;

  Session& session_;
  TopologyView* view_;
  QComboBox* when_;
  QSlider* moment_;
  QLabel *headline_, *moment_label_, *edge_label_;
  Table* users_;
  QTimer soon_;
};

}  // namespace orrery::gui
