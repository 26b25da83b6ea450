// SPDX-License-Identifier: Apache-2.0
#include "gui/panes.h"

#include <QDockWidget>
#include <algorithm>

namespace orrery::gui {

Panes::Panes(const QString& name, QWidget* central, QWidget* parent) : QMainWindow(parent) {
  setObjectName(name);
  setWindowFlags(Qt::Widget);  // it stands in a page
  setDockOptions(QMainWindow::AllowTabbedDocks | QMainWindow::AllowNestedDocks);
  setCorner(Qt::BottomRightCorner, Qt::RightDockWidgetArea);
  setTabPosition(Qt::AllDockWidgetAreas, QTabWidget::North);
  setDocumentMode(true);
  setCentralWidget(central);
}

void Panes::add(const QString& name, const QString& title, QWidget* content, Qt::DockWidgetArea area,
                Among among) {
  auto* dock = new QDockWidget(title, this);
  dock->setObjectName(name);
  dock->setWidget(content);
  const auto in_area = [&](QDockWidget* d) { return dockWidgetArea(d) == area; };
  const auto first = std::find_if(docks_.begin(), docks_.end(), in_area);
  const auto last = std::find_if(docks_.rbegin(), docks_.rend(), in_area);
  addDockWidget(area, dock);
  if (first != docks_.end() && among == Among::kStacked) {
    tabifyDockWidget(*last, dock);
    (*first)->raise();
  }
  docks_.push_back(dock);
}

void Panes::set_size(Qt::DockWidgetArea area, int pixels) {
  const bool wide = area == Qt::LeftDockWidgetArea || area == Qt::RightDockWidgetArea;
  for (QDockWidget* dock : docks_) {
    if (dockWidgetArea(dock) == area) resizeDocks({dock}, {pixels}, wide ? Qt::Horizontal : Qt::Vertical);
  }
}

QStringList Panes::names() const {
  QStringList out;
  for (const QDockWidget* dock : docks_) out << dock->objectName();
  return out;
}

void Panes::bring(const QWidget* content) {
  for (QDockWidget* dock : docks_) {
    if (dock->widget() != content) continue;
    dock->show();
    dock->raise();
  }
}

bool Panes::bring(const QString& name) {
  for (const QDockWidget* dock : docks_) {
    if (dock->objectName() != name) continue;
    bring(dock->widget());
    return true;
  }
  return false;
}

}  // namespace orrery::gui
