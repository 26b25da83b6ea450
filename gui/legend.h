// SPDX-License-Identifier: Apache-2.0
//
// What colours mean, in a line.
#pragma once

#include <QWidget>
#include <functional>
#include <vector>

#include "gui/theme.h"

namespace orrery::gui {

class Legend : public QWidget {
 public:
  using Meanings = std::function<std::vector<Meaning>(const Theme&)>;
  // `left` pixels stay free.
  explicit Legend(Meanings meanings = {}, int left = 0);
  void set(Meanings meanings);
  QSize sizeHint() const override;

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  std::vector<Meaning> meanings() const;
  Meanings meanings_;
  int left_;
};

}  // namespace orrery::gui
