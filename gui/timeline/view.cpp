// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/view.h"

#include <QEvent>
#include <QPainterPath>
#include <QScrollBar>
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace orrery::gui {
namespace {

constexpr int kIndent = 14;
constexpr std::size_t kMostArrows = 64;

}  // namespace

TimelineView::TimelineView(TimeView& time, QWidget* parent)
    : QAbstractScrollArea(parent), time_(time), theme_(Theme::of(palette())) {
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOn);
  setFrameShape(QFrame::NoFrame);
  setFocusPolicy(Qt::StrongFocus);
  setAccessibleName(tr("Timeline"));
  viewport()->setMouseTracking(true);
  viewport()->setAttribute(Qt::WA_OpaquePaintEvent);
  setMinimumHeight(120);
  const auto update = [this] { viewport()->update(); };
  connect(&time_, &TimeView::axis_changed, this, update);
  connect(&time_, &TimeView::cursor_changed, this, update);
  connect(&time_, &TimeView::selection_changed, this, update);
}

TimelineView::~TimelineView() = default;

void TimelineView::set_run(RunPtr run) {
  run_ = std::move(run);
  selected_.reset();
  partners_.clear();
  meetings_ = nullptr;
  emphasis_ = {};
  if (run_) {
    const auto choices = Rows::groupings(run_->timeline());
    if (std::find(choices.begin(), choices.end(), grouping_) == choices.end()) grouping_ = choices.front();
  }
  rebuild_rows();
}

void TimelineView::set_grouping(Grouping grouping) {
  grouping_ = grouping;
  rebuild_rows();
}

void TimelineView::set_colouring(Colouring colouring) {
  colouring_ = colouring;
  repaint_tracks();
}

void TimelineView::set_emphasis(Emphasis emphasis) {
  emphasis_ = std::move(emphasis);
  ++version_;
  viewport()->update();
}

void TimelineView::rebuild_rows() {
  rows_ = run_ ? std::make_unique<Rows>(run_->lanes, grouping_) : nullptr;
  repaint_tracks();
  verticalScrollBar()->setValue(0);
  rows_changed();
  Q_EMIT rows_rebuilt();
}

void TimelineView::set_bins(std::map<std::size_t, std::vector<float>> bins) {
  for (auto& [root, of_row] : bins) rows_->roots()[root]->bins = std::move(of_row);
  ++version_;
  viewport()->update();
}

void TimelineView::repaint_tracks() {
  tracks_ = run_ ? std::make_unique<Tracks>(run_->lanes, theme_, colouring_) : nullptr;
  ++version_;
  viewport()->update();
}

void TimelineView::rows_changed() {
  ++version_;
  const int height = viewport()->height() - kRulerHeight;
  const int rows = rows_ ? static_cast<int>(rows_->visible().size()) : 0;
  verticalScrollBar()->setRange(0, std::max(0, rows * kRowHeight - height));
  verticalScrollBar()->setPageStep(std::max(1, height));
  verticalScrollBar()->setSingleStep(kRowHeight);
  viewport()->update();
}

int TimelineView::tracks_width() const {
  return std::max(1, viewport()->width() - label_width_);
}

int TimelineView::first_row() const {
  return verticalScrollBar()->value() / kRowHeight;
}

int TimelineView::row_top(int row) const {
  return kRulerHeight + row * kRowHeight - verticalScrollBar()->value();
}

int TimelineView::row_at(int y) const {
  if (!rows_ || y < kRulerHeight) return -1;
  const int row = (y - kRulerHeight + verticalScrollBar()->value()) / kRowHeight;
  return row < static_cast<int>(rows_->visible().size()) ? row : -1;
}

int TimelineView::row_of_lane(std::size_t lane) const {
  const auto& rows = rows_->visible();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i]->kind == Row::Kind::kLane && rows[i]->lane == lane) return static_cast<int>(i);
  }
  return -1;
}

std::optional<std::size_t> TimelineView::slice_at(const QPoint& position) const {
  const int row = row_at(position.y());
  if (row < 0 || position.x() < label_width_) return std::nullopt;
  const Row& r = *rows_->visible()[static_cast<std::size_t>(row)];
  if (r.kind != Row::Kind::kLane) return std::nullopt;
  // As its column shows it, or one beside.
  constexpr int kReach = 2;
  const TimeAxis& axis = time_.axis();
  const int x = position.x() - label_width_;
  std::array<Time, 2 * kReach + 2> edges;
  for (int i = 0; i < static_cast<int>(edges.size()); ++i)
    edges[static_cast<std::size_t>(i)] = std::max(axis.begin(), axis.time_at(x - kReach + i));
  std::array<Column, 2 * kReach + 1> columns;
  const sim::Lane& lane = run_->lanes.all()[r.lane];
  find_columns(run_->lanes, lane, edges, columns);
  for (const int i : {kReach, kReach - 1, kReach + 1, kReach - 2, kReach + 2}) {
    if (const Column& c = columns[static_cast<std::size_t>(i)]; c.slice >= 0)
      return lane.first + static_cast<std::size_t>(c.slice);
  }
  return std::nullopt;
}

void TimelineView::select(std::optional<std::size_t> slice) {
  selected_ = slice;
  partners_.clear();
  if (slice && run_) {
    const Slice s = run_->lanes.slice(*slice);
    find_partners();
    if (row_of_lane(run_->lanes.lane_of(*slice)) < 0) reveal(s.rank, -1, s.stream);
    if (s.end <= time_.axis().from() || s.start >= time_.axis().to()) {
      const Time middle = s.start + (s.end - s.start) / 2, span = time_.axis().span();
      time_.change([&](TimeAxis& a) { a.show(middle - span / 2, middle - span / 2 + span); });
    }
    Q_EMIT slice_selected(*slice);
  }
  viewport()->update();
}

void TimelineView::set_meetings(std::shared_ptr<const sim::Meetings> meetings) {
  meetings_ = std::move(meetings);
  find_partners();
}

void TimelineView::find_partners() {
  partners_.clear();
  if (selected_ && meetings_) partners_ = meetings_->partners(*selected_, kMostArrows);
  viewport()->update();
}

void TimelineView::reveal(std::int32_t process, std::int64_t rank, std::int32_t stream) {
  if (!rows_) return;
  const int row = rows_->reveal(process, rank, stream);
  rows_changed();
  if (row < 0) return;
  const int top = row * kRowHeight, height = viewport()->height() - kRulerHeight;
  QScrollBar& bar = *verticalScrollBar();
  if (top < bar.value() || top + kRowHeight > bar.value() + height) bar.setValue(top - height / 3);
}

void TimelineView::step(int by) {
  if (!selected_) return;
  const sim::Lane& lane = run_->lanes.all()[run_->lanes.lane_of(*selected_)];
  const auto at = static_cast<std::int64_t>(*selected_ - lane.first) + by;
  if (at >= 0 && at < static_cast<std::int64_t>(lane.count))
    select(lane.first + static_cast<std::size_t>(at));
}

void TimelineView::set_open(Row& row, bool open) {
  rows_->set_open(row, open);
  rows_changed();
}

void TimelineView::set_all_open(bool open) {
  if (!rows_) return;
  const std::vector<Row*> before = rows_->visible();
  for (Row* row : before) {
    if (row->depth == 0) rows_->set_open(*row, open);
  }
  rows_changed();
}

std::vector<std::int32_t> TimelineView::processes_between(int y1, int y2) const {
  std::set<std::int32_t> out;
  if (!rows_ || rows_->visible().empty()) return {};
  const auto [top, bottom] = std::minmax(y1, y2);
  const int rows = static_cast<int>(rows_->visible().size());
  const int first = std::clamp((top - kRulerHeight + verticalScrollBar()->value()) / kRowHeight, 0, rows - 1);
  const int last =
      std::clamp((bottom - kRulerHeight + verticalScrollBar()->value()) / kRowHeight, 0, rows - 1);
  for (int i = first; i <= last; ++i) {
    const Row& row = *rows_->visible()[static_cast<std::size_t>(i)];
    if (row.process >= 0) out.insert(row.process);
    for (const Row::Part& part : row.parts) out.insert(run_->lanes.all()[part.lane].rank);
  }
  return {out.begin(), out.end()};
}

QRectF TimelineView::slice_rect(std::size_t slice) const {
  const int row = row_of_lane(run_->lanes.lane_of(slice));
  if (row < 0) return {};
  const Slice s = run_->lanes.slice(slice);
  const double left = time_.axis().x_of(s.start), right = time_.axis().x_of(s.end);
  return {label_width_ + left, row_top(row) + 1.5, std::max(2.0, right - left), kRowHeight - 4.0};
}

void TimelineView::draw_title(QPainter& painter) const {
  draw_ruler(painter, time_.axis(), label_width_, theme_);
  painter.setPen(theme_.text);
  const QString name = run_ ? run_->name : QString();
  painter.drawText(QRect(8, 0, label_width_ - 12, kRulerHeight), Qt::AlignVCenter,
                   painter.fontMetrics().elidedText(name, Qt::ElideMiddle, label_width_ - 16));
}

void TimelineView::draw_labels(QPainter& painter, int first, int count) const {
  painter.fillRect(0, kRulerHeight, label_width_, viewport()->height() - kRulerHeight, theme_.background);
  painter.setClipRect(0, kRulerHeight, viewport()->width(), viewport()->height());
  for (int i = first; i < first + count; ++i) {
    const Row& row = *rows_->visible()[static_cast<std::size_t>(i)];
    const int top = row_top(i), left = 6 + row.depth * kIndent;
    painter.setPen(theme_.grid);
    painter.drawLine(0, top + kRowHeight - 1, label_width_, top + kRowHeight - 1);
    painter.setPen(theme_.faint_text);
    if (row.has_children())
      painter.drawText(QRect(left, top, 12, kRowHeight), Qt::AlignCenter, row.open ? "▾" : "▸");
    painter.setPen(row.kind == Row::Kind::kLane ? theme_.faint_text : theme_.text);
    const int wide = label_width_ - left - 20;
    painter.drawText(QRect(left + 14, top, wide, kRowHeight), Qt::AlignVCenter,
                     painter.fontMetrics().elidedText(row.label, Qt::ElideRight, wide));
  }
  painter.setPen(theme_.grid);
  painter.drawLine(label_width_ - 1, 0, label_width_ - 1, viewport()->height());
  painter.setClipping(false);
}

void TimelineView::draw_arrows(QPainter& painter) const {
  if (!selected_ || partners_.empty()) return;
  // From who came last, or a sender, to the others: it is what they waited for.
  std::size_t from = *selected_;
  for (const std::size_t p : partners_) {
    if (run_->lanes.slice(p).start > run_->lanes.slice(from).start) from = p;
  }
  const QRectF begin = slice_rect(from);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(QPen(theme_.selection, 1.4));
  std::vector<std::size_t> to = partners_;
  to.push_back(*selected_);
  for (const std::size_t p : to) {
    if (p == from) continue;
    const QRectF end = slice_rect(p);
    if (begin.isNull() || end.isNull()) continue;
    const QPointF a(label_width_ + time_.axis().x_of(run_->lanes.slice(from).start), begin.center().y());
    const QPointF b(label_width_ + time_.axis().x_of(run_->lanes.slice(p).active), end.center().y());
    QPainterPath path(a);
    const double bend = std::clamp(std::abs(b.y() - a.y()) / 3, 12.0, 60.0);
    path.cubicTo(a + QPointF(-bend, 0), b + QPointF(-bend, 0), b);
    painter.drawPath(path);
    painter.setBrush(theme_.selection);
    painter.drawPolygon(QPolygonF{b, b + QPointF(-6, -3.5), b + QPointF(-6, 3.5)});
    painter.setBrush(Qt::NoBrush);
  }
  painter.setRenderHint(QPainter::Antialiasing, false);
}

void TimelineView::draw_overlays(QPainter& painter) const {
  const TimeAxis& axis = time_.axis();
  const QRect tracks(label_width_, 0, tracks_width(), viewport()->height());
  painter.setClipRect(tracks);
  if (time_.selection()) {
    QColor shade = theme_.selection;
    shade.setAlpha(46);
    const double from = label_width_ + axis.x_of(time_.selection()->first),
                 to = label_width_ + axis.x_of(time_.selection()->second);
    painter.fillRect(QRectF(from, 0, to - from, viewport()->height()), shade);
    painter.setPen(theme_.selection);
    painter.drawLine(QPointF(from, 0), QPointF(from, viewport()->height()));
    painter.drawLine(QPointF(to, 0), QPointF(to, viewport()->height()));
  }
  if (drag_ == Drag::kSelect || drag_ == Drag::kZoom) {
    QColor shade = drag_ == Drag::kZoom ? theme_.cursor : theme_.selection;
    painter.setPen(shade);
    shade.setAlpha(40);
    painter.setBrush(shade);
    painter.drawRect(QRect(pressed_, pointer_).normalized());
    painter.setBrush(Qt::NoBrush);
  }
  painter.setClipRect(tracks.adjusted(0, kRulerHeight, 0, 0));
  draw_arrows(painter);
  if (selected_) {
    if (const QRectF rect = slice_rect(*selected_); !rect.isNull()) {
      painter.setPen(QPen(theme_.text, 2));
      painter.drawRect(rect);
    }
  }
  painter.setClipRect(tracks);
  if (time_.cursor()) {
    const double x = label_width_ + axis.x_of(*time_.cursor());
    painter.setPen(theme_.cursor);
    painter.drawLine(QPointF(x, 0), QPointF(x, viewport()->height()));
  }
  painter.setClipping(false);
}

void TimelineView::draw(QPainter& painter, bool shapes) {
  painter.fillRect(viewport()->rect(), theme_.background);
  painter.setFont(font());
  if (!rows_ || rows_->visible().empty()) {
    draw_title(painter);
    painter.setPen(theme_.faint_text);
    painter.drawText(viewport()->rect(), Qt::AlignCenter,
                     tr("Open a timeline, or plan a scenario and pick a plan."));
    return;
  }
  const int total = static_cast<int>(rows_->visible().size());
  const int first = std::min(first_row(), total - 1);
  const int count = std::min(total - first, viewport()->height() / kRowHeight + 2);
  const auto rows =
      std::span(rows_->visible()).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  if (shapes) {
    painter.save();
    painter.translate(label_width_, row_top(first));
    painter.setClipRect(0, 0, tracks_width(), count * kRowHeight);
    tracks_->draw(painter, time_.axis(), rows, emphasis_);
    painter.restore();
  } else {
    const Key key{time_.axis(), first, count, version_};
    if (!(key == drawn_)) {
      picture_ = tracks_->picture(time_.axis(), rows, emphasis_, font());
      drawn_ = key;
    }
    painter.drawImage(label_width_, row_top(first), picture_);
  }
  draw_labels(painter, first, count);
  draw_title(painter);
  draw_overlays(painter);
}

void TimelineView::paintEvent(QPaintEvent*) {
  QPainter painter(viewport());
  draw(painter, false);
}

void TimelineView::resizeEvent(QResizeEvent*) {
  set_width();
  rows_changed();
}

void TimelineView::showEvent(QShowEvent*) {
  set_width();
}

// Of the views that share the axis, those on screen are equally wide.
void TimelineView::set_width() {
  if (isVisible()) time_.change([this](TimeAxis& a) { a.set_width(tracks_width()); });
}

void TimelineView::scrollContentsBy(int, int) {
  viewport()->update();
}

void TimelineView::changeEvent(QEvent* event) {
  if (event->type() == QEvent::PaletteChange) {
    theme_ = Theme::of(palette());
    repaint_tracks();
  }
  QAbstractScrollArea::changeEvent(event);
}

}  // namespace orrery::gui
