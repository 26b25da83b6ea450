// SPDX-License-Identifier: Apache-2.0
//
// Of points and lines in a picture.
#pragma once

#include <QPointF>
#include <algorithm>
#include <cmath>

namespace orrery::gui {

// Of a point from the line between two others, in pixels.
inline double distance(const QPointF& p, const QPointF& a, const QPointF& b) {
  const QPointF along = b - a;
  const double length = QPointF::dotProduct(along, along);
  const double t = length > 0 ? std::clamp(QPointF::dotProduct(p - a, along) / length, 0.0, 1.0) : 0;
  const QPointF off = p - (a + t * along);
  return std::sqrt(QPointF::dotProduct(off, off));
}

}  // namespace orrery::gui
