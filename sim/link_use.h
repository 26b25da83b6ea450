// SPDX-License-Identifier: Apache-2.0
//
// How full the links of a network are while a program runs on it: on average over a step, and at a moment of
// its timeline; and whose traffic it is.
//
//   average(link) = sum over groups and transfers, and over their ops, of
//                   (bytes per second while it sends) x (time it sends) / (capacity x step)
//
// An op sends from the end of its latency to its end, as the engine has it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/analysis/lanes.h"
#include "sim/cost.h"
#include "sim/traffic.h"

namespace orrery::sim {

// Groups of one stage and stream that use a link.
struct LinkUser {
  std::int32_t stage = 0;
  std::string stream;
  std::int64_t groups = 0;          // or pairs of sender and receiver
  std::vector<std::int64_t> ranks;  // of the first of them
  double share = 0;                 // of the link's capacity, on average over the step
};

class LinkUse {
 public:
  // What is given outlives it.
  LinkUse(const Topology& topology, const program::Program& program, const CostModel& cost, Time step);

  // By link, a share of its capacity; a link that failed has none.
  const std::vector<double>& average() const { return average_; }
  // At a moment of the step's timeline, which has processes for ranks as Timeline::process_of says.
  std::vector<double> at(const Lanes& lanes, Time t) const;
  // Most traffic first.
  std::vector<LinkUser> users(LinkId link) const;

 private:
  double bytes_per_step(const Instance& i) const;  // that each channel of it sends with a weight of one
  void add(const Instance& i, double bytes_per_s, std::vector<double>& out) const;

  const Topology& topology_;
  const program::Program& program_;
  Traffic traffic_;
  Time step_;
  // By stage and slot, in the order of Price::ops: how often a step runs each op.
  std::vector<std::vector<std::vector<std::int64_t>>> ops_;
  struct NamedOp {
    std::int32_t slot;
    std::size_t index;
  };
  std::vector<std::map<std::string, NamedOp>> names_;  // by stage
  std::vector<double> average_;
};

}  // namespace orrery::sim
