// SPDX-License-Identifier: Apache-2.0
#include "gui/topology/view.h"

#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <array>
#include <cmath>

#include "gui/geometry.h"
#include "gui/text.h"

namespace orrery::gui {
namespace {

constexpr int kLeft = 110, kRight = 30, kTop = 40, kBottom = 70;
constexpr double kBlockHeight = 22;

QString percent(double share) {
  return QString::number(100 * share, 'f', share < 0.1 ? 2 : 1) + " %";
}

}  // namespace

TopologyView::TopologyView(QWidget* parent) : QWidget(parent), theme_(Theme::of(palette())) {
  setAccessibleName(tr("Network"));
  setMinimumSize(400, 300);
  setMouseTracking(true);
}

void TopologyView::set_picture(std::shared_ptr<const NetworkPicture> picture) {
  picture_ = std::move(picture);
  if (selected_ && (!picture_ || *selected_ >= picture_->edges.size())) selected_.reset();
  update();
}

void TopologyView::select_edge(std::optional<std::size_t> edge) {
  selected_ = edge;
  update();
}

QPointF TopologyView::block_position(std::size_t block) const {
  const Block& b = picture_->layout.blocks()[block];
  const double layers = static_cast<double>(picture_->layout.layers());
  return {
      kLeft + b.x * (width() - kLeft - kRight),
      kTop + (layers > 1 ? static_cast<double>(b.layer) / (layers - 1) : 0.5) * (height() - kTop - kBottom)};
}

std::pair<QPointF, QPointF> TopologyView::line(const Edge& e) const {
  return {block_position(e.a), block_position(e.b)};
}

// From nothing over blue and amber to red.
QColor TopologyView::colour_of(double use) const {
  const std::array stops{theme_.grid, theme_.forward, theme_.tensor, theme_.path};
  const double at = std::clamp(use, 0.0, 1.0) * (stops.size() - 1);
  const auto i = std::min(stops.size() - 2, static_cast<std::size_t>(at));
  const float f = static_cast<float>(at - static_cast<double>(i));
  const auto mix = [&](float a, float b) { return a + (b - a) * f; };
  return QColor::fromRgbF(mix(stops[i].redF(), stops[i + 1].redF()),
                          mix(stops[i].greenF(), stops[i + 1].greenF()),
                          mix(stops[i].blueF(), stops[i + 1].blueF()));
}

void TopologyView::draw_legend(QPainter& painter) const {
  constexpr int kWide = 220;
  const int top = height() - 24;
  for (int x = 0; x < kWide; ++x)
    painter.fillRect(kLeft + x, top, 1, 10, colour_of(static_cast<double>(x) / kWide));
  painter.setPen(theme_.faint_text);
  painter.drawText(kLeft - 30, top + 10, "0 %");
  painter.drawText(kLeft + kWide + 8, top + 10,
                   tr("100 % of a link's bandwidth; a line shows its fullest link"));
}

void TopologyView::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), theme_.background);
  if (!picture_) {
    painter.setPen(theme_.faint_text);
    painter.drawText(rect(), Qt::AlignCenter, tr("Open a topology, or plan a scenario and pick a plan."));
    return;
  }
  painter.setRenderHint(QPainter::Antialiasing);
  std::vector<std::size_t> order(picture_->edges.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // The fullest on top.
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return picture_->edges[a].most < picture_->edges[b].most; });
  for (const std::size_t i : order) {
    const Edge& e = picture_->edges[i];
    const auto [a, b] = line(e);
    QColor colour = picture_->use.empty() ? theme_.faint_text : colour_of(e.most);
    if (picture_->use.empty() || e.most < 0.001) colour.setAlpha(90);
    QPen pen(colour, selected_ == i ? 4 : 1 + 2 * std::min(1.0, e.most));
    if (e.failed > 0) pen.setStyle(Qt::DotLine);
    painter.setPen(pen);
    if (picture_->layout.blocks()[e.a].layer == picture_->layout.blocks()[e.b].layer && e.a != e.b) {
      const double span = b.x() - a.x();
      painter.setBrush(Qt::NoBrush);
      painter.drawArc(QRectF(std::min(a.x(), b.x()), a.y() - std::min(60.0, std::abs(span) / 3),
                             std::abs(span), 2 * std::min(60.0, std::abs(span) / 3)),
                      0, 180 * 16);
    } else if (e.a != e.b) {
      painter.drawLine(a, b);
    }
  }
  const auto& blocks = picture_->layout.blocks();
  std::vector<std::size_t> in_layer(picture_->layout.layers());
  for (const Block& b : blocks) ++in_layer[b.layer];
  const QFontMetrics metrics(painter.font());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const QPointF at = block_position(i);
    const double room =
        static_cast<double>(width() - kLeft - kRight) / static_cast<double>(in_layer[blocks[i].layer]);
    const double wide = std::clamp(room - 4, 4.0, 150.0);
    const QRectF box(at.x() - wide / 2, at.y() - kBlockHeight / 2, wide, kBlockHeight);
    painter.setPen(QPen(theme_.faint_text, 1));
    painter.setBrush(blocks[i].count > 1 ? theme_.row_alternate : theme_.background);
    painter.drawRoundedRect(box, 3, 3);
    painter.setPen(theme_.text);
    const QString name = picture_->layout.block_name(blocks[i]), count = QString("×%1").arg(blocks[i].count);
    if (metrics.horizontalAdvance(name) <= wide || wide > 90)
      painter.drawText(box, Qt::AlignCenter,
                       metrics.elidedText(name, Qt::ElideMiddle, static_cast<int>(wide) - 4));
    else if (blocks[i].count > 1 && metrics.horizontalAdvance(count) <= wide)
      painter.drawText(box, Qt::AlignCenter, count);
  }
  for (std::size_t l = 0; l < picture_->layout.layers(); ++l) {
    const auto of_layer =
        std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) { return b.layer == l; });
    const double y = block_position(static_cast<std::size_t>(of_layer - blocks.begin())).y();
    std::size_t count = 0;
    for (const Block& b : blocks) count += b.layer == l ? b.count : 0;
    painter.setPen(theme_.faint_text);
    painter.drawText(QRectF(8, y - 20, kLeft - 14, 40), Qt::AlignVCenter | Qt::AlignLeft,
                     QString("%1\n%L2").arg(picture_->layout.layer_name(l)).arg(count));
  }
  if (!picture_->use.empty()) draw_legend(painter);
}

std::optional<std::size_t> TopologyView::block_at(const QPointF& at) const {
  if (!picture_) return std::nullopt;
  const auto& blocks = picture_->layout.blocks();
  std::vector<std::size_t> in_layer(picture_->layout.layers());
  for (const Block& b : blocks) ++in_layer[b.layer];
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const QPointF d = block_position(i) - at;
    const double room =
        static_cast<double>(width() - kLeft - kRight) / static_cast<double>(in_layer[blocks[i].layer]);
    if (std::abs(d.y()) <= kBlockHeight / 2 && std::abs(d.x()) <= std::clamp(room - 4, 4.0, 150.0) / 2)
      return i;
  }
  return std::nullopt;
}

std::optional<std::size_t> TopologyView::edge_at(const QPointF& at) const {
  if (!picture_) return std::nullopt;
  constexpr double kReach = 5;  // pixels
  std::optional<std::size_t> best;
  double least = kReach;
  for (std::size_t i = 0; i < picture_->edges.size(); ++i) {
    const auto [a, b] = line(picture_->edges[i]);
    const double d = distance(at, a, b);
    // Of lines that lie over each other the fullest was drawn last.
    if (d < least || (best && d <= least + 1 && picture_->edges[i].most > picture_->edges[*best].most)) {
      least = std::min(d, least);
      best = i;
    }
  }
  return best;
}

void TopologyView::mousePressEvent(QMouseEvent* event) {
  if (const auto block = block_at(event->position())) {
    Q_EMIT block_clicked(*block);
  } else if (const auto edge = edge_at(event->position())) {
    select_edge(edge);
    Q_EMIT edge_selected(*edge);
  }
}

bool TopologyView::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip || !picture_) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  if (const auto block = block_at(help->pos())) {
    const Block& b = picture_->layout.blocks()[*block];
    QToolTip::showText(help->globalPos(),
                       plain_tip(picture_->layout.block_name(b) + (b.count > 1 ? tr("\nclick to open") : "")),
                       this);
  } else if (const auto edge = edge_at(help->pos())) {
    const Edge& e = picture_->edges[*edge];
    QToolTip::showText(
        help->globalPos(),
        tr("%L1 cables%2")
            .arg(e.cables)
            .arg(picture_->use.empty() ? QString() : tr(", the fullest %1 full").arg(percent(e.most))),
        this);
  } else {
    QToolTip::hideText();
  }
  return true;
}

void TopologyView::changeEvent(QEvent* event) {
  if (event->type() == QEvent::PaletteChange) theme_ = Theme::of(palette());
  QWidget::changeEvent(event);
}

}  // namespace orrery::gui
