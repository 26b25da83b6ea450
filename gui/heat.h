// SPDX-License-Identifier: Apache-2.0
//
// Colours of values, from pale to dark, and the scale that explains them. For maps of ranks and of experts.
#pragma once

#include <QPainter>
#include <QString>

#include "gui/theme.h"

namespace orrery::gui {

// Of a value's place between the least (0) and the most (1).
QColor heat(const Theme& theme, double share);
// Draws what the ends of the colours mean, `least` left and `most` right of them; and words where all values
// are alike. `at`: the top left corner.
inline constexpr int kHeatScaleHeight = 14;
void draw_heat_scale(QPainter& painter, const Theme& theme, const QPoint& at, const QString& least,
                     const QString& most);
void draw_heat_alike(QPainter& painter, const Theme& theme, const QPoint& at, const QString& words);

}  // namespace orrery::gui
