// SPDX-License-Identifier: Apache-2.0
//
// A timeline that is open. Made on a job's thread, read everywhere.
#pragma once

#include <QString>
#include <memory>

#include "sim/analysis/lanes.h"

namespace orrery::gui {

struct Run {
  Run(QString title, Timeline timeline) : name(std::move(title)), lanes(std::move(timeline)) {}
  Run(QString title, PackedTimeline timeline) : name(std::move(title)), lanes(std::move(timeline)) {}
  QString name;
  sim::Lanes lanes;
  const TimelineHead& timeline() const { return lanes.timeline(); }
};
using RunPtr = std::shared_ptr<const Run>;  // views and jobs look at one at the same time

}  // namespace orrery::gui
