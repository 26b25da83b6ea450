// SPDX-License-Identifier: Apache-2.0
//
// Training through a parameter server, for real: a server and workers are threads of this process. Each
// worker has memory of its own, sees samples of its own, pulls parameters, computes a gradient and pushes it;
// the server updates with the program's own optimizer once so many gradients have come (core/server_rules.h).
// What comes first is decided by when it comes: two runs of asynchronous training differ.
//
//   ServedRun r = run_server(program, options, data, rules);   // options.steps: updates
#pragma once

#include <cstdint>
#include <vector>

#include "core/server_rules.h"
#include "exec/run.h"

namespace orrery::exec {

class Dataset;

struct ServedRun {
  std::vector<double> losses;  // by update: the mean of its gradients' batches, before it
  std::int64_t gradients = 0, dropped = 0;
  std::vector<std::int64_t> staleness;  // gradients by it, those that joined an update
  double seconds = 0;
};

// `program` has one rank, whose batch is a worker's. Of the options, those of a run on processors that say
// what is trained, how long and how fast; `slow` by worker; `link` is what the server sends and receives
// with, emulated: one worker's transfer at a time in each direction. Throws Error when a worker or the server
// fails.
ServedRun run_server(const program::Program& program, const RunOptions& options, const Dataset& data,
                     const ServerRules& rules);

}  // namespace orrery::exec
