// SPDX-License-Identifier: Apache-2.0
//
// A collective played on a network: the flows of each of its rounds share links, and a round ends with its
// last flow (members wait for each other, as rings and trees do once they are full). What the formulas of
// collective.h say in closed form for the traffic of a plan, this finds for any algorithm, order of ranks and
// fabric.
#pragma once

#include <span>

#include "program/phases.h"
#include "sim/network/flows.h"
#include "sim/topology/topology.h"

namespace orrery::sim {

struct NetworkRun {
  Time time{0};
  std::int64_t rounds = 0;
  std::int64_t flows = 0;        // of all rounds
  std::size_t most_classes = 0;  // of flows, in one round
  LinkId busiest = 0;            // needs longest for the bytes of all rounds
  Time busiest_needs{0};
  program::Algorithm used = program::Algorithm::kDirect;
};

struct NetworkCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  program::Algorithm algorithm = program::Algorithm::kRing;
  Bytes whole;
  std::int32_t chunks = 64;  // of a pipelined tree or chain
  // Of an all-to-all: the first member receives so many times its even share, as a popular expert does; the
  // others share what is left.
  double imbalance = 1;
};

// `devices`: of each member, in order. A ring over several full domains has a channel for each member of a
// domain (NCCL's channels): channel c enters a domain at member c and leaves it on the same rail. Throws
// Error where failed links leave no way.
NetworkRun run_on_network(const Topology& topology, const NetworkCollective& collective,
                          std::span<const std::int64_t> devices);

// The members in an order drawn by Fisher and Yates, the same for a seed on every machine.
std::vector<std::int64_t> shuffled(std::vector<std::int64_t> devices, std::uint64_t seed);

}  // namespace orrery::sim
