// SPDX-License-Identifier: Apache-2.0
//
// Where working time goes, as bars below each other (an icicle, or flame graph from the top): stream,
// segment, layer, parts of the layer. A bar is as wide as its share of the time. A click makes a bar the
// whole width; a click on what has it, or Backspace, goes back up.
#pragma once

#include <QWidget>

#include "gui/theme.h"
#include "sim/analysis/op_tree.h"

namespace orrery::gui {

class OpTreeView : public QWidget {
  Q_OBJECT

 public:
  explicit OpTreeView(QWidget* parent = nullptr);

  void set(sim::OpNode root);
  // Names from the root to what is shown over the whole width.
  QStringList shown_path() const;

  // What is drawn: a node, and where.
  struct Bar {
    const sim::OpNode* node = nullptr;
    int depth = 0;  // under the root
    QRectF at;
    std::string stream, segment;  // that it is in, where it is in one
    std::size_t number = 0;       // among its neighbours
  };
  const std::vector<Bar>& bars() const { return bars_; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  bool event(QEvent* event) override;

 private:
  void lay_out();
  void add(Bar bar);  // and all below it
  const Bar* bar_at(const QPointF& position) const;
  void show_parent();

  sim::OpNode root_;
  std::vector<const sim::OpNode*> path_;  // from the root to what is shown
  std::vector<Bar> bars_;
};

}  // namespace orrery::gui
