// SPDX-License-Identifier: Apache-2.0
#include "gui/timeline/ruler.h"

#include <algorithm>

namespace orrery::gui {

Time tick_step(const TimeAxis& axis, int pixels) {
  const double least = static_cast<double>(axis.span().value) * pixels / axis.width();
  std::int64_t step = 1;
  while (true) {
    for (const std::int64_t m : {1, 2, 5}) {
      if (static_cast<double>(step) * static_cast<double>(m) >= least) return Time{step * m};
    }
    step *= 10;
  }
}

QString tick_text(Time t, Time step) {
  struct Unit {
    const char* name;
    std::int64_t ps;
  };
  constexpr Unit kUnits[] = {
      {"s", kPicosecondsPerSecond}, {"ms", 1'000'000'000}, {"us", 1'000'000}, {"ns", 1000}};
  const Unit* unit = kUnits;
  while (unit->ps > std::max(t.value, step.value) && unit->ps > 1000) ++unit;
  int decimals = 0;
  for (std::int64_t ps = unit->ps; ps > step.value && decimals < 12; ps /= 10) ++decimals;
  return QString::number(static_cast<double>(t.value) / static_cast<double>(unit->ps), 'f', decimals) + " " +
         unit->name;
}

void draw_ruler(QPainter& painter, const TimeAxis& axis, int left, const Theme& theme) {
  const int right = left + axis.width();
  painter.fillRect(0, 0, right, kRulerHeight, theme.background);
  painter.setPen(theme.grid);
  painter.drawLine(0, kRulerHeight - 1, right, kRulerHeight - 1);
  const Time step = tick_step(axis, 110);
  for (std::int64_t t = axis.from().value / step.value * step.value; t <= axis.to().value; t += step.value) {
    const double x = left + axis.x_of(Time{t});
    if (x < left) continue;
    painter.setPen(theme.grid);
    painter.drawLine(QPointF(x, kRulerHeight - 8), QPointF(x, kRulerHeight - 1));
    painter.setPen(theme.faint_text);
    painter.drawText(QPointF(x + 4, kRulerHeight - 9), tick_text(Time{t}, step));
  }
  painter.fillRect(0, 0, left, kRulerHeight - 1, theme.background);
}

}  // namespace orrery::gui
