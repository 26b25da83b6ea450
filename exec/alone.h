// SPDX-License-Identifier: Apache-2.0
//
// A rank with a world of its own, on this processor. Internal to exec/.
#pragma once

#include <memory>

#include "exec/cpu_executor.h"
#include "exec/rank.h"
#include "exec/shared_world.h"

namespace orrery::exec {

struct Alone {
  Alone(const program::Program& program, const RunOptions& options, const Dataset& data)
      : world(1, options.deadline),
        communicator(world.communicator(0)),
        rank(
            program, options, data, nullptr, 0,
            [](const Placement& place, const RunOptions& o, Communicator& c, Abort& a)
                -> std::unique_ptr<Executor> { return std::make_unique<CpuExecutor>(place, o, c, a); },
            *communicator, world.abort()) {
    rank.initialise();
  }
  SharedWorld world;
  std::unique_ptr<Communicator> communicator;
  Rank rank;
};

}  // namespace orrery::exec
