// SPDX-License-Identifier: Apache-2.0
//
// The ruler over a view of time.
#pragma once

#include <QPainter>

#include "gui/theme.h"
#include "gui/timeline/axis.h"

namespace orrery::gui {

inline constexpr int kRulerHeight = 26;

// Tick marks: a round time, at least `pixels` apart.
Time tick_step(const TimeAxis& axis, int pixels);

// A tick's time, with as many digits as tell it from its neighbours.
QString tick_text(Time t, Time step);

// At the top, from `left` on.
void draw_ruler(QPainter& painter, const TimeAxis& axis, int left, const Theme& theme);

}  // namespace orrery::gui
