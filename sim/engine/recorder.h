// SPDX-License-Identifier: Apache-2.0
//
// What the engine ran, as a timeline: one process a place. Internal to sim/engine/.
#pragma once

#include "core/timeline.h"
#include "sim/engine/layout.h"

namespace orrery::sim {

class Recorder {
 public:
  struct Done {
    std::int32_t place, stream;
    std::int32_t step, op;  // of the class's program
    std::int64_t ready, start, active, end;
  };
  void add(const Done& done) { done_.push_back(done); }
  Timeline timeline(const program::Program& program, const Layout& layout) const;

 private:
  void add_memory(const program::Program& program, const Layout& layout, Timeline& t) const;

  std::vector<Done> done_;
};

}  // namespace orrery::sim
