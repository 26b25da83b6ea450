// SPDX-License-Identifier: Apache-2.0
#include "gui/memory/page.h"

#include <QSplitter>
#include <QVBoxLayout>
#include <algorithm>

#include "gui/legend.h"
#include "gui/timeline/rows.h"
#include "sim/analysis/twins.h"

namespace orrery::gui {
namespace {

// The colours of the classes, in the order in which they are stacked.
std::vector<Meaning> class_colours(const Theme& theme) {
  std::vector<Meaning> out;
  for (std::size_t c = 0; c <= kMemoryClasses; ++c)
    out.push_back({theme.series(c), c < kMemoryClasses ? kMemoryClassNames[c] : "context and allocator"});
  return out;
}

}  // namespace

MemoryPage::MemoryPage(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  column->addWidget(new Legend(class_colours, MemoryView::kLabelWidth));
  auto* split = new QSplitter(Qt::Vertical);
  split->setObjectName("memory split");
  view_ = new MemoryView(session_.time());
  split->addWidget(view_);
  auto* below = new QWidget;
  auto* in_below = new QVBoxLayout(below);
  in_below->setContentsMargins(8, 6, 8, 0);
  words_ = new QLabel;
  words_->setWordWrap(true);
  words_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  in_below->addWidget(words_);
  buffers_ = new Table(tr("Buffers at the peak"),
                       {tr("buffer"), tr("class"), tr("copies"), tr("bytes"), tr("share of the peak, %")},
                       tr("Click a row of the picture to see what makes its peak."));
  in_below->addWidget(buffers_, 1);
  split->addWidget(below);
  split->setSizes({520, 260});
  column->addWidget(split, 1);
  connect(&session_, &Session::runs_changed, this, &MemoryPage::runs_changed);
  connect(view_, &MemoryView::process_selected, this, &MemoryPage::show_process);
}

void MemoryPage::runs_changed() {
  const RunPtr& run = session_.run(0);
  Overheads overheads;
  const EvaluatedPtr& e = session_.evaluated();
  if (run && e && e->run == run) {
    const Problem& problem = *session_.problem();
    const auto types = sim::node_types_by_stage(problem.cluster, e->evaluation.program.mesh);
    const auto& stages = e->evaluation.predicted.memory;
    for (const sim::PlaceReport& place : e->evaluation.simulation.places) {
      overheads.capacity.push_back(sim::memory_of(problem.devices, sim::types_of(types, place.stage)).value);
      overheads.bytes.push_back(stages[static_cast<std::size_t>(place.stage)].overhead);
    }
  }
  session_.jobs().cancel("peak");
  words_->clear();
  buffers_->fill({});
  view_->set_run(run, std::move(overheads));
}

void MemoryPage::show_process(std::int32_t process) {
  const MemoryPoint* peak = view_->peak(process);
  if (!peak) return;
  const QString who = Rows::process_label(session_.run(0)->timeline(), process);
  QString words = tr("<b>%1</b>: %2 live at the peak, at %3")
                      .arg(who.toHtmlEscaped(), QString::fromStdString(format(Bytes{peak->total()})),
                           QString::fromStdString(format(peak->at)));
  if (const std::int64_t over = view_->overhead(process); over > 0)
    words += tr(", %1 with context, communicators and what the allocator wastes")
                 .arg(QString::fromStdString(format(Bytes{peak->total() + over})));
  if (const std::int64_t capacity = view_->capacity(process); capacity > 0) {
    const std::int64_t room = capacity - peak->total() - view_->overhead(process);
    words +=
        room >= 0
            ? tr("; %1 of the device are free then").arg(QString::fromStdString(format(Bytes{room})))
            : tr("; <b>%1 more than the device has</b>").arg(QString::fromStdString(format(Bytes{-room})));
  }
  buffers_->fill({});
  const EvaluatedPtr e = session_.evaluated();
  if (!e || e->run != session_.run(0)) {
    words_->setText(words + tr(". Open the plan to see which buffers make it."));
    return;
  }
  words_->setText(words + ".");
  const auto stage = static_cast<std::size_t>(sim::Stages(e->run->timeline())(process));
  session_.jobs().start(
      "peak", [e, stage](Job&) { return program::find_peak(e->evaluation.program.classes[stage]); },
      [this, e, stage, words](const program::Peak& found) {
        show_peak(e->evaluation.program.classes[stage], found, words);
      });
}

void MemoryPage::show_peak(const program::RankClass& rank, const program::Peak& peak, const QString& words) {
  const program::Step& step = rank.steps[static_cast<std::size_t>(peak.step)];
  const program::Segment& segment = rank.segments[static_cast<std::size_t>(step.segment)];
  const program::Op& op = segment.ops[static_cast<std::size_t>(peak.op)];
  words_->setText(
      words +
      tr("; during %1.").arg(QString::fromStdString(program::describe_op(rank, step, op)).toHtmlEscaped()));
  std::vector<std::vector<Cell>> rows;
  for (const program::LiveBuffer& b : peak.buffers) {
    const program::Buffer& buffer = rank.buffers[static_cast<std::size_t>(b.buffer)];
    const double share = 100 * ratio(b.bytes, rank.logical_peak);
    rows.push_back({QString::fromStdString(buffer.name),
                    QString(program::kBufferClassNames[static_cast<std::size_t>(buffer.cls)]),
                    {QString::number(b.copies), static_cast<double>(b.copies)},
                    {QString::fromStdString(format(b.bytes)), static_cast<double>(b.bytes.value)},
                    {QString::number(share, 'f', 2), share}});
  }
  buffers_->fill(rows);
}

}  // namespace orrery::gui
