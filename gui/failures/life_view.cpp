// SPDX-License-Identifier: Apache-2.0
#include "gui/failures/life_view.h"

#include <QHelpEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <array>
#include <cmath>

#include "core/units.h"
#include "gui/text.h"

namespace orrery::gui {
namespace {

constexpr int kLabelWidth = 78;
constexpr double kHour = 3600;
// A year at the most, but for runs of more than kMostRows years.
constexpr std::array kRowLengths{kHour,
                                 6 * kHour,
                                 sim::kSecondsPerDay,
                                 2 * sim::kSecondsPerDay,
                                 7 * sim::kSecondsPerDay,
                                 30 * sim::kSecondsPerDay,
                                 365 * sim::kSecondsPerDay};

QString when(sim::Ticks t) {
  return LifeView::tr("day %1").arg(sim::days(t), 0, 'f', 2);
}
QString how_long(sim::Ticks t) {
  return QString::fromStdString(format(RunTime{sim::seconds(t)}));
}

}  // namespace

QColor colour_of(const Theme& theme, sim::Doing doing) {
  switch (doing) {
    case sim::Doing::kWork:
      return theme.forward;
    case sim::Doing::kSlowWork:
      return theme.forward.lighter(theme.dark ? 80 : 130);
    case sim::Doing::kLost:
      return theme.tensor;
    case sim::Doing::kCheckpoint:
      return theme.optimizer;
    case sim::Doing::kDetection:
      return theme.text;
    case sim::Doing::kRestart:
      return theme.pipeline;
    case sim::Doing::kWait:
      return theme.grid;
    case sim::Doing::kMaintenance:
      return theme.other;
  }
  return theme.other;
}

LifeView::LifeView(QWidget* parent) : QWidget(parent) {
  setAccessibleName(tr("Life of a run"));
  setMinimumHeight(120);
}

void LifeView::set(const sim::Diary& diary) {
  outages_ = diary.outages();
  periods_.clear();
  marked_ = -1;
  const sim::Ticks end = diary.periods().empty() ? sim::Ticks{0} : diary.periods().back().end;
  const auto fits = [&](double length) {
    return sim::seconds(end) <= length * static_cast<double>(kMostRows);
  };
  const auto* length = std::find_if(kRowLengths.begin(), kRowLengths.end(), fits);
  row_ = length != kRowLengths.end() ? sim::ticks(*length) : sim::Ticks{end.value / kMostRows + 1};
  // Checkpoints that are too short to be seen are drawn as the work around them.
  const sim::Ticks visible{row_.value / 2000};
  for (sim::Period p : diary.periods()) {
    if (p.doing == sim::Doing::kCheckpoint && p.end - p.begin < visible && !periods_.empty() &&
        (periods_.back().doing == sim::Doing::kWork || periods_.back().doing == sim::Doing::kSlowWork ||
         periods_.back().doing == sim::Doing::kLost))
      p.doing = periods_.back().doing;
    if (!periods_.empty() && periods_.back().doing == p.doing) {
      periods_.back().end = p.end;
      periods_.back().to = p.to;
    } else {
      periods_.push_back(p);
    }
  }
  update();
}

void LifeView::mark(int outage) {
  marked_ = outage;
  update();
}

int LifeView::rows() const {
  return static_cast<int>((end().value + row_.value - 1) / row_.value);
}

double LifeView::row_height() const {
  constexpr double kTallest = 26;
  return std::min(kTallest, static_cast<double>(height()) / std::max(1, rows()));
}

QRectF LifeView::place_of(sim::Ticks begin, sim::Ticks end, std::int64_t row) const {
  const double wide = width() - kLabelWidth - 2;
  const auto x = [&](sim::Ticks t) {
    const double share = static_cast<double>(t.value - row * row_.value) / static_cast<double>(row_.value);
    return kLabelWidth + wide * std::clamp(share, 0.0, 1.0);
  };
  const double high = row_height();
  return {x(begin), static_cast<double>(row) * high + 1, x(end) - x(begin), std::max(1.0, high - 2)};
}

template <class Use>
void LifeView::over_rows(sim::Ticks begin, sim::Ticks end, const Use& use) const {
  for (std::int64_t row = begin.value / row_.value; row * row_.value < end.value; ++row)
    use(row, place_of(begin, end, row));
}

std::optional<sim::Period> LifeView::at(const QPointF& position) const {
  const double wide = width() - kLabelWidth - 2, high = row_height();
  if (wide <= 0 || high <= 0) return std::nullopt;
  const double row = std::floor(position.y() / high), share = (position.x() - kLabelWidth) / wide;
  if (share < 0 || share > 1 || row < 0 || row >= rows()) return std::nullopt;
  const sim::Ticks t{static_cast<std::int64_t>((row + share) * static_cast<double>(row_.value))};
  const auto found = std::upper_bound(periods_.begin(), periods_.end(), t,
                                      [](sim::Ticks time, const sim::Period& p) { return time < p.end; });
  if (found == periods_.end()) return std::nullopt;
  return *found;
}

void LifeView::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  const Theme theme = Theme::of(palette());
  painter.fillRect(rect(), theme.background);
  constexpr double kLeast = 1;  // pixels of what is not work, so that it is seen
  for (const bool work : {true, false}) {
    for (const sim::Period& p : periods_) {
      const bool is_work = p.doing == sim::Doing::kWork || p.doing == sim::Doing::kSlowWork;
      if (is_work != work) continue;
      over_rows(p.begin, p.end, [&](std::int64_t, QRectF place) {
        if (!work) place.setWidth(std::max(kLeast, place.width()));
        painter.fillRect(place, colour_of(theme, p.doing));
      });
    }
  }
  if (marked_ >= 0 && static_cast<std::size_t>(marked_) < outages_.size()) {
    const sim::Outage& o = outages_[static_cast<std::size_t>(marked_)];
    painter.setPen(QPen(theme.selection, 2));
    over_rows(o.begin, std::max(o.end, o.begin + sim::Ticks{1}),
              [&](std::int64_t, const QRectF& place) { painter.drawRect(place.adjusted(-3, 0, 3, 0)); });
  }
  painter.setPen(theme.text);
  const int every = std::max(1, static_cast<int>(fontMetrics().height() / row_height() + 1));
  for (int row = 0; row < rows(); row += every) {
    const sim::Ticks begin{row * row_.value};
    painter.drawText(QRectF(0, row * row_height(), kLabelWidth - 6, std::max(row_height(), 14.0)),
                     Qt::AlignRight | Qt::AlignVCenter,
                     row_ < sim::ticks(sim::kSecondsPerDay)
                         ? tr("%1 h").arg(sim::seconds(begin) / kHour, 0, 'f', 0)
                         : tr("day %1").arg(sim::days(begin), 0, 'f', 0));
  }
}

bool LifeView::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const auto p = at(help->pos());
    if (p)
      QToolTip::showText(
          help->globalPos(),
          plain_tip(tr("%1 for %2, from %3")
                        .arg(tr(sim::words_of(p->doing)), how_long(p->end - p->begin), when(p->begin))),
          this);
    else
      QToolTip::hideText();
    return true;
  }
  return QWidget::event(event);
}

}  // namespace orrery::gui
