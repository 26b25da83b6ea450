// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/page.h"

#include <QHBoxLayout>
#include <QScrollBar>
#include <QVBoxLayout>
#include <algorithm>

#include "gui/text.h"

namespace orrery::gui {
namespace {

std::vector<std::uint32_t> slices_named(const sim::Lanes& lanes, const std::vector<bool>& names) {
  std::vector<std::pair<Time, std::uint32_t>> found;
  lanes.for_each_slice([&](const Slice& s, std::size_t i) {
    if (names[static_cast<std::size_t>(s.name)]) found.emplace_back(s.start, static_cast<std::uint32_t>(i));
  });
  std::sort(found.begin(), found.end());
  std::vector<std::uint32_t> out;
  out.reserve(found.size());
  for (const auto& [start, slice] : found) out.push_back(slice);
  return out;
}

std::vector<bool> names_with(const TimelineHead& t, const QString& wanted) {
  std::vector<bool> out;
  for (const std::string& name : t.names)
    out.push_back(QString::fromStdString(name).contains(wanted, Qt::CaseInsensitive));
  return out;
}

std::vector<std::vector<sim::Link>> by_lane(const sim::Lanes& lanes, const std::vector<sim::Link>& path) {
  std::vector<std::vector<sim::Link>> out(lanes.all().size());
  for (const sim::Link& link : path) out[lanes.lane_of(link.slice)].push_back(link);
  return out;
}

}  // namespace

TimelinePage::TimelinePage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(0);
  build_bar();
  stack_ = new QSplitter(Qt::Vertical);
  stack_->setObjectName("timeline stack");
  overview_ = new Overview(session_.time());
  for (std::size_t i = 0; i < views_.size(); ++i) {
    views_[i] = new TimelineView(session_.time());
    views_[i]->setObjectName(i == 0 ? "timeline" : "timeline beside");
    stack_->addWidget(views_[i]);
    connect(views_[i], &TimelineView::slice_selected, this, [this, i](std::size_t s) { show_slice(i, s); });
    connect(views_[i], &TimelineView::rows_rebuilt, this, [this, i] { find_bins(i); });
    connect(views_[i], &TimelineView::part_selected, this,
            [this, i](const sim::Part& p) { show_part(i, p); });
  }
  views_[1]->hide();
  setFocusProxy(views_[0]);
  overview_->set_sides(views_[0]->label_width(), views_[0]->verticalScrollBar()->sizeHint().width());
  auto* central = new QWidget;
  auto* rows = new QVBoxLayout(central);
  rows->setContentsMargins(0, 0, 0, 0);
  rows->setSpacing(0);
  rows->addWidget(overview_);
  rows->addWidget(stack_, 1);
  panes_ = new Panes("timeline panes", central);
  build_details();
  layout->addWidget(panes_, 1);
  soon_.setSingleShot(true);
  soon_.setInterval(120);
  connect(&soon_, &QTimer::timeout, this, &TimelinePage::sum_up);
  connect(&session_.time(), &TimeView::axis_changed, this, &TimelinePage::sum_up_soon);
  connect(&session_.time(), &TimeView::selection_changed, this, &TimelinePage::sum_up_soon);
  connect(&session_, &Session::runs_changed, this, &TimelinePage::runs_changed);
}

void TimelinePage::build_bar() {
  auto* bar = new QWidget;
  auto* row = new QHBoxLayout(bar);
  row->setContentsMargins(8, 5, 8, 5);
  grouping_ = new QComboBox;
  grouping_->setAccessibleName(tr("Rows by"));
  colouring_ = new QComboBox;
  colouring_->setAccessibleName(tr("Colours by"));
  colouring_->addItem(tr("kind of work"), static_cast<int>(Colouring::kKind));
  colouring_->addItem(tr("micro-batch"), static_cast<int>(Colouring::kMicroBatch));
  colouring_->addItem(tr("op"), static_cast<int>(Colouring::kOp));
  colouring_->addItem(tr("what limits it"), static_cast<int>(Colouring::kBound));
  search_ = new QLineEdit;
  search_->setPlaceholderText(tr("find ops ( / )"));
  search_->setAccessibleName(tr("Find ops by name"));
  search_->setClearButtonEnabled(true);
  search_->setMaximumWidth(220);
  hit_label_ = new QLabel;
  path_button_ = new QToolButton;
  path_button_->setText(tr("Critical path"));
  path_button_->setCheckable(true);
  path_button_->setToolTip(tr("the chain of ops that decided how long the step took (C)"));
  auto* next = new QToolButton;
  next->setText("›");
  next->setToolTip(tr("next found op (Enter)"));
  auto* previous = new QToolButton;
  previous->setText("‹");
  previous->setToolTip(tr("previous found op (Shift+Enter)"));
  row->addWidget(new QLabel(tr("Rows by")));
  row->addWidget(grouping_);
  row->addWidget(new QLabel(tr("Colours by")));
  row->addWidget(colouring_);
  row->addWidget(search_);
  row->addWidget(previous);
  row->addWidget(next);
  row->addWidget(hit_label_);
  row->addWidget(path_button_);
  row->addStretch(1);
  legend_ = new Legend;
  row->addWidget(legend_);
  layout()->addWidget(bar);
  connect(grouping_, &QComboBox::activated, this, [this] {
    for (TimelineView* v : views_) v->set_grouping(static_cast<Grouping>(grouping_->currentData().toInt()));
  });
  connect(colouring_, &QComboBox::currentIndexChanged, this, [this] {
    const auto colouring = static_cast<Colouring>(colouring_->currentData().toInt());
    for (TimelineView* v : views_) v->set_colouring(colouring);
    show_legend();
  });
  connect(search_, &QLineEdit::textChanged, this, &TimelinePage::find);
  connect(search_, &QLineEdit::returnPressed, this, [this] { find_next(1); });
  connect(next, &QToolButton::clicked, this, [this] { find_next(1); });
  connect(previous, &QToolButton::clicked, this, [this] { find_next(-1); });
  connect(path_button_, &QToolButton::toggled, this, &TimelinePage::show_critical_path);
}

void TimelinePage::runs_changed() {
  const bool first_changed = views_[0]->run() != session_.run(0);
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (views_[i]->run() == session_.run(i)) continue;
    views_[i]->set_run(session_.run(i));
    find_meetings(i);
  }
  views_[1]->setVisible(session_.run(1) != nullptr);
  if (first_changed) {
    hits_.clear();
    path_.clear();
    path_button_->setChecked(false);
    for (const char* kind : {"statistics", "gap", "by layer"}) session_.jobs().cancel(kind);
    clear_details();
    find_whole();
    fill_groupings();
    fill_measures();
    fill_experts();
    show_legend();
    load_bookmarks();
    sum_up_soon();
    if (!search_->text().isEmpty()) find(search_->text());
  }
  compare_runs();
}

void TimelinePage::find_bins(std::size_t which) {
  const QString kind = which == 0 ? "summaries" : "summaries beside";
  session_.jobs().cancel(kind);
  const TimelineView& view = *views_[which];
  if (!view.has_rows()) return;
  std::map<std::size_t, std::vector<Row::Part>> wanted;
  for (std::size_t i = 0; i < view.rows().roots().size(); ++i) {
    const Row& row = *view.rows().roots()[i];
    if (row.parts.size() > kManyParts) wanted[i] = row.parts;
  }
  if (wanted.empty()) return;
  session_.jobs().start(
      kind,
      [run = view.run(), wanted](Job& job) {
        std::map<std::size_t, std::vector<float>> bins;
        for (const auto& [root, parts] : wanted)
          bins[root] = bins_of(run->lanes, parts, [&] { job.go_on(); });
        return bins;
      },
      [this, which](std::map<std::size_t, std::vector<float>> bins) {
        views_[which]->set_bins(std::move(bins));
      });
}

// Of the strip, whatever the rows are.
void TimelinePage::find_whole() {
  overview_->set_bins({}, Time{0}, Time{0});
  session_.jobs().cancel("whole run");
  if (!views_[0]->has_rows()) return;
  const RunPtr run = views_[0]->run();
  const std::vector<Row::Part> parts = views_[0]->rows().computing();
  if (parts.empty()) return;
  session_.jobs().start(
      "whole run", [run, parts](Job& job) { return bins_of(run->lanes, parts, [&] { job.go_on(); }); },
      [this, run](std::vector<float> bins) {
        overview_->set_bins(std::move(bins), run->lanes.begin(), run->lanes.end());
      });
}

// Of large timelines that takes seconds, which nobody waits for. Of the largest, whose partners would take as
// much memory as their slices, they are found with the critical path, when somebody asks for that.
void TimelinePage::find_meetings(std::size_t which) {
  const RunPtr run = session_.run(which);
  if (!run || run->lanes.size() > kMostAtOnce) return;
  session_.jobs().start(
      which == 0 ? "partners" : "partners beside",
      [run](Job&) -> std::shared_ptr<const sim::Meetings> { return make_large<sim::Meetings>(run->lanes); },
      [this, run, which](std::shared_ptr<const sim::Meetings> meetings) {
        if (views_[which]->run() == run) views_[which]->set_meetings(std::move(meetings));
      });
}

void TimelinePage::fill_groupings() {
  grouping_->clear();
  const RunPtr& run = session_.run(0);
  if (!run) return;
  for (const Grouping g : Rows::groupings(run->timeline())) {
    const QString name = g == Grouping::kStage  ? tr("stage")
                         : g == Grouping::kNode ? tr("node")
                         : g == Grouping::kRank ? tr("GPU")
                                                : tr("stream");
    grouping_->addItem(name, static_cast<int>(g));
  }
  grouping_->setCurrentIndex(grouping_->findData(static_cast<int>(views_[0]->grouping())));
}

void TimelinePage::show_legend() {
  const auto colouring = static_cast<Colouring>(colouring_->currentData().toInt());
  legend_->set([run = session_.run(0), colouring](const Theme& theme) {
    return run ? legend(theme, run->lanes, colouring) : std::vector<Meaning>{};
  });
}

void TimelinePage::zoom(double factor) {
  TimeView& time = session_.time();
  time.change([&](TimeAxis& a) { a.zoom(factor, time.cursor() ? a.x_of(*time.cursor()) : a.width() / 2.0); });
}

void TimelinePage::pan(double share) {
  session_.time().change([&](TimeAxis& a) { a.pan(share * a.width()); });
}

void TimelinePage::show_selection() {
  TimeView& time = session_.time();
  if (time.selection()) {
    time.change([&](TimeAxis& a) { a.show(time.selection()->first, time.selection()->second); });
  } else if (const auto slice = views_[0]->selected()) {
    const Slice s = session_.run(0)->lanes.slice(*slice);
    const Time margin = (s.end - s.start) / 5;
    time.change([&](TimeAxis& a) { a.show(s.start - margin, s.end + margin); });
  } else {
    time.change([](TimeAxis& a) { a.show_all(); });
  }
}

void TimelinePage::find(const QString& wanted) {
  if (search_->text() != wanted) return search_->setText(wanted);  // comes back here
  hits_.clear();
  hit_ = -1;
  hit_label_->clear();
  emphasise();
  const RunPtr run = session_.run(0);
  if (!run || wanted.isEmpty()) {
    session_.jobs().cancel("find");
    return;
  }
  session_.jobs().start(
      "find", [run, wanted](Job&) { return slices_named(run->lanes, names_with(run->timeline(), wanted)); },
      [this](std::vector<std::uint32_t> hits) {
        hits_ = std::move(hits);
        hit_label_->setText(hits_.empty() ? tr("none") : tr("%L1 found").arg(hits_.size()));
      });
}

void TimelinePage::find_next(int by) {
  if (hits_.empty()) return;
  const auto count = static_cast<std::ptrdiff_t>(hits_.size());
  hit_ = hit_ < 0 ? (by > 0 ? 0 : count - 1) : (hit_ + by + count) % count;
  hit_label_->setText(tr("%L1 of %L2").arg(hit_ + 1).arg(count));
  views_[0]->select(hits_[static_cast<std::size_t>(hit_)]);
}

void TimelinePage::show_critical_path(bool show) {
  if (path_button_->isChecked() != show) return path_button_->setChecked(show);  // comes back here
  path_.clear();
  emphasise();
  const RunPtr run = session_.run(0);
  if (!show || !run) return;
  session_.jobs().start(
      "critical path",
      [run, known = views_[0]->meetings()](Job&) {
        const std::shared_ptr<const sim::Meetings> meetings =
            known ? known : make_large<sim::Meetings>(run->lanes);
        return std::pair(meetings, sim::critical_path(run->lanes, *meetings));
      },
      [this, run](const auto& found) {
        const auto& [meetings, path] = found;
        if (run != session_.run(0)) return;
        if (!views_[0]->meetings()) views_[0]->set_meetings(meetings);
        path_ = by_lane(run->lanes, path);
        path_gaps_ = Time{0};
        for (const sim::Link& link : path) path_gaps_ += link.gap;
        emphasise();
        slice_->setHtml(tr("<p>Critical path: %L1 ops, %2 of them running, %3 in gaps between them.</p>")
                            .arg(path.size())
                            .arg(text(run->lanes.end() - run->lanes.begin() - path_gaps_), text(path_gaps_)));
        panes_->bring(slice_);
      });
}

void TimelinePage::emphasise() {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (!session_.run(i)) continue;
    Emphasis e;
    if (!search_->text().isEmpty()) e.names = names_with(session_.run(i)->timeline(), search_->text());
    if (i == 0) e.path = path_;
    views_[i]->set_emphasis(std::move(e));
  }
}

void TimelinePage::go_to(std::optional<Time> at, std::int64_t rank) {
  const RunPtr& run = session_.run(0);
  if (!run) return;
  TimeView& time = session_.time();
  if (at) {
    time.change([&](TimeAxis& a) {
      const Time span = (a.end() - a.begin()) / 40;
      a.show(*at - span / 2, *at - span / 2 + span);
    });
    time.set_cursor(at);
  }
  if (rank < 0) return;
  const auto& of = run->timeline().process_of;
  const bool folded = static_cast<std::size_t>(rank) < of.size();
  views_[0]->reveal(folded ? of[static_cast<std::size_t>(rank)] : static_cast<std::int32_t>(rank), rank, 0);
}

void TimelinePage::focus_search() {
  search_->setFocus();
  search_->selectAll();
}

}  // namespace orrery::gui
