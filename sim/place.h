// SPDX-License-Identifier: Apache-2.0
//
// Lays a program on a cluster: what every group of ranks costs, what it puts on which links, and which ranks
// cannot be told apart.
//
// Groups are enumerated one by one: each has the bandwidth of its own links while all groups of its axis
// communicate, so a failed link slows those that use it. Links that ops can never fill together are left out.
// Ranks then fold into places: one a class of the coarsest equitable partition of ranks, groups and links
// (equitable.h), which gives each rank, to the picosecond, what it has on its own. What puts ranks apart are
// stages, slow ranks, types of nodes, the groups' prices and the links they share; nothing does where a
// cluster is regular.
#pragma once

#include <limits>
#include <map>

#include "sim/cost.h"
#include "sim/engine/layout.h"

namespace orrery::sim {

struct PlaceOptions {
  Fold fold = Fold::kClasses;
  // With kClasses: stages are folded as with kStages when they would have more places than this on average,
  // and the step more ops than that.
  std::int64_t most_places = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_ops = 1'000'000;
  std::map<std::int64_t, double> slow;  // by rank: the factor on the time of its compute
};

// Throws Error when the plan has more ranks than the cluster has devices.
Layout place(const Topology& topology, const program::Program& program, const CostModel& cost,
             const PlaceOptions& options = {});

}  // namespace orrery::sim
