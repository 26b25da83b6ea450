// SPDX-License-Identifier: Apache-2.0
//
// A timeline that is open, with what is looked up in it. Made on a job's thread, read everywhere.
#pragma once

#include <QString>
#include <memory>

#include "sim/analysis/lanes.h"
#include "sim/analysis/meetings.h"

namespace orrery::gui {

struct Run {
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  Run(QString title, Timeline timeline)
      : name(std::move(title)), lanes(std::move(timeline)), meetings(lanes) {}
  QString name;
  sim::Lanes lanes;
  sim::Meetings meetings;
  const Timeline& timeline() const { return lanes.timeline(); }
};
using RunPtr = std::shared_ptr<const Run>;  // views and jobs look at one at the same time

}  // namespace orrery::gui
