// SPDX-License-Identifier: Apache-2.0
//
// Training through parameter servers, by events: workers pull parameters, compute a gradient of their own
// batch and push it; servers, each with an equal part of all parameters, update once so many gradients have
// come (Li et al., OSDI 2014). What a worker pushes to all servers, and pulls from them, are flows that share
// the network's links max-min fairly, so that the servers' links are where such training waits.
// core/server_rules.h says what counts.
//
// Of n alike workers that never wait for a link, each gradient joins after one of every other worker: the
// mean staleness of an asynchronous run that updates with each gradient is n - 1.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/server_rules.h"
#include "sim/topology/network.h"

namespace orrery::sim {

struct ServerWork {
  std::vector<std::int64_t> workers, servers;  // devices that they are reached at
  Time compute;                                // of a gradient
  double variation = 0;                        // of that, log-normal: standard deviation over mean
  std::map<std::int64_t, double> slow;         // by worker: factor on its compute
  Bytes pulled, pushed;                        // by a worker, in all
  Time update;                                 // of a server's part
  Time latency;                                // of a message, beyond its route's
  std::int64_t updates = 1000;                 // to simulate
  std::uint64_t seed = 1;
};

// Where a worker's time went, in the mean of all.
struct WorkerTime {
  Time computing, pulling, pushing, waiting;
};

struct ServerLink {
  std::string name;
  double busy = 0;  // share of its capacity that was used
};

struct ServedTraining {
  Time total;
  std::int64_t updates = 0, gradients = 0, dropped = 0;
  std::vector<std::int64_t> staleness;  // gradients by it, those that joined an update
  WorkerTime mean;
  std::vector<ServerLink> links;  // the fullest first; at most eight
  double updates_per_s() const { return static_cast<double>(updates) / seconds(total); }
  double mean_staleness() const;
  // The least staleness that so large a share of the gradients does not exceed.
  std::int64_t staleness_at(double share) const;
};

// Deterministic: equal input, equal output.
ServedTraining simulate_servers(const Network& network, const ServerRules& rules, const ServerWork& work);

}  // namespace orrery::sim
