// SPDX-License-Identifier: Apache-2.0
//
// Draws a network layer by layer, lines coloured by how full their fullest link is. A click on a block opens
// it, a click on a line selects it.
#pragma once

#include <QWidget>
#include <memory>
#include <optional>

#include "gui/theme.h"
#include "gui/topology/layout.h"

namespace orrery::gui {

// A network with how full its links are, ready to be drawn; made on a job's thread.
struct NetworkPicture {
  std::shared_ptr<const sim::Topology> topology;
  NetworkLayout layout;
  std::vector<double> use;  // by link; empty: nobody knows
  std::vector<Edge> edges;
};

class TopologyView : public QWidget {
  Q_OBJECT

 public:
  explicit TopologyView(QWidget* parent = nullptr);
  void set_picture(std::shared_ptr<const NetworkPicture> picture);
  const std::shared_ptr<const NetworkPicture>& picture() const { return picture_; }
  QPointF block_position(std::size_t block) const;
  std::optional<std::size_t> block_at(const QPointF& at) const;
  std::optional<std::size_t> edge_at(const QPointF& at) const;
  void select_edge(std::optional<std::size_t> edge);

 Q_SIGNALS:
  void block_clicked(std::size_t block);
  void edge_selected(std::size_t edge);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;
  void changeEvent(QEvent* event) override;

 private:
  QColor colour_of(double use) const;
  void draw_legend(QPainter& painter) const;
  std::pair<QPointF, QPointF> line(const Edge& e) const;

  std::shared_ptr<const NetworkPicture> picture_;
  Theme theme_;
  std::optional<std::size_t> selected_;
};

}  // namespace orrery::gui
