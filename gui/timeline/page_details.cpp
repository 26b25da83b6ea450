// SPDX-License-Identifier: Apache-2.0
//
// What stands below a timeline: the selected slice, sums over a part, how two runs differ, bookmarks.
#include <QSettings>
#include <QVBoxLayout>
#include <algorithm>

#include "gui/text.h"
#include "gui/timeline/page.h"

namespace orrery::gui {
namespace {

QString percent(Time part, Time whole) {
  return whole.value > 0 ? QString::number(100 * ratio(part, whole), 'f', 1) + " %" : QString("-");
}

}  // namespace

void TimelinePage::build_details() {
  details_ = new QTabWidget;
  details_->setDocumentMode(true);
  slice_ = new QTextBrowser;
  slice_->setAccessibleName(tr("Selected slice"));
  slice_->setFrameShape(QFrame::NoFrame);
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
  clear_details();
}

void TimelinePage::clear_details() {
  slice_->setHtml(tr("<p style='color:gray'>Click a slice to see it.</p>"));
  statistics_->fill({});
  part_label_->setText(tr("Drag over rows to sum up what they did."));
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
    idle << tr("%1 %2").arg(QString::fromStdString(i.cause).toHtmlEscaped(), percent(i.time, s.window));
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
  session_.jobs().cancel("compare");
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

}  // namespace orrery::gui
