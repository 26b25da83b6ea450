// SPDX-License-Identifier: Apache-2.0
//
// A page with panes around what it is about: they can be moved, stacked, torn off and closed, and stand where
// people left them.
#pragma once

#include <QMainWindow>
#include <QString>
#include <vector>

class QDockWidget;

namespace orrery::gui {

class Panes : public QMainWindow {
  Q_OBJECT

 public:
  // `name`: under which their places are kept.
  Panes(const QString& name, QWidget* central, QWidget* parent = nullptr);

  // Where others are in the area already: in one place with the last of them, the first on top; or under it.
  enum class Among { kStacked, kUnder };
  // `name`: what its place is kept under and --pane says, in no language.
  void add(const QString& name, const QString& title, QWidget* content, Qt::DockWidgetArea area,
           Among among = Among::kStacked);
  // As if people had pulled the area's edge.
  void set_size(Qt::DockWidgetArea area, int pixels);
  // Brings a pane forward, and back where it was closed.
  void bring(const QWidget* content);
  bool bring(const QString& name);  // false: there is none
  QStringList names() const;
  const std::vector<QDockWidget*>& all() const { return docks_; }

 private:
  std::vector<QDockWidget*> docks_;
};

}  // namespace orrery::gui
