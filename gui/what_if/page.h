// SPDX-License-Identifier: Apache-2.0
//
// What if the machine, the batch or the price were another? The plan that is looked into follows sliders at
// once, by the planner's estimate.
#pragma once

#include <QLabel>
#include <QSlider>
#include <QTimer>
#include <QWidget>
#include <array>

#include "gui/session.h"
#include "gui/tables.h"

namespace orrery::gui {

// What sliders change; 1 leaves it as it is.
struct Change {
  double nic = 1, nvlink = 1, compute = 1, memory_bandwidth = 1, nodes = 1, batch = 1, price = 1;
  friend bool operator==(const Change&, const Change&) = default;
};

// A plan's numbers by the estimate; `problem` says why there are none.
struct Numbers {
  std::string problem;
  Plan plan;
  std::int64_t devices = 0;
  double step_s = 0, tokens_per_s = 0, mfu = 0, gib = 0, days = 0, dollars = 0, capacity_gib = 0;
};

// The plan on the changed cluster: tp, pp and what a stage does stay; replicas follow the nodes, and
// micro-batches the batch.
Numbers numbers_of(const Problem& problem, const Plan& plan, const Change& change);

class WhatIfPage : public QWidget {
  Q_OBJECT

 public:
  explicit WhatIfPage(Session& session, QWidget* parent = nullptr);
  QSlider& slider(std::size_t i) { return *sliders_[i]; }
  static constexpr std::size_t kSliders = 7;
  const Table& table() const { return *table_; }

 private:
  void reset();
  void recompute();
  void show_numbers(const std::pair<Numbers, Numbers>& numbers);
  Change change() const;

  Session& session_;
  QLabel* headline_;
  std::array<QSlider*, kSliders> sliders_;
  std::array<QLabel*, kSliders> values_;
  QLabel* problem_;
  Table* table_;
  QTimer soon_;
};

}  // namespace orrery::gui
