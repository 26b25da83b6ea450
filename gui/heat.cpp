// SPDX-License-Identifier: Apache-2.0
#include "gui/heat.h"

#include <cmath>

namespace orrery::gui {

QColor heat(const Theme& theme, double share) {
  const QColor &from = theme.grid, &to = theme.pipeline;
  const auto mix = [&](int a, int b) { return static_cast<int>(std::lround(a + share * (b - a))); };
  return {mix(from.red(), to.red()), mix(from.green(), to.green()), mix(from.blue(), to.blue())};
}

void draw_heat_scale(QPainter& painter, const Theme& theme, const QPoint& at, const QString& least,
                     const QString& most) {
  constexpr int kBar = 120, kSpace = 8;  // pixels
  const int bar = at.x() + painter.fontMetrics().horizontalAdvance(least) + kSpace;
  for (int x = 0; x < kBar; ++x)
    painter.fillRect(bar + x, at.y() + 1, 1, kHeatScaleHeight - 2,
                     heat(theme, static_cast<double>(x) / kBar));
  draw_heat_alike(painter, theme, at, least);
  draw_heat_alike(painter, theme, {bar + kBar + kSpace, at.y()}, most);
}

void draw_heat_alike(QPainter& painter, const Theme& theme, const QPoint& at, const QString& words) {
  painter.setPen(theme.text);
  painter.drawText(
      QRect(at.x(), at.y(), painter.fontMetrics().horizontalAdvance(words) + 1, kHeatScaleHeight),
      Qt::AlignVCenter, words);
}

}  // namespace orrery::gui
