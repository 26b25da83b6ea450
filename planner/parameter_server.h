// SPDX-License-Identifier: Apache-2.0
//
// A scenario trained through parameter servers (sim/parameter_server/): where workers and servers stand, what
// a gradient takes, and what passes between them.
//
//   servers  on the first nodes, so many on each, updated by the hosts' processors
//   workers  a device each, on the nodes behind them; the batch of an update is global_batch x wait_for /
//   workers
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "sim/parameter_server/parameter_server.h"
#include "sim/topology/topology.h"

namespace orrery::planner {

struct ServersAsked {
  ServerRules rules;
  std::int64_t servers = 1, servers_per_node = 1;
  double variation = 0;                 // of a gradient's time
  std::map<std::int64_t, double> slow;  // by worker
  std::int64_t updates = 1000;
  std::uint64_t seed = 1;
};

// What a worker runs: one rank, and its part of the batch. Throws InputError where workers do not divide it.
program::Program worker_program(const Problem& problem, const ServersAsked& asked);

struct ServersAnswer {
  sim::ServerWork work;
  sim::ServedTraining run;
  std::int64_t worker_bytes = 0;  // of a worker's device: parameters, a gradient and activations
  double samples_per_s = 0;
  // Of the step of one worker alone that waits for nothing, so many times: what links and servers cost.
  double efficiency = 0;
  std::string bottleneck;  // in words
};
// Throws InputError where the cluster has too few nodes, or no hosts.
ServersAnswer train_through_servers(const Problem& problem, const sim::Topology& topology,
                                    const program::Program& worker, const ServersAsked& asked);

}  // namespace orrery::planner
