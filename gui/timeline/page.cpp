// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/page.h"

#include <QHBoxLayout>
#include <QPainter>
#include <QSettings>
#include <QVBoxLayout>
#include <algorithm>

namespace orrery::gui {
namespace {

QString text(Time t) {
  return QString::fromStdString(format(t));
}

QString percent(Time part, Time whole) {
  return whole.value > 0 ? QString::number(100 * ratio(part, whole), 'f', 1) + " %" : QString("-");
}

// The colours of Colouring::kKind with their words.
class LegendBar : public QWidget {
 public:
  using QWidget::QWidget;
  QSize sizeHint() const override {
    int width = 0;
    for (const Meaning& m : legend(Theme::of(palette())))
      width += fontMetrics().horizontalAdvance(m.text) + 26;
    return {width, fontMetrics().height() + 4};
  }

 protected:
  void paintEvent(QPaintEvent*) override {
    QPainter painter(this);
    int x = 0;
    for (const Meaning& m : legend(Theme::of(palette()))) {
      painter.fillRect(x, (height() - 11) / 2, 11, 11, m.colour);
      painter.setPen(palette().color(QPalette::WindowText));
      painter.drawText(x + 15, (height() + fontMetrics().ascent() - fontMetrics().descent()) / 2, m.text);
      x += fontMetrics().horizontalAdvance(m.text) + 26;
    }
  }
};

std::vector<std::uint32_t> slices_named(const sim::Lanes& lanes, const std::vector<bool>& names) {
  const auto& slices = lanes.timeline().slices;
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (names[static_cast<std::size_t>(slices[i].name)]) out.push_back(static_cast<std::uint32_t>(i));
  }
  std::stable_sort(out.begin(), out.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return slices[a].start < slices[b].start; });
  return out;
}

std::vector<bool> names_with(const Timeline& t, const QString& wanted) {
  std::vector<bool> out;
  for (const std::string& name : t.names)
    out.push_back(QString::fromStdString(name).contains(wanted, Qt::CaseInsensitive));
  return out;
}

std::vector<std::vector<sim::Link>> by_lane(const sim::Lanes& lanes, const std::vector<sim::Link>& path) {
  std::vector<std::vector<sim::Link>> out(lanes.all().size());
  for (const sim::Link& link : path) {
    const auto after = std::partition_point(lanes.all().begin(), lanes.all().end(),
                                            [&](const sim::Lane& l) { return l.first <= link.slice; });
    out[static_cast<std::size_t>(after - lanes.all().begin()) - 1].push_back(link);
  }
  return out;
}

}  // namespace

TimelinePage::TimelinePage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(0);
  build_bar();
  auto* split = new QSplitter(Qt::Vertical);
  split->setObjectName("timeline split");
  stack_ = new QSplitter(Qt::Vertical);
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
  build_details();
  split->addWidget(stack_);
  split->addWidget(details_);
  split->setStretchFactor(0, 3);
  split->setStretchFactor(1, 1);
  split->setSizes({520, 220});
  layout->addWidget(split, 1);
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
  row->addWidget(new LegendBar);
  layout()->addWidget(bar);
  connect(grouping_, &QComboBox::activated, this, [this] {
    for (TimelineView* v : views_) v->set_grouping(static_cast<Grouping>(grouping_->currentData().toInt()));
  });
  connect(colouring_, &QComboBox::currentIndexChanged, this, [this] {
    for (TimelineView* v : views_)
      v->set_colouring(static_cast<Colouring>(colouring_->currentData().toInt()));
  });
  connect(search_, &QLineEdit::textChanged, this, &TimelinePage::find);
  connect(search_, &QLineEdit::returnPressed, this, [this] { find_next(1); });
  connect(next, &QToolButton::clicked, this, [this] { find_next(1); });
  connect(previous, &QToolButton::clicked, this, [this] { find_next(-1); });
  connect(path_button_, &QToolButton::toggled, this, &TimelinePage::show_critical_path);
}

void TimelinePage::build_details() {
  details_ = new QTabWidget;
  details_->setDocumentMode(true);
  slice_ = new QTextBrowser;
  slice_->setAccessibleName(tr("Selected slice"));
  slice_->setFrameShape(QFrame::NoFrame);
  slice_->setHtml(tr("<p style='color:gray'>Click a slice to see it; drag over rows to sum them up.</p>"));
  details_->addTab(slice_, tr("Slice"));

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
                {tr("op"), tr("stream"), tr("count"), tr("working"), tr("waiting"), tr("bytes"), tr("rate")});
  details_->addTab(with_label(part_label_, statistics_), tr("Selection"));
  differences_ =
      new Table(tr("Difference of the two runs"), {tr("op"), tr("limited by"), tr("count"), tr("above"),
                                                   tr("below"), tr("below - above"), tr("above / below")});
  details_->addTab(with_label(difference_label_, differences_), tr("Difference"));
  bookmarks_ = new Table(tr("Bookmarks"), {tr("bookmark"), tr("from"), tr("to")});
  details_->addTab(bookmarks_, tr("Bookmarks"));
  connect(bookmarks_, &QTableWidget::cellClicked, this, [this](int row, int) {
    const int n = bookmarks_->number(row);
    if (n < 0) return;
    const Bookmark& b = bookmarked_[static_cast<std::size_t>(n)];
    session_.time().change([&](TimeAxis& a) { a.show(b.from, b.to); });
  });
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
    slice_->clear();
    statistics_->fill({});
    part_label_->clear();
    fill_groupings();
    load_bookmarks();
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
        for (const auto& [root, parts] : wanted) {
          if (job.cancelled()) throw Job::Cancelled{};
          bins[root] = bins_of(run->lanes, parts);
        }
        return bins;
      },
      [this, which](std::map<std::size_t, std::vector<float>> bins) {
        views_[which]->set_bins(std::move(bins));
      });
}

// Of large timelines that takes a second, which nobody waits for.
void TimelinePage::find_meetings(std::size_t which) {
  const RunPtr run = session_.run(which);
  if (!run) return;
  session_.jobs().start(
      which == 0 ? "partners" : "partners beside",
      [run](Job&) { return std::make_shared<const sim::Meetings>(run->lanes); },
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
    const Slice& s = session_.run(0)->timeline().slices[*slice];
    const Time margin = (s.end - s.start) / 5;
    time.change([&](TimeAxis& a) { a.show(s.start - margin, s.end + margin); });
  } else {
    time.change([](TimeAxis& a) { a.show_all(); });
  }
}

void TimelinePage::find(const QString& wanted) {
  hits_.clear();
  hit_ = -1;
  hit_label_->clear();
  emphasise();
  if (search_->text() != wanted) search_->setText(wanted);  // comes back here
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
  path_button_->setChecked(show);
  path_.clear();
  emphasise();
  const RunPtr run = session_.run(0);
  if (!show || !run) return;
  session_.jobs().start(
      "critical path", [run](Job&) { return sim::critical_path(run->lanes, sim::Meetings(run->lanes)); },
      [this, run](const std::vector<sim::Link>& path) {
        if (run != session_.run(0)) return;
        path_ = by_lane(run->lanes, path);
        path_gaps_ = Time{0};
        for (const sim::Link& link : path) path_gaps_ += link.gap;
        emphasise();
        slice_->setHtml(tr("<p>Critical path: %L1 ops, %2 of them running, %3 in gaps between them.</p>")
                            .arg(path.size())
                            .arg(text(run->lanes.end() - run->lanes.begin() - path_gaps_), text(path_gaps_)));
        details_->setCurrentWidget(slice_);
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

void TimelinePage::show_slice(std::size_t which, std::size_t slice) {
  const RunPtr& run = session_.run(which);
  const Timeline& t = run->timeline();
  const Slice& s = t.slices[slice];
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
      const Slice& o = other->timeline().slices[*there];
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
  details_->setCurrentWidget(slice_);
}

void TimelinePage::show_part(std::size_t which, const sim::Part& part) {
  const RunPtr run = session_.run(which);
  session_.jobs().start(
      "statistics", [run, part](Job&) { return sim::statistics(run->lanes, part); },
      [this, run](const sim::Statistics& s) { show_statistics(s, run->timeline()); });
}

void TimelinePage::show_statistics(const sim::Statistics& s, const Timeline& timeline) {
  QStringList idle;
  for (const sim::Idle& i : s.idle)
    idle << tr("%1 %2").arg(QString::fromStdString(i.cause), percent(i.time, s.window));
  part_label_->setText(
      tr("<b>compute %1</b> of %2 (all rows together) · communication not hidden by compute %3, "
         "hidden %4 · compute waited for: %5")
          .arg(percent(s.compute, s.window), text(s.window), text(s.exposed), text(s.hidden),
               idle.isEmpty() ? tr("nothing") : idle.join(", ")));
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
  details_->setCurrentIndex(1);
}

void TimelinePage::compare_runs() {
  differences_->fill({});
  difference_label_->setText(tr("Lay a second run beside the first to see what differs."));
  const RunPtr a = session_.run(0), b = session_.run(1);
  if (!a || !b) return;
  session_.jobs().start(
      "compare", [a, b](Job&) { return sim::compare(a->timeline(), b->timeline()); },
      [this](const sim::Comparison& c) { show_difference(c); });
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
  details_->setCurrentIndex(2);
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
  details_->setCurrentWidget(bookmarks_);
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
