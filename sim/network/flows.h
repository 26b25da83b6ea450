// SPDX-License-Identifier: Apache-2.0
//
// Flows that are sent over a network together: when each of them ends.
//
// A flow waits for its route's latency and then has its max-min fair rate, which grows when others end. Time
// is whole picoseconds and bytes are counted exactly. Flows that cannot be told apart are one class with a
// weight (equitable.h), so a uniform all-to-all of 1,024 hosts is a handful of activities instead of a
// million.
//
//   Flows flows(network);
//   network.route(0, 12, path);
//   flows.add(path, Bytes{1 << 20}, latency);
//   FlowTimes t = flows.run();
#pragma once

#include <vector>

#include "sim/topology/network.h"

namespace orrery::sim {

struct FlowTimes {
  Time end{0};              // of the last flow
  std::vector<Time> ends;   // by flow
  std::size_t classes = 0;  // of flows
};

class Flows {
 public:
  explicit Flows(const Network& network) : network_(network) {}
  // A flow without bytes or links ends when its latency has passed.
  void add(const Path& path, Bytes bytes, Time latency = Time{0});
  void clear();
  std::size_t size() const { return bytes_.size(); }
  // `fold`: whether alike flows are put together. The result is the same to the picosecond.
  FlowTimes run(bool fold = true) const;

 private:
  struct Classes;
  Classes each_its_own() const;
  Classes alike() const;

  const Network& network_;
  std::vector<std::size_t> first_{0};  // by flow, into links_
  std::vector<LinkId> links_;
  std::vector<std::int64_t> bytes_;
  std::vector<Time> start_;
};

}  // namespace orrery::sim
