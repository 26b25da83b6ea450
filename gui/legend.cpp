// SPDX-License-Identifier: Apache-2.0
#include "gui/legend.h"

#include <QPainter>

namespace orrery::gui {
namespace {

constexpr int kSquare = 11, kGap = 4, kBetween = 15;

}  // namespace

Legend::Legend(Meanings meanings, int left) : meanings_(std::move(meanings)), left_(left) {
  setMinimumHeight(fontMetrics().height() + 4);
}

void Legend::set(Meanings meanings) {
  meanings_ = std::move(meanings);
  updateGeometry();
  update();
}

QSize Legend::sizeHint() const {
  int width = left_;
  for (const Meaning& m : meanings())
    width += kSquare + kGap + fontMetrics().horizontalAdvance(m.text) + kBetween;
  return {width, fontMetrics().height() + 4};
}

void Legend::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  int x = left_;
  for (const Meaning& m : meanings()) {
    painter.fillRect(x, (height() - kSquare) / 2, kSquare, kSquare, m.colour);
    painter.setPen(palette().color(QPalette::WindowText));
    x += kSquare + kGap;
    painter.drawText(x, (height() + fontMetrics().ascent() - fontMetrics().descent()) / 2, m.text);
    x += fontMetrics().horizontalAdvance(m.text) + kBetween;
  }
}

std::vector<Meaning> Legend::meanings() const {
  return meanings_ ? meanings_(Theme::of(palette())) : std::vector<Meaning>{};
}

}  // namespace orrery::gui
