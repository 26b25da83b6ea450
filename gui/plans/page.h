// SPDX-License-Identifier: Apache-2.0
//
// The planner's answer: the best plans and what was found beside them as a table and as a trade-off, linked;
// where the step of the selected plans goes; why, and why not others.
#pragma once

#include <QComboBox>
#include <QLabel>
#include <QLineEdit>
#include <QPushButton>
#include <QTextBrowser>
#include <QWidget>

#include "gui/charts.h"
#include "gui/panes.h"
#include "gui/plans/parallel.h"
#include "gui/session.h"
#include "gui/tables.h"

namespace orrery::gui {

// A plan that was found, as the table shows it.
struct Found {
  enum class How { kSimulated, kEstimated, kTooLarge };
  Plan plan;
  How how = How::kEstimated;
  std::string note;
  double step_s = 0, tokens_per_s = 0, mfu = 0, gib = 0, fits = 0, days = 0, dollars = 0;
  std::optional<Predicted> predicted;  // of a simulated one
};
// Of an answer: simulated plans first, best first; each plan once.
std::vector<Found> found_plans(const Problem& problem, const planner::Answer& answer);

class PlansPage : public QWidget {
  Q_OBJECT

 public:
  explicit PlansPage(Session& session, QWidget* parent = nullptr);

  Table& table() { return *table_; }
  ScatterChart& trade_off() { return *trade_off_; }
  ParallelChart& parallel() { return *parallel_; }
  const Table& comparison() const { return *comparison_; }
  QLineEdit& filter() { return *filter_; }

 protected:
  void changeEvent(QEvent* event) override;

 private:
  void build_table(QWidget* into);
  void build_details();
  void answer_changed();
  void fill_table();
  void fill_why();
  void selection_changed();
  void show_breakdown(const std::vector<int>& selected);
  void show_comparison(const std::vector<int>& selected);
  void show_memory(const std::vector<int>& selected);
  void show_trade_off();
  void show_parallel();
  void show_buttons();

  Session& session_;
  std::vector<Found> found_;
  QLabel* headline_;
  QLineEdit* filter_;
  Table *table_, *why_not_, *memory_, *comparison_, *helps_;
  QTextBrowser* why_;
  Panes* panes_;
  QPushButton *look_, *beside_;
  QComboBox *x_, *y_;
  ScatterChart* trade_off_;
  ParallelChart* parallel_;
  StackedBarChart* breakdown_;
};

}  // namespace orrery::gui
