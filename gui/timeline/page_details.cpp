// SPDX-License-Identifier: Apache-2.0
//
// What stands in panes below a timeline: the selected slice, sums over a part, by layer and by rank, how two
// runs differ and why, bookmarks.
#include <QDockWidget>
#include <QHBoxLayout>
#include <QScrollArea>
#include <QScrollBar>
#include <QSettings>
#include <QVBoxLayout>
#include <algorithm>

#include "gui/text.h"
#include "gui/timeline/page.h"

namespace orrery::gui {
namespace {

struct PaneWithBar {
  QWidget* pane;
  QVBoxLayout* column;  // what comes next stands under the bar
  QHBoxLayout* bar;
};
PaneWithBar pane_with_bar() {
  auto* pane = new QWidget;
  auto* column = new QVBoxLayout(pane);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  auto* bar = new QHBoxLayout;
  bar->setContentsMargins(8, 4, 8, 4);
  column->addLayout(bar);
  return {pane, column, bar};
}

// On several lines where a pane is narrow.
QLabel* wrapped(const QString& words) {
  auto* label = new QLabel(words);
  label->setWordWrap(true);
  return label;
}

// What compute waited for.
QString text_of_cause(const std::string& cause) {
  if (cause == sim::kLaunch) return QObject::tr("the host to launch it");
  if (cause == sim::kEndOfStep) return QObject::tr("the end, with nothing left to compute");
  return QString::fromStdString(cause);
}

QString percent(Time part, Time whole) {
  return whole.value > 0 ? QString::number(100 * ratio(part, whole), 'f', 1) + " %" : QString("-");
}

}  // namespace

void TimelinePage::build_details() {
  slice_ = new QTextBrowser;
  slice_->setAccessibleName(tr("Selected slice"));
  slice_->setFrameShape(QFrame::NoFrame);

  const auto with_label = [this](QLabel*& label, Table* table) {
    auto* page = new QWidget;
    auto* column = new QVBoxLayout(page);
    column->setContentsMargins(6, 6, 6, 0);
    label = new QLabel;
    label->setWordWrap(true);
    label->setTextInteractionFlags(Qt::TextSelectableByMouse);
    column->addWidget(label);
    column->addWidget(table, 1);
    return page;
  };
  statistics_ =
      new Table(tr("Statistics of the selection"),
                {tr("op"), tr("stream"), tr("count"), tr("working"), tr("waiting"), tr("bytes"), tr("rate")},
                tr("What ran in the part that you drag over comes here, the longest first."));
  part_pane_ = with_label(part_label_, statistics_);
  differences_ = new Table(tr("Difference of the two runs"),
                           {tr("op"), tr("limited by"), tr("count"), tr("above"), tr("below"),
                            tr("below - above"), tr("above / below")},
                           tr("Lay a second run beside the first (Ctrl + B) to see what differs."));
  difference_pane_ = with_label(difference_label_, differences_);
  causes_ = new Table(tr("Why the two runs differ"),
                      {tr("compute of a process, on average"), tr("above"), tr("below"), tr("below - above")},
                      tr("Lay a second run beside the first (Ctrl + B) to see why they differ."));
  bookmarks_ = new Table(tr("Bookmarks"), {tr("bookmark"), tr("from"), tr("to")},
                         tr("Press M to keep the part of time that is shown, or selected."));
  const auto below = [this](const char* name, const QString& title, QWidget* content) {
    panes_->add(name, title, content, Qt::BottomDockWidgetArea);
  };
  below("slice", tr("Slice"), slice_);
  below("selection", tr("Selection"), part_pane_);
  below("by-layer", tr("By layer"), build_op_tree());
  below("ranks", tr("Ranks"), build_rank_map());
  below("experts", tr("Experts"), build_expert_map());
  below("difference", tr("Difference"), difference_pane_);
  below("why-they-differ", tr("Why they differ"), causes_);
  below("bookmarks", tr("Bookmarks"), bookmarks_);
  // What nobody sees is not summed up.
  for (QDockWidget* dock : panes_->all())
    connect(dock, &QDockWidget::visibilityChanged, this, &TimelinePage::sum_up_soon);
  connect(bookmarks_, &Table::picked, this, [this](int n) {
    if (n < 0) return;
    const Bookmark& b = bookmarked_[static_cast<std::size_t>(n)];
    session_.time().change([&](TimeAxis& a) { a.show(b.from, b.to); });
  });
  panes_->set_size(Qt::BottomDockWidgetArea, 230);
  clear_details();
}

void TimelinePage::clear_details() {
  slice_->setHtml(tr("<p style='color:gray'>Click a slice to see it.</p>"));
  statistics_->fill({});
  part_label_->setText(tr("Drag over rows to sum up what they did."));
  op_tree_->set({});
  rank_map_->set({}, 0, false);
  summed_ = {};
}

void TimelinePage::show_slice(std::size_t which, std::size_t slice) {
  const RunPtr& run = session_.run(which);
  const TimelineHead& t = run->timeline();
  const Slice s = run->lanes.slice(slice);
  const auto name = static_cast<std::size_t>(s.name);
  QString html = QString("<h4>%1</h4><table cellspacing='0' cellpadding='1'>")
                     .arg(QString::fromStdString(t.names[name]).toHtmlEscaped());
  const auto line = [&](const QString& what, const QString& value) {
    html += QString("<tr><td style='padding-right:18px'>%1</td><td>%2</td></tr>")
                .arg(what, value.toHtmlEscaped());
  };
  line(tr("part of"), tr("%1, chunk %2, micro-batch %3")
                          .arg(QString::fromStdString(t.segments[static_cast<std::size_t>(s.segment)]))
                          .arg(s.chunk)
                          .arg(s.micro_batch));
  line(tr("on"), Rows::process_label(t, s.rank) + ", " +
                     QString::fromStdString(t.streams[static_cast<std::size_t>(s.stream)]));
  line(tr("from"), tr("%1 to %2").arg(text(s.start), text(s.end)));
  line(tr("took"), text(s.end - s.start));
  if (s.active > s.start) line(tr("of that waiting"), text(s.active - s.start));
  if (s.start > s.ready) line(tr("inputs were there"), tr("%1 before it began").arg(text(s.start - s.ready)));
  if (name < t.bounds.size()) line(tr("limited by"), QString::fromUtf8(name_of(t.bounds[name])));
  if (name < t.payloads.size() && t.payloads[name] > 0 && s.end > s.active) {
    const double rate = static_cast<double>(t.payloads[name]) / seconds(s.end - s.active);
    line(tr("payload"), tr("%1, %2 GB/s (algorithm bandwidth)")
                            .arg(QString::fromStdString(format(Bytes{t.payloads[name]})))
                            .arg(rate / 1e9, 0, 'f', 2));
  }
  const RunPtr& other = session_.run(1 - which);
  if (other) {
    if (const auto there = sim::twin(run->lanes, slice, other->lanes)) {
      const Slice o = other->lanes.slice(*there);
      const double change = ratio(o.end - o.active, std::max(Time{1}, s.end - s.active)) - 1;
      line(tr("in %1").arg(other->name.toHtmlEscaped()),
           tr("%1 (%2 %), began %3 %4")
               .arg(text(o.end - o.active))
               .arg(100 * change, 0, 'f', 1)
               .arg(text(Time{std::abs((o.start - s.start).value)}),
                    o.start < s.start ? tr("earlier") : tr("later")));
    } else {
      line(tr("in %1").arg(other->name.toHtmlEscaped()), tr("nothing of this name, stage and micro-batch"));
    }
  }
  slice_->setHtml(html + "</table>");
  panes_->bring(slice_);
}

void TimelinePage::show_part(std::size_t which, const sim::Part& part) {
  const RunPtr run = session_.run(which);
  session_.jobs().start(
      "statistics", [run, part](Job&) { return sim::statistics(run->lanes, part); },
      [this, run, which](const sim::Statistics& s) {
        if (run == session_.run(which)) show_statistics(s, run->timeline());
      });
}

void TimelinePage::show_longest_gap() {
  const RunPtr run = session_.run(0);
  if (!run) return;
  const TimeAxis& axis = session_.time().axis();
  session_.jobs().start(
      "gap",
      [run, part = sim::whole(run->lanes, axis.from(), axis.to())](Job&) {
        return sim::statistics(run->lanes, part).longest_gap;
      },
      [this, run](const std::optional<sim::Gap>& gap) {
        if (run != session_.run(0)) return;
        if (!gap) {
          part_label_->setText(tr("Compute has no gap in what is shown."));
          return panes_->bring(part_pane_);
        }
        TimeView& time = session_.time();
        time.select(TimeView::Range{gap->from, gap->to});
        time.change([&](TimeAxis& a) { a.show(gap->from - gap->length(), gap->to + gap->length()); });
        views_[0]->reveal(gap->rank, -1, 0);
        show_part(0, {{gap->rank}, gap->from, gap->to});
      });
}

void TimelinePage::show_statistics(const sim::Statistics& s, const TimelineHead& timeline) {
  QStringList idle;
  for (const sim::Idle& i : s.idle)
    idle << tr("%1 %2").arg(text_of_cause(i.cause).toHtmlEscaped(), percent(i.time, s.window));
  part_label_->setText(
      tr("<b>compute %1</b> of %2 (all rows together) · communication not hidden by compute %3, "
         "hidden %4 · compute waited for: %5")
          .arg(percent(s.compute, s.window), text(s.window), text(s.exposed), text(s.hidden),
               idle.isEmpty() ? tr("nothing") : idle.join(", ")) +
      (s.longest_gap ? tr(" · longest gap %1 on %2, for %3")
                           .arg(text(s.longest_gap->length()),
                                Rows::process_label(timeline, s.longest_gap->rank).toHtmlEscaped(),
                                text_of_cause(s.longest_gap->cause).toHtmlEscaped())
                     : QString()));
  std::vector<std::vector<Cell>> rows;
  for (const sim::KindStatistics& k : s.kinds) {
    const QString bytes = k.payload > 0 ? QString::fromStdString(format(Bytes{k.payload})) : QString();
    const QString rate = k.payload > 0 ? QString("%1 GB/s").arg(k.bytes_per_s() / 1e9, 0, 'f', 2) : QString();
    rows.push_back({QString::fromStdString(k.name),
                    QString::fromStdString(timeline.streams[static_cast<std::size_t>(k.stream)]),
                    {QString("%L1").arg(k.count), static_cast<double>(k.count)},
                    {text(k.active), seconds(k.active)},
                    {text(k.waiting), seconds(k.waiting)},
                    {bytes, static_cast<double>(k.payload)},
                    {rate, k.bytes_per_s()}});
  }
  statistics_->fill(rows);
  panes_->bring(part_pane_);
}

void TimelinePage::compare_runs() {
  session_.jobs().cancel("compare");
  differences_->fill({});
  causes_->fill({});
  difference_label_->setText(tr("Lay a second run beside the first to see what differs."));
  const RunPtr a = session_.run(0), b = session_.run(1);
  if (!a || !b) return;
  if (a->lanes.size() + b->lanes.size() > kMostAtOnce) {
    difference_label_->setText(
        tr("Runs of more than %L1 slices together are not compared op by op.").arg(kMostAtOnce));
    return;
  }
  struct Both {
    sim::Comparison ops;
    std::vector<sim::Cause> causes;
  };
  session_.jobs().start(
      "compare",
      [a, b](Job&) {
        return Both{sim::compare(a->lanes.unpacked(), b->lanes.unpacked()), sim::causes(a->lanes, b->lanes)};
      },
      [this](const Both& both) {
        show_causes(both.causes);
        show_difference(both.ops);
      });
}

void TimelinePage::show_difference(const sim::Comparison& c) {
  const double change = c.predicted_step_s > 0 ? 100 * (c.measured_step_s / c.predicted_step_s - 1) : 0;
  difference_label_->setText(
      tr("<b>above %1, below %2 (%3 %)</b> · %L4 ops matched%5%6")
          .arg(text(from_seconds(c.predicted_step_s)), text(from_seconds(c.measured_step_s)))
          .arg(change, 0, 'f', 1)
          .arg(c.matched)
          .arg(c.only_predicted > 0 ? tr(", %L1 only above").arg(c.only_predicted) : QString(),
               c.only_measured > 0 ? tr(", %L1 only below").arg(c.only_measured) : QString()));
  std::vector<std::vector<Cell>> rows;
  for (const sim::OpComparison& op : c.ops) {
    const double delta = op.measured_s - op.predicted_s;
    rows.push_back({QString::fromStdString(op.name),
                    QString::fromUtf8(name_of(op.bound)),
                    {QString("%L1").arg(op.count), static_cast<double>(op.count)},
                    {text(from_seconds(op.predicted_s)), op.predicted_s},
                    {text(from_seconds(op.measured_s)), op.measured_s},
                    {(delta < 0 ? "-" : "+") + text(from_seconds(std::abs(delta))), delta},
                    {QString::number(op.measured_s > 0 ? op.predicted_s / op.measured_s : 0, 'f', 2),
                     op.measured_s > 0 ? op.predicted_s / op.measured_s : 0}});
  }
  differences_->fill(rows);
  panes_->bring(difference_pane_);
}

void TimelinePage::show_causes(const std::vector<sim::Cause>& causes) {
  std::vector<std::vector<Cell>> rows;
  const auto add = [&](const QString& name, double first, double second) {
    const double more = second - first;
    rows.push_back({name,
                    {text(from_seconds(first)), first},
                    {text(from_seconds(second)), second},
                    {(more < 0 ? "-" : "+") + text(from_seconds(std::abs(more))), more}});
  };
  double first = 0, second = 0;
  for (const sim::Cause& c : causes) {
    add(c.name == "compute" ? tr("computes") : tr("waits for %1").arg(text_of_cause(c.name)), c.first_s,
        c.second_s);
    first += c.first_s;
    second += c.second_s;
  }
  add(tr("the whole run"), first, second);
  causes_->fill(std::move(rows));
}

// --- of a part of time ---

QWidget* TimelinePage::build_op_tree() {
  const auto [out, column, bar] = pane_with_bar();
  bar->addWidget(
      wrapped(tr("Working time of all rows in the part that is selected, or else shown. Click a bar "
                 "to look into it.")),
      1);
  layers_apart_ = new QToolButton;
  layers_apart_->setText(tr("Layers apart"));
  layers_apart_->setCheckable(true);
  bar->addWidget(layers_apart_);
  op_tree_ = new OpTreeView;
  auto* scroll = new QScrollArea;
  scroll->setFrameShape(QFrame::NoFrame);
  scroll->setWidgetResizable(true);
  scroll->setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOn);  // bars are as many as the width shows
  scroll->setWidget(op_tree_);
  column->addWidget(scroll, 1);
  connect(layers_apart_, &QToolButton::toggled, this, &TimelinePage::sum_up);
  return out;
}

QWidget* TimelinePage::build_rank_map() {
  const auto [out, column, bar] = pane_with_bar();
  rank_measure_ = new QComboBox;
  rank_measure_->setAccessibleName(tr("Colour ranks by"));
  bar->addWidget(rank_measure_);
  bar->addSpacing(8);
  bar->addWidget(wrapped(tr("of the part that is selected, or else shown. Click a rank to see its rows.")),
                 1);
  rank_map_ = new RankMap;
  rank_map_->set_labels([this](std::int64_t rank) {
    const RunPtr& run = session_.run(0);
    return run ? Rows::rank_label(run->timeline(), rank) : QString::number(rank);
  });
  column->addWidget(rank_map_, 1);
  connect(rank_measure_, &QComboBox::activated, this, &TimelinePage::sum_up);
  connect(rank_map_, &RankMap::picked, this, [this](std::int64_t rank) { go_to(std::nullopt, rank); });
  return out;
}

void TimelinePage::fill_measures() {
  rank_measure_->clear();
  if (!session_.run(0)) return;
  const TimelineHead& t = session_.run(0)->timeline();
  for (const RankMeasure& m : rank_measures(t)) rank_measure_->addItem(name_of(m, t));
}

QWidget* TimelinePage::build_expert_map() {
  const auto [out, column, bar] = pane_with_bar();
  expert_group_ = new QComboBox;
  expert_group_->setAccessibleName(tr("Ranks that share experts"));
  expert_rows_ = new QComboBox;
  expert_rows_->setAccessibleName(tr("Rows of the map"));
  expert_rows_->addItem(tr("by rank"), static_cast<int>(ExpertMap::By::kRank));
  expert_rows_->addItem(tr("by expert"), static_cast<int>(ExpertMap::By::kExpert));
  bar->addWidget(expert_group_);
  bar->addWidget(expert_rows_);
  bar->addSpacing(8);
  experts_label_ = wrapped({});
  bar->addWidget(experts_label_, 1);
  expert_map_ = new ExpertMap(session_.time());
  expert_map_->set_sides(views_[0]->label_width(), views_[0]->verticalScrollBar()->sizeHint().width());
  column->addWidget(expert_map_, 1);
  connect(expert_group_, &QComboBox::activated, this, [this](int group) {
    expert_map_->set_group(group);
    say_fullest();
  });
  connect(expert_rows_, &QComboBox::activated, this, [this] {
    expert_map_->set_by(static_cast<ExpertMap::By>(expert_rows_->currentData().toInt()));
    say_fullest();
  });
  connect(expert_map_, &ExpertMap::picked, this, [this](std::int64_t rank) { go_to(std::nullopt, rank); });
  return out;
}

void TimelinePage::fill_experts() {
  expert_map_->set_run(session_.run(0));
  expert_group_->clear();
  expert_group_->addItems(expert_map_->group_names());
  expert_group_->setVisible(expert_group_->count() > 1);
  say_fullest();
}

// What people look for first.
void TimelinePage::say_fullest() {
  const RunPtr& run = session_.run(0);
  const auto fullest = expert_map_->fullest();
  if (!run || !fullest) return experts_label_->clear();
  const std::int32_t left_out = run->timeline().experts.left_out;
  experts_label_->setText(
      (kind_of(run->timeline()) == "predicted" ? tr("Tokens of experts, one draw of the scenario's "
                                                    "expert_load; times are those of the mean load.")
                                               : tr("Tokens of experts, counted.")) +
      " " + tr("Most in what is shown: %1.").arg(expert_map_->text_of(*fullest)) +
      (left_out > 0 ? " " + tr("Too many to keep: the last %L1 micro-batches are left out.").arg(left_out)
                    : QString()));
}

void TimelinePage::sum_up_soon() {
  soon_.start();
}

// For the panes that are seen.
void TimelinePage::sum_up() {
  const RunPtr run = session_.run(0);
  if (!expert_map_->visibleRegion().isEmpty()) say_fullest();
  const std::vector<RankMeasure> measures = run ? rank_measures(run->timeline()) : std::vector<RankMeasure>{};
  if (measures.empty()) return;
  const TimeView& time = session_.time();
  const auto [from, to] =
      time.selection() ? *time.selection() : TimeView::Range{time.axis().from(), time.axis().to()};
  const auto which = static_cast<std::size_t>(std::max(0, rank_measure_->currentIndex()));
  const Summed asked{.run = run.get(),
                     .from = from,
                     .to = to,
                     .measure = measures[std::min(which, measures.size() - 1)],
                     .apart = layers_apart_->isChecked(),
                     .layers = !op_tree_->visibleRegion().isEmpty(),
                     .ranks = !rank_map_->visibleRegion().isEmpty()};
  if (asked == summed_ || (!asked.layers && !asked.ranks)) return;
  summed_ = asked;
  struct Sums {
    sim::OpNode ops;
    std::vector<double> ranks;
  };
  session_.jobs().start(
      "by layer",
      [run, asked](Job& job) {
        Sums sums;
        if (asked.layers)
          sums.ops = sim::op_tree(run->lanes, sim::whole(run->lanes, asked.from, asked.to), asked.apart,
                                  [&] { job.go_on(); });
        if (asked.ranks) sums.ranks = rank_values(run->lanes, asked.measure, asked.from, asked.to);
        return sums;
      },
      [this, run, asked](Sums sums) {
        if (asked.layers) op_tree_->set(std::move(sums.ops));
        if (asked.ranks)
          rank_map_->set(std::move(sums.ranks), run->timeline().node_ranks,
                         asked.measure.what == RankMeasure::What::kMemory);
      });
}

void TimelinePage::add_bookmark() {
  const TimeAxis& axis = session_.time().axis();
  if (!session_.run(0)) return;
  const auto selection = session_.time().selection();
  const Time from = selection ? selection->first : axis.from(),
             to = selection ? selection->second : axis.to();
  bookmarked_.push_back({tr("bookmark %1").arg(bookmarked_.size() + 1), from, to});
  save_bookmarks();
  fill_bookmarks();
  panes_->bring(bookmarks_);
}

void TimelinePage::load_bookmarks() {
  bookmarked_.clear();
  if (session_.run(0)) {
    QSettings settings;
    const int count = settings.beginReadArray("bookmarks/" + session_.run(0)->name);
    for (int i = 0; i < count; ++i) {
      settings.setArrayIndex(i);
      bookmarked_.push_back({settings.value("name").toString(), Time{settings.value("from").toLongLong()},
                             Time{settings.value("to").toLongLong()}});
    }
  }
  fill_bookmarks();
}

void TimelinePage::save_bookmarks() const {
  QSettings settings;
  settings.beginWriteArray("bookmarks/" + session_.run(0)->name, static_cast<int>(bookmarked_.size()));
  for (std::size_t i = 0; i < bookmarked_.size(); ++i) {
    settings.setArrayIndex(static_cast<int>(i));
    settings.setValue("name", bookmarked_[i].name);
    settings.setValue("from", static_cast<qlonglong>(bookmarked_[i].from.value));
    settings.setValue("to", static_cast<qlonglong>(bookmarked_[i].to.value));
  }
  settings.endArray();
}

void TimelinePage::fill_bookmarks() {
  std::vector<std::vector<Cell>> rows;
  for (const Bookmark& b : bookmarked_)
    rows.push_back({b.name, {text(b.from), seconds(b.from)}, {text(b.to), seconds(b.to)}});
  bookmarks_->fill(rows);
}

}  // namespace orrery::gui
