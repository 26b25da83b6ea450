// SPDX-License-Identifier: Apache-2.0
//
// The timeline page: one run, or two stacked over one axis of time; what rows and colours mean, search, the
// critical path; a strip of the whole run; in panes, what is selected, where the time goes by layer, what
// each rank did, tokens of experts, what differs and why, bookmarks.
#pragma once

#include <QComboBox>
#include <QLabel>
#include <QLineEdit>
#include <QSplitter>
#include <QTextBrowser>
#include <QTimer>
#include <QToolButton>
#include <QWidget>
#include <array>

#include "gui/legend.h"
#include "gui/panes.h"
#include "gui/session.h"
#include "gui/tables.h"
#include "gui/timeline/expert_map.h"
#include "gui/timeline/op_tree_view.h"
#include "gui/timeline/overview.h"
#include "gui/timeline/rank_map.h"
#include "gui/timeline/view.h"
#include "sim/analysis/causes.h"
#include "sim/analysis/twins.h"
#include "sim/calibration/compare.h"

namespace orrery::gui {

class TimelinePage : public QWidget {
  Q_OBJECT

 public:
  explicit TimelinePage(Session& session, QWidget* parent = nullptr);

  TimelineView& view(std::size_t which) { return *views_[which]; }
  Overview& overview() { return *overview_; }
  RankMap& rank_map() { return *rank_map_; }
  QComboBox& rank_measure() { return *rank_measure_; }
  OpTreeView& op_tree() { return *op_tree_; }
  ExpertMap& expert_map() { return *expert_map_; }
  QComboBox& expert_group() { return *expert_group_; }
  QComboBox& expert_rows() { return *expert_rows_; }
  QString experts_text() const { return experts_label_->text(); }
  // Whether what the panes show follows what is looked at.
  bool settled() const { return !soon_.isActive(); }
  // What a user does by key or menu.
  void zoom(double factor);
  void pan(double share_of_width);
  void show_selection();  // the selected part or slice, over the whole width
  void find(const QString& text);
  void find_next(int by);
  void show_critical_path(bool show);
  bool critical_path_shown() const { return path_button_->isChecked(); }
  void add_bookmark();
  // Of compute, in what is shown.
  void show_longest_gap();
  // Either may be left out.
  void go_to(std::optional<Time> at, std::int64_t rank);
  void focus_search();

  const Table& statistics() const { return *statistics_; }
  const Table& differences() const { return *differences_; }
  const Table& causes() const { return *causes_; }
  const Table& bookmarks() const { return *bookmarks_; }
  std::size_t hits() const { return hits_.size(); }
  QString hit_text() const { return hit_label_->text(); }
  QString slice_text() const { return slice_->toPlainText(); }

 private:
  // Slices whose partners are found unasked, and of two runs that are compared op by op.
  static constexpr std::size_t kMostAtOnce = 30'000'000;

  void build_bar();
  void build_details();
  QWidget* build_op_tree();
  QWidget* build_rank_map();
  QWidget* build_expert_map();
  void fill_experts();
  void say_fullest();
  void clear_details();
  void runs_changed();
  void find_meetings(std::size_t which);
  void find_bins(std::size_t which);
  void find_whole();
  void fill_groupings();
  void fill_measures();
  void show_legend();
  void show_slice(std::size_t which, std::size_t slice);
  void show_part(std::size_t which, const sim::Part& part);
  void show_statistics(const sim::Statistics& statistics, const TimelineHead& timeline);
  void compare_runs();
  void show_difference(const sim::Comparison& comparison);
  void show_causes(const std::vector<sim::Cause>& causes);
  void sum_up_soon();
  void sum_up();
  void emphasise();
  void load_bookmarks();
  void save_bookmarks() const;
  void fill_bookmarks();

  struct Bookmark {
    QString name;
    Time from, to;
  };

  Session& session_;
  QSplitter* stack_;
  std::array<TimelineView*, 2> views_;
  Overview* overview_;
  QComboBox *grouping_, *colouring_;
  QLineEdit* search_;
  QLabel *hit_label_, *part_label_, *difference_label_;
  QToolButton* path_button_;
  Legend* legend_;
  Panes* panes_;
  QTextBrowser* slice_;
  QWidget *part_pane_, *difference_pane_;
  Table *statistics_, *differences_, *causes_, *bookmarks_;
  OpTreeView* op_tree_;
  QToolButton* layers_apart_;
  RankMap* rank_map_;
  QComboBox* rank_measure_;
  ExpertMap* expert_map_;
  QComboBox *expert_group_, *expert_rows_;
  QLabel* experts_label_;
  // What the sums on screen are of.
  struct Summed {
    const Run* run = nullptr;
    Time from, to;
    RankMeasure measure;
    bool apart = false, layers = false, ranks = false;
    friend bool operator==(const Summed&, const Summed&) = default;
  } summed_;
  QTimer soon_;                      // sums are made once what is shown rests
  std::vector<std::uint32_t> hits_;  // slices of the first run that the search found, in order of time
  std::ptrdiff_t hit_ = -1;
  std::vector<std::vector<sim::Link>> path_;  // of the first run, by lane
  Time path_gaps_{0};
  std::vector<Bookmark> bookmarked_;
};

}  // namespace orrery::gui
