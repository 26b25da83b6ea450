// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/op_tree_view.h"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>

#include "gui/text.h"

namespace orrery::gui {
namespace {

constexpr int kBarHeight = 22;
constexpr double kLeastBar = 1.5;  // pixels: narrower ones are left out

}  // namespace

OpTreeView::OpTreeView(QWidget* parent) : QWidget(parent) {
  setAccessibleName(tr("Working time by layer"));
  setFocusPolicy(Qt::StrongFocus);
  setMinimumHeight(4 * kBarHeight);
}

void OpTreeView::set(sim::OpNode root) {
  // What was shown is shown again where it is still there.
  const QStringList before = shown_path();
  root_ = std::move(root);
  path_ = {&root_};
  for (qsizetype i = 1; i < before.size(); ++i) {
    const auto& parts = path_.back()->parts;
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const sim::OpNode& n) {
      return QString::fromStdString(n.name) == before[i];
    });
    if (found == parts.end()) break;
    path_.push_back(&*found);
  }
  lay_out();
}

QStringList OpTreeView::shown_path() const {
  QStringList out;
  for (const sim::OpNode* n : path_) out << QString::fromStdString(n->name);
  return out;
}

// Levels under the root are streams, then segments.
void OpTreeView::lay_out() {
  bars_.clear();
  update();
  setMinimumHeight(4 * kBarHeight);
  if (path_.empty() || root_.time <= Time{0}) return;
  Bar bar;
  for (std::size_t i = 0; i < path_.size(); ++i) {
    bar = {path_[i],
           static_cast<int>(i),
           QRectF(0, static_cast<double>(i) * kBarHeight, width(), kBarHeight),
           i == 1 ? path_[i]->name : bar.stream,
           i == 2 ? path_[i]->name : bar.segment,
           0};
    if (i + 1 < path_.size()) bars_.push_back(bar);
  }
  add(bar);
  int deepest = 0;
  for (const Bar& b : bars_) deepest = std::max(deepest, b.depth + 1);
  setMinimumHeight(std::max(4, deepest) * kBarHeight);
}

void OpTreeView::add(Bar bar) {
  bars_.push_back(bar);
  double x = bar.at.x();
  for (std::size_t i = 0; i < bar.node->parts.size(); ++i) {
    const sim::OpNode& part = bar.node->parts[i];
    const double wide = bar.at.width() * ratio(part.time, bar.node->time);
    const int depth = bar.depth + 1;
    if (wide >= kLeastBar)
      add({&part, depth, QRectF(x, depth * kBarHeight, wide, kBarHeight), depth == 1 ? part.name : bar.stream,
           depth == 2 ? part.name : bar.segment, i});
    x += wide;
  }
}

const OpTreeView::Bar* OpTreeView::bar_at(const QPointF& position) const {
  const auto found =
      std::find_if(bars_.begin(), bars_.end(), [&](const Bar& b) { return b.at.contains(position); });
  return found == bars_.end() ? nullptr : &*found;
}

void OpTreeView::paintEvent(QPaintEvent*) {
  const Theme theme = Theme::of(palette());
  QPainter painter(this);
  painter.fillRect(rect(), theme.background);
  if (bars_.empty()) {
    painter.setPen(theme.faint_text);
    painter.drawText(rect(), Qt::AlignCenter, tr("Nothing worked in this part."));
    return;
  }
  for (const Bar& b : bars_) {
    const bool above = b.depth == 0 || b.depth + 1 < static_cast<int>(path_.size());
    QColor colour = kind_colour(theme, b.stream, b.segment);
    if (colour == theme.other && b.depth > 1) colour = theme.series(b.number % 6);  // other software's
    if (b.number % 2 == 1) colour = colour.lighter(114);                            // neighbours differ
    painter.fillRect(b.at.adjusted(0, 0, b.at.width() > 3 ? -1 : 0, -1),
                     above ? theme.row_alternate : colour);
    if (b.at.width() < 36) continue;
    painter.setPen(above ? theme.text : QColor(0x10, 0x14, 0x18));
    const QString name = QString::fromStdString(b.node->name) + " · " + text(b.node->time);
    painter.drawText(
        b.at.adjusted(5, 0, -3, 0), Qt::AlignVCenter,
        painter.fontMetrics().elidedText(name, Qt::ElideRight, static_cast<int>(b.at.width()) - 8));
  }
}

void OpTreeView::resizeEvent(QResizeEvent*) {
  lay_out();
}

void OpTreeView::show_parent() {
  if (path_.size() < 2) return;
  path_.pop_back();
  lay_out();
}

void OpTreeView::mousePressEvent(QMouseEvent* event) {
  const Bar* const bar = bar_at(event->position());
  if (!bar) return;
  const sim::OpNode* const node = bar->node;
  const int depth = bar->depth;
  if (node == path_.back()) return show_parent();
  // The way from what is shown down to the bar: its ancestors are the bars above it.
  const double x = event->position().x();
  std::vector<const sim::OpNode*> path;
  for (int d = 0; d <= depth; ++d) path.push_back(bar_at({x, d * kBarHeight + kBarHeight / 2.0})->node);
  path_ = std::move(path);
  lay_out();
}

void OpTreeView::keyPressEvent(QKeyEvent* event) {
  if (event->key() == Qt::Key_Backspace)
    show_parent();
  else
    QWidget::keyPressEvent(event);
}

bool OpTreeView::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const Bar* const bar = bar_at(help->pos());
    if (!bar)
      QToolTip::hideText();
    else
      QToolTip::showText(help->globalPos(),
                         plain_tip(tr("%1: %2, %3 % of all working time, %L4 ops")
                                       .arg(QString::fromStdString(bar->node->name), text(bar->node->time),
                                            number(100 * ratio(bar->node->time, root_.time), 1))
                                       .arg(bar->node->count)),
                         this, bar->at.toRect());
    return true;
  }
  return QWidget::event(event);
}

}  // namespace orrery::gui
