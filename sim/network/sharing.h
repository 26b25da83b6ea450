// SPDX-License-Identifier: Apache-2.0
//
// Which links the communication of a plan shares.
//
// All ranks of a pipeline stage do the same work at the same time, so what the groups of one axis of one
// stage put on a link is one *pattern*: an activity of FairShares whose weight on the link is the number of
// its flows there. Links with the same capacity and the same patterns are one; links that the patterns using
// them cannot fill together are left out. What remains is small, whatever the number of ranks: the engine
// asks for rates whenever a pattern starts or stops.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"
#include "sim/network/fair_shares.h"
#include "sim/topology/topology.h"

namespace orrery::sim {

class CostModel;

struct SharedLink {
  std::string name;        // of one of them
  std::int64_t alike = 0;  // how many links this stands for
  Bandwidth capacity;
};

struct Sharing {
  // An op's flows begin when its latency has passed; alone, each of them has this rate (bytes per second).
  struct Flow {
    std::int32_t pattern = -1;  // none: it shares nothing
    Time latency;
    std::int64_t rate = 0;
  };
  std::vector<SharedLink> links;
  FairShares shares{{}};
  std::vector<std::vector<std::vector<Flow>>> ops;  // [class][segment][op]; empty when nothing is shared
};

// Throws Error when the plan has more ranks than the cluster has devices.
Sharing share_links(const Topology& topology, const program::Program& program, const CostModel& cost);

}  // namespace orrery::sim
