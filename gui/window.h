// SPDX-License-Identifier: Apache-2.0
//
// The main window: pages over one session, menus and keys, what is running and what went wrong.
#pragma once

#include <QLabel>
#include <QMainWindow>
#include <QProgressBar>
#include <QTabWidget>
#include <QToolButton>

#include "gui/cost/page.h"
#include "gui/failures/page.h"
#include "gui/memory/page.h"
#include "gui/plans/page.h"
#include "gui/session.h"
#include "gui/start/page.h"
#include "gui/timeline/page.h"
#include "gui/topology/page.h"
#include "gui/what_if/page.h"

namespace orrery::gui {

class Window : public QMainWindow {
  Q_OBJECT

 public:
  explicit Window(QWidget* parent = nullptr);
  ~Window() override;

  Session& session() { return session_; }
  StartPage& start() { return *start_; }
  PlansPage& plans() { return *plans_; }
  TimelinePage& timeline() { return *timeline_; }
  MemoryPage& memory() { return *memory_; }
  TopologyPage& topology() { return *topology_; }
  WhatIfPage& what_if() { return *what_if_; }
  CostPage& cost() { return *cost_; }
  FailuresPage& failures() { return *failures_; }

  // Names of pages, as on the command line: "start", "plans", ...
  static QStringList page_names();
  void show_page(const QString& name);
  QString page() const;
  // Of the page that is shown.
  QStringList pane_names() const;
  bool bring_pane(const QString& name);  // false: it has none of that name
  // A picture (.png, .svg), a table (.csv) or the timeline (.json, .timeline) of what is shown, by the
  // suffix. Throws Error; large timelines are written by a job.
  void export_to(const QString& path);
  void set_dark(bool dark);
  // What went wrong last; empty once it was dismissed or something else opened.
  QString message() const { return banner_->isHidden() ? QString() : banner_text_->text(); }
  void save_state() const;

 protected:
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;
  void closeEvent(QCloseEvent* event) override;

 private:
  void add_page(const QString& name, const QString& title, QWidget* page);
  void build_menus();
  void build_status();
  void show_message(const QString& text);
  void show_progress();
  void choose_and_open(bool beside);
  void choose_and_export();
  void show_keys();
  void restore_state();
  Table* table_on_page() const;

  Session session_;
  QTabWidget* pages_;
  StartPage* start_;
  PlansPage* plans_;
  TimelinePage* timeline_;
  MemoryPage* memory_;
  TopologyPage* topology_;
  WhatIfPage* what_if_;
  CostPage* cost_;
  FailuresPage* failures_;
  QWidget* banner_;
  QLabel *banner_text_, *status_;
  QProgressBar* progress_;
  QToolButton* cancel_;
  std::map<QString, double> running_;  // jobs by kind, how far each is
};

}  // namespace orrery::gui
