// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/expert_map.h"

#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <QWheelEvent>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "gui/heat.h"
#include "gui/text.h"
#include "gui/timeline/ruler.h"

namespace orrery::gui {
namespace {

constexpr int kMargin = 8;                                 // pixels beside words
constexpr int kTop = kHeatScaleHeight + 6 + kRulerHeight;  // above the map

// The rows that the pixel row y of so many shows.
std::pair<std::size_t, std::size_t> rows_of(int y, int height, std::size_t rows) {
  const auto h = static_cast<std::size_t>(height), at = static_cast<std::size_t>(y);
  const std::size_t first = at * rows / h;
  return {first, std::max(first + 1, (at + 1) * rows / h)};
}

}  // namespace

ExpertMap::ExpertMap(TimeView& time, QWidget* parent) : QWidget(parent), time_(time) {
  setAccessibleName(tr("Tokens of experts"));
  setMouseTracking(true);
  const auto repaint = [this] { update(); };
  connect(&time_, &TimeView::axis_changed, this, repaint);
  connect(&time_, &TimeView::cursor_changed, this, repaint);
}

void ExpertMap::set_run(RunPtr run) {
  run_ = std::move(run);
  set_group(0);
}

void ExpertMap::set_group(int group) {
  group_ = group;
  take();
}

void ExpertMap::set_by(By by) {
  by_ = by;
  take();
}

void ExpertMap::set_sides(int left, int right) {
  left_ = left;
  right_ = right;
  drawn_.reset();
  update();
}

void ExpertMap::take() {
  counted_.clear();
  shares_.clear();
  rows_ = 0;
  alike_ = true;
  drawn_.reset();
  update();
  if (!run_ || run_->timeline().experts.of.empty()) return;
  const ExpertCounts& experts = run_->timeline().experts;
  const std::size_t ranks = experts.groups[static_cast<std::size_t>(group_)].size();
  std::size_t number = 0;  // of a layer's experts
  for (const ExpertTokens& of : experts.of) {
    if (of.group != group_) continue;
    auto list = std::find_if(counted_.begin(), counted_.end(),
                             [&](const auto& l) { return l.back().of->end <= of.start; });
    if (list == counted_.end()) {
      constexpr std::size_t kMostAtOnce = 64;  // no program has so many layers at work on one rank
      if (counted_.size() == kMostAtOnce) continue;
      list = counted_.emplace(list);
    }
    list->push_back({&of, shares_.size()});
    alike_ = alike_ && (number == 0 || number == of.tokens.size());
    number = of.tokens.size();
    const std::size_t rows = by_ == By::kRank ? ranks : of.tokens.size(), each = of.tokens.size() / rows;
    const double all = std::accumulate(of.tokens.begin(), of.tokens.end(), 0.0);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto first = of.tokens.begin() + static_cast<std::ptrdiff_t>(r * each);
      const double tokens = std::accumulate(first, first + static_cast<std::ptrdiff_t>(each), 0.0);
      shares_.push_back(static_cast<float>(all > 0 ? tokens * static_cast<double>(rows) / all : 0));
    }
    rows_ = std::max(rows_, rows);
  }
  if (shares_.empty()) return;
  const auto [least, most] = std::minmax_element(shares_.begin(), shares_.end());
  least_ = *least;
  most_ = *most;
}

QStringList ExpertMap::group_names() const {
  QStringList out;
  if (!run_) return out;
  const ExpertCounts& experts = run_->timeline().experts;
  std::vector<std::set<std::int32_t>> layers(experts.groups.size());
  for (const ExpertTokens& of : experts.of) layers[static_cast<std::size_t>(of.group)].insert(of.layer);
  for (std::size_t g = 0; g < experts.groups.size(); ++g) {
    QStringList runs;
    for (auto layer = layers[g].begin(); layer != layers[g].end();) {
      const std::int32_t first = *layer;
      std::int32_t last = first;
      for (++layer; layer != layers[g].end() && *layer == last + 1; ++layer) ++last;
      runs << (first == last ? QString::number(first) : tr("%1 to %2").arg(first).arg(last));
    }
    const QString of = (layers[g].size() == 1 ? tr("layer %1") : tr("layers %1")).arg(runs.join(", "));
    const std::vector<std::int64_t>& ranks = experts.groups[g];
    out << (ranks.size() == 1 ? tr("%1, rank %2").arg(of).arg(ranks.front())
                              : tr("%1, %2 ranks from %3 to %4")
                                    .arg(of)
                                    .arg(ranks.size())
                                    .arg(ranks.front())
                                    .arg(ranks.back()));
  }
  return out;
}

QRect ExpertMap::tracks() const {
  return {left_, kTop, std::max(1, width() - left_ - right_), std::max(1, height() - kTop)};
}

template <class Use>
void ExpertMap::for_each_between(Time from, Time to, Use use) const {
  for (const std::vector<Counted>& list : counted_) {
    auto c = std::partition_point(list.begin(), list.end(),
                                  [&](const Counted& before) { return before.of->end <= from; });
    for (; c != list.end() && c->of->start < to; ++c) use(*c);
  }
}

ExpertMap::Place ExpertMap::place(const Counted& c, std::size_t row) const {
  const std::vector<std::int64_t>& ranks = run_->timeline().experts.groups[static_cast<std::size_t>(group_)];
  const std::vector<std::int64_t>& tokens = c.of->tokens;
  const std::size_t of_rank = tokens.size() / ranks.size(), count = by_ == By::kRank ? of_rank : 1;
  const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(row * count);
  return {.of = c.of,
          .rank = ranks[row * count / of_rank],
          .first = static_cast<std::int32_t>(row * count),
          .count = static_cast<std::int32_t>(count),
          .tokens = std::accumulate(first, first + static_cast<std::ptrdiff_t>(count), std::int64_t{0}),
          .shares = static_cast<double>(shares_[c.first + row])};
}

std::optional<ExpertMap::Place> ExpertMap::place_at(const QPoint& at) const {
  const QRect map = tracks();
  if (rows_ == 0 || !map.contains(at)) return std::nullopt;
  TimeAxis axis = time_.axis();
  axis.set_width(map.width());
  const auto [first, last] = rows_of(at.y() - map.top(), map.height(), rows_);
  const int x = at.x() - map.left();
  std::optional<Place> out;
  for_each_between(axis.time_at(x), axis.time_at(x + 1), [&, first = first, last = last](const Counted& c) {
    const std::size_t rows = by_ == By::kRank ? rows_ : c.of->tokens.size();
    for (std::size_t r = first; r < std::min(last, rows); ++r) {
      if (!out || static_cast<double>(shares_[c.first + r]) > out->shares) out = place(c, r);
    }
  });
  return out;
}

std::optional<ExpertMap::Place> ExpertMap::fullest() const {
  const Counted* of = nullptr;
  std::size_t row = 0;
  for_each_between(time_.axis().from(), time_.axis().to(), [&](const Counted& c) {
    const std::size_t rows = by_ == By::kRank ? rows_ : c.of->tokens.size();
    for (std::size_t r = 0; r < rows; ++r) {
      if (of && shares_[c.first + r] <= shares_[of->first + row]) continue;
      of = &c;
      row = r;
    }
  });
  return of ? std::optional(place(*of, row)) : std::nullopt;
}

QString ExpertMap::text_of(const Place& p) const {
  const QString experts = p.count == 1 ? tr("expert %1").arg(p.first)
                                       : tr("experts %1 to %2").arg(p.first).arg(p.first + p.count - 1);
  return tr("rank %1, %2: %L3 tokens, %4 even shares, in layer %5, micro-batch %6")
      .arg(p.rank)
      .arg(experts)
      .arg(p.tokens)
      .arg(number(p.shares, 2))
      .arg(p.of->layer)
      .arg(p.of->micro_batch);
}

void ExpertMap::draw_map() {
  const QRect map = tracks();
  const Theme theme = Theme::of(palette());
  const Drawn now{time_.axis(), map.size(), theme.dark};
  if (drawn_ == now) return;
  drawn_ = now;
  picture_ = QImage(map.size(), QImage::Format_RGB32);
  picture_.fill(theme.row_alternate);
  TimeAxis axis = time_.axis();
  axis.set_width(map.width());
  const float range = std::max(1e-9F, most_ - least_);
  std::array<QRgb, 256> colours;
  for (std::size_t i = 0; i < colours.size(); ++i)
    colours[i] = heat(theme, static_cast<double>(i) / (colours.size() - 1)).rgb();
  std::vector<float> most(rows_);
  for (int x = 0; x < map.width(); ++x) {
    std::fill(most.begin(), most.end(), -1.0F);
    for_each_between(axis.time_at(x), axis.time_at(x + 1), [&](const Counted& c) {
      const std::size_t rows = by_ == By::kRank ? rows_ : c.of->tokens.size();
      for (std::size_t r = 0; r < rows; ++r) most[r] = std::max(most[r], shares_[c.first + r]);
    });
    for (int y = 0; y < map.height(); ++y) {
      const auto [first, last] = rows_of(y, map.height(), rows_);
      const float value = *std::max_element(most.begin() + static_cast<std::ptrdiff_t>(first),
                                            most.begin() + static_cast<std::ptrdiff_t>(last));
      if (value < 0) continue;
      const auto i = static_cast<std::size_t>(std::lround(255 * (value - least_) / range));
      reinterpret_cast<QRgb*>(picture_.scanLine(y))[x] = colours[i];
    }
  }
}

// As many as have room.
void ExpertMap::draw_labels(QPainter& painter, const Theme& theme) const {
  const QRect map = tracks();
  const int line = painter.fontMetrics().height();
  const auto rows = static_cast<int>(rows_);
  const std::vector<std::int64_t>& ranks = run_->timeline().experts.groups[static_cast<std::size_t>(group_)];
  const int step = std::max(1, (rows * line + map.height() - 1) / map.height());
  painter.setPen(theme.faint_text);
  for (int r = 0; r < rows; r += step) {
    const int top = map.top() + r * map.height() / rows,
              bottom = map.top() + std::min(rows, r + step) * map.height() / rows;
    if (bottom - top < line) break;
    const auto row = static_cast<std::size_t>(r);
    const QString words = by_ == By::kRank ? tr("rank %1").arg(ranks[row])
                          : alike_ ? tr("expert %1 (rank %2)").arg(r).arg(ranks[row * ranks.size() / rows_])
                                   : tr("expert %1").arg(r);
    // Of one row beside its middle; of several beside the first.
    painter.drawText(QRect(kMargin, top, left_ - 2 * kMargin, step == 1 ? bottom - top : line),
                     Qt::AlignVCenter | Qt::AlignLeft, words);
  }
}

void ExpertMap::paintEvent(QPaintEvent*) {
  const Theme theme = Theme::of(palette());
  QPainter painter(this);
  painter.fillRect(rect(), theme.background);
  if (rows_ == 0) {
    painter.setPen(theme.faint_text);
    painter.drawText(
        rect().adjusted(kMargin, 0, -kMargin, 0), Qt::AlignCenter | Qt::TextWordWrap,
        run_ ? tr("This timeline does not say how many tokens each expert got. A simulation does where the "
                  "scenario has \"expert_load\", and a run on CPUs where the model has experts.")
             : tr("Tokens of experts come here once a timeline is open."));
    return;
  }
  draw_map();
  const QRect map = tracks();
  const auto shares = [](float n) { return tr("%1 even shares").arg(number(static_cast<double>(n), 2)); };
  if (most_ > least_)
    draw_heat_scale(painter, theme, {kMargin, 2}, number(static_cast<double>(least_), 2), shares(most_));
  else
    draw_heat_alike(painter, theme, {kMargin, 2}, tr("%1 everywhere").arg(shares(most_)));
  TimeAxis axis = time_.axis();
  axis.set_width(map.width());
  painter.save();
  painter.translate(0, kTop - kRulerHeight);
  draw_ruler(painter, axis, left_, theme);
  painter.restore();
  painter.drawImage(map.topLeft(), picture_);
  draw_labels(painter, theme);
  if (time_.cursor()) {
    const double x = map.left() + axis.x_of(*time_.cursor());
    painter.setPen(theme.cursor);
    if (x >= map.left() && x <= map.right())
      painter.drawLine(QPointF(x, map.top()), QPointF(x, map.bottom()));
  }
}

void ExpertMap::mousePressEvent(QMouseEvent* event) {
  if (const auto place = place_at(event->pos())) Q_EMIT picked(place->rank);
}

void ExpertMap::mouseMoveEvent(QMouseEvent* event) {
  const QRect map = tracks();
  const int x = event->pos().x() - map.left();
  TimeAxis axis = time_.axis();
  axis.set_width(map.width());
  time_.set_cursor(rows_ > 0 && x >= 0 && x < map.width() ? std::optional(axis.time_at(x)) : std::nullopt);
}

void ExpertMap::leaveEvent(QEvent*) {
  time_.set_cursor(std::nullopt);
}

void ExpertMap::wheelEvent(QWheelEvent* event) {
  if (!(event->modifiers() & Qt::ControlModifier)) return QWidget::wheelEvent(event);
  const QRect map = tracks();
  const double share = std::clamp((event->position().x() - map.left()) / map.width(), 0.0, 1.0);
  time_.change(
      [&](TimeAxis& a) { a.zoom(std::pow(1.25, event->angleDelta().y() / 120.0), share * a.width()); });
  event->accept();
}

bool ExpertMap::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  if (const auto place = place_at(help->pos()))
    QToolTip::showText(help->globalPos(), plain_tip(text_of(*place)), this);
  else
    QToolTip::hideText();
  return true;
}

}  // namespace orrery::gui
