// SPDX-License-Identifier: Apache-2.0
//
// Quantities as the window writes them.
#pragma once

#include <QString>

#include "core/units.h"

namespace orrery::gui {

inline QString text(Time t) {
  return QString::fromStdString(format(t));
}
inline QString text(Bytes b) {
  return QString::fromStdString(format(b));
}
// Of a tooltip. Qt takes text that looks like HTML for HTML, which a name is not.
inline QString plain_tip(const QString& text) {
  return "<p style='white-space:pre'>" + text.toHtmlEscaped() + "</p>";
}
// With separators of thousands.
inline QString number(double value, int decimals) {
  return QString("%L1").arg(value, 0, 'f', decimals);
}

}  // namespace orrery::gui
