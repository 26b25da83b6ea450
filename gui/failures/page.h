// SPDX-License-Identifier: Apache-2.0
//
// What the run of the plan that is looked into takes with failures, checkpoints and restarts: days and
// dollars as distributions, where the time goes, and what the median run did. Runs are simulated once the
// page is shown.
#pragma once

#include <QLabel>
#include <QWidget>
#include <memory>
#include <string>

#include "gui/charts.h"
#include "gui/failures/life_view.h"
#include "gui/session.h"
#include "gui/tables.h"
#include "planner/operate.h"

namespace orrery::gui {

class FailuresPage : public QWidget {
  Q_OBJECT

 public:
  explicit FailuresPage(Session& session, QWidget* parent = nullptr);
  Table& stops() { return *stops_; }
  const LifeView& life() const { return *life_; }
  QString headline() const { return headline_->text(); }

 protected:
  void changeEvent(QEvent* event) override;
  void showEvent(QShowEvent* event) override;

 private:
  struct Found {
    std::string problem;  // why there is no answer
    planner::Operated of;
    sim::Answered answered;
    sim::Diary diary;
    std::string no_diary;  // why there is none
  };
  void evaluated_changed();
  void simulate();
  void refresh();
  void show_distributions(const Theme& theme);
  void show_diary();

  Session& session_;
  EvaluatedPtr simulated_;  // of this plan, or it is under way
  std::shared_ptr<const Found> found_;
  QLabel *headline_, *diary_words_;
  HistogramChart *days_, *dollars_;
  StackedBarChart* time_;
  LifeView* life_;
  Table* stops_;
};

}  // namespace orrery::gui
