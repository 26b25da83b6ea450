// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/rank_map.h"

#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>
#include <limits>

#include "gui/heat.h"
#include "gui/text.h"
#include "sim/analysis/statistics.h"

namespace orrery::gui {
namespace {

constexpr int kMargin = 8, kScale = 22;  // pixels around the cells; of the line that explains colours
constexpr int kLargestCell = 28;

constexpr double kNotRecorded = std::numeric_limits<double>::quiet_NaN();

double share_of(const sim::Lanes& lanes, std::int32_t process, const RankMeasure& m, Time from, Time to) {
  Time sum{0};
  const auto of = lanes.of(process);
  if (of.empty()) return kNotRecorded;
  for (const sim::Lane& lane : of) {
    if (lane.stream != m.stream) continue;
    const sim::LaneSlices slices = lanes.slices(lane);
    const std::size_t first = slices.first_after(from), last = slices.first_from(first, to);
    if (last <= first) continue;
    const Time waiting = slices.waiting_of(first, last, from, to);
    sum += m.what == RankMeasure::What::kWaiting ? waiting : slices.busy_of(first, last, from, to) - waiting;
  }
  return ratio(sum, std::max(Time{1}, to - from));
}

// By process: the most that is live between two times.
std::vector<double> memory_of(const TimelineHead& t, std::size_t processes, Time from, Time to) {
  std::vector<double> out(processes, kNotRecorded);
  for (std::size_t i = 0; i < t.memory.size(); ++i) {
    const MemoryPoint& p = t.memory[i];
    const bool followed = i + 1 < t.memory.size() && t.memory[i + 1].rank == p.rank;
    if (p.at >= to || (followed && t.memory[i + 1].at <= from)) continue;
    double& most = out[static_cast<std::size_t>(p.rank)];
    most = std::fmax(most, static_cast<double>(p.total()));
  }
  return out;
}

}  // namespace

std::vector<RankMeasure> rank_measures(const TimelineHead& timeline) {
  std::vector<RankMeasure> out;
  for (std::size_t s = 0; s < timeline.streams.size(); ++s) {
    const auto stream = static_cast<std::int32_t>(s);
    out.push_back({RankMeasure::What::kWorking, stream});
    const bool computes = s == 0 && !sim::told_by_class(timeline);  // which waits for nobody
    if (!computes) out.push_back({RankMeasure::What::kWaiting, stream});
  }
  if (!timeline.memory.empty()) out.push_back({RankMeasure::What::kMemory, 0});
  return out;
}

QString name_of(const RankMeasure& m, const TimelineHead& timeline) {
  if (m.what == RankMeasure::What::kMemory) return QObject::tr("memory: most live bytes");
  const QString stream = QString::fromStdString(timeline.streams[static_cast<std::size_t>(m.stream)]);
  return m.what == RankMeasure::What::kWorking ? QObject::tr("%1: working").arg(stream)
                                               : QObject::tr("%1: waiting for partners").arg(stream);
}

std::vector<double> rank_values(const sim::Lanes& lanes, const RankMeasure& m, Time from, Time to) {
  const TimelineHead& t = lanes.timeline();
  std::size_t processes = t.rank_labels.size();
  for (const sim::Lane& lane : lanes.all())
    processes = std::max(processes, static_cast<std::size_t>(lane.rank) + 1);
  for (const MemoryPoint& p : t.memory) processes = std::max(processes, static_cast<std::size_t>(p.rank) + 1);
  std::vector<double> by_process(processes);
  if (m.what == RankMeasure::What::kMemory) {
    by_process = memory_of(t, processes, from, to);
  } else {
    for (std::size_t p = 0; p < processes; ++p)
      by_process[p] = share_of(lanes, static_cast<std::int32_t>(p), m, from, to);
  }
  if (t.process_of.empty()) return by_process;
  std::vector<double> out;
  out.reserve(t.process_of.size());
  for (const std::int32_t p : t.process_of) out.push_back(by_process[static_cast<std::size_t>(p)]);
  return out;
}

RankMap::RankMap(QWidget* parent) : QWidget(parent) {
  setAccessibleName(tr("Ranks"));
  setMinimumHeight(80);
}

void RankMap::set(std::vector<double> values, std::int64_t node_ranks, bool bytes) {
  values_ = std::move(values);
  node_ranks_ = node_ranks;
  bytes_ = bytes;
  lay_out();
  update();
}

void RankMap::lay_out() {
  const int n = std::max(1, static_cast<int>(values_.size()));
  const int wide = std::max(1, width() - 2 * kMargin), high = std::max(1, height() - 2 * kMargin - kScale);
  const int unit = node_ranks_ > 0 && node_ranks_ <= wide ? static_cast<int>(node_ranks_) : 1;
  Grid best{unit, 1};
  for (int columns = unit; columns <= wide && columns < n + unit; columns += unit) {
    const int rows = (n + columns - 1) / columns;
    const int size = std::min({wide / columns, high / rows, kLargestCell});
    if (size > best.size) best = {columns, size};
  }
  if (best.size == 1) best.columns = std::max(unit, wide / unit * unit);
  grid_ = best;
}

void RankMap::resizeEvent(QResizeEvent*) {
  lay_out();
}

QRect RankMap::cell(std::int64_t rank) const {
  const Grid& g = grid_;
  const auto column = static_cast<int>(rank % g.columns), row = static_cast<int>(rank / g.columns);
  return {kMargin + column * g.size, kMargin + kScale + row * g.size, g.size, g.size};
}

std::int64_t RankMap::rank_at(const QPoint& position) const {
  const Grid& g = grid_;
  const int column = (position.x() - kMargin) / g.size, row = (position.y() - kMargin - kScale) / g.size;
  if (position.x() < kMargin || position.y() < kMargin + kScale || column >= g.columns) return -1;
  const std::int64_t rank = std::int64_t{row} * g.columns + column;
  return rank < std::ssize(values_) ? rank : -1;
}

QString RankMap::text_of(double value) const {
  if (std::isnan(value)) return tr("not recorded");
  return bytes_ ? text(Bytes{std::llround(value)}) : number(100 * value, 1) + " %";
}

void RankMap::paintEvent(QPaintEvent*) {
  const Theme theme = Theme::of(palette());
  QPainter painter(this);
  painter.fillRect(rect(), theme.background);
  if (values_.empty()) {
    painter.setPen(theme.faint_text);
    painter.drawText(rect(), Qt::AlignCenter, tr("Ranks come here once a timeline is open."));
    return;
  }
  // From pale to dark over what there is, so that small differences show; the scale says between what.
  std::vector<double> known = values_;
  std::erase_if(known, [](double v) { return std::isnan(v); });
  if (known.empty()) known.push_back(0);
  const auto [low, high] = std::minmax_element(known.begin(), known.end());
  const double range = *high - *low;
  const bool flat = range <= 1e-9 * std::max(1.0, std::abs(*high));
  const QString least = text_of(*low);
  if (flat)
    draw_heat_alike(painter, theme, {kMargin, kMargin}, tr("%1 on all ranks").arg(least));
  else
    draw_heat_scale(painter, theme, {kMargin, kMargin}, least, text_of(*high));
  const Grid& g = grid_;
  const int gap = g.size >= 6 ? 1 : 0;
  for (std::size_t r = 0; r < values_.size(); ++r) {
    const QRect c = cell(static_cast<std::int64_t>(r));
    if (c.top() > height()) break;
    if (std::isnan(values_[r])) continue;
    painter.fillRect(c.adjusted(0, 0, -gap, -gap), heat(theme, flat ? 0.4 : (values_[r] - *low) / range));
  }
  // Between nodes.
  if (node_ranks_ > 1 && g.size >= 3 && g.columns % node_ranks_ == 0) {
    painter.setPen(theme.background);
    const auto rows = static_cast<int>((values_.size() + static_cast<std::size_t>(g.columns) - 1) /
                                       static_cast<std::size_t>(g.columns));
    for (std::int64_t column = node_ranks_; column < g.columns; column += node_ranks_) {
      const int x = kMargin + static_cast<int>(column) * g.size - 1;
      painter.drawLine(x, kMargin + kScale, x, kMargin + kScale + rows * g.size);
    }
  }
}

void RankMap::mousePressEvent(QMouseEvent* event) {
  if (const std::int64_t rank = rank_at(event->pos()); rank >= 0) Q_EMIT picked(rank);
}

bool RankMap::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const std::int64_t rank = rank_at(help->pos());
    if (rank < 0)
      QToolTip::hideText();
    else
      QToolTip::showText(help->globalPos(),
                         plain_tip((label_ ? label_(rank) : QString::number(rank)) + ": " +
                                   text_of(values_[static_cast<std::size_t>(rank)])),
                         this, cell(rank));
    return true;
  }
  return QWidget::event(event);
}

}  // namespace orrery::gui
