// SPDX-License-Identifier: Apache-2.0
//
// What groups of ranks put on the links of the cluster, and what they get.
//
// A ring over a group inside a scale-up domain uses the route from each member to the next; inside a node
// with cables of its own there are several such rings, in orders that use them well. Over several domains it
// has as many channels as the domain with the fewest members has, at most 9, each with a share of the data:
// channel c passes all members of a domain and goes from the c-th member there to the c-th of the next
// domain, so every rail carries its part (what NCCL's search finds on such nodes). All groups of an axis do
// so at once; the slowest link of the slowest group bounds them.
//
//   Topology t(cluster);
//   GroupLinks g = t.group(8, 1);          // ranks 0..7 of every 8: in the node
//   GroupLinks d = t.group(4, 8);          // ranks 0, 8, 16, 24: one per node, eight groups at once
//   GroupLinks f = t.group(7, 1, 7);       // ranks 0..6 and nobody else
#pragma once

#include <span>

#include "program/phases.h"
#include "sim/topology/network.h"

namespace orrery::sim {

// What one group of a strided set of groups gets while all of them communicate.
struct GroupLinks {
  std::int64_t ranks = 1;
  std::int64_t domains = 1;     // scale-up domains it spans
  std::int64_t per_domain = 1;  // members in the fullest one
  std::size_t node_type = 0;  // of its members; of several types the one with the slowest links inside a node
  Bandwidth ring;             // of each member in the ring, all channels together
  Bandwidth intra;            // of a member that sends evenly to all of its domain; zero: the cluster's
  Time extra_latency;         // of its longest hop, beyond the cluster's latency of a hop
  LinkId bottleneck = 0;      // a link that bounds it; meaningless for one rank
  bool local() const { return domains == 1; }
};

// Whether a gets more: a wider ring; of equal ones the one over fewer domains, or shorter hops.
bool faster(const GroupLinks& a, const GroupLinks& b);
inline bool alike(const GroupLinks& a, const GroupLinks& b) {
  return !faster(a, b) && !faster(b, a);
}

// Bytes on each link per byte that a member of a ring, or a sender, has passed on, in units of 1/kWhole.
class LinkLoads {
 public:
  static constexpr std::int64_t kWhole = 1 << 20;
  // What one ring, or one flow, puts on links: each link once, in order.
  struct Load {
    LinkId link;
    std::int64_t weight;
  };
  struct Added {
    std::vector<Load> loads;
    Time extra_latency;         // of its longest route
    std::int64_t channels = 1;  // of a ring
    void clear() {
      loads.clear();
      extra_latency = {};
      channels = 1;
    }
  };
  explicit LinkLoads(const Network& network);
  // `added`, where given, says what was added.
  void add_ring(std::span<const std::int64_t> members, std::int64_t domain, Added* added = nullptr);
  void add_flow(std::int64_t from, std::int64_t to, Added* added = nullptr);
  // Each part on its way at once, per byte that the busiest member sends or receives.
  void add_direct(program::Pattern pattern, std::span<const std::int64_t> members, Added* added = nullptr);
  void clear();

  std::int64_t operator[](LinkId l) const { return load_[l]; }
  const std::vector<LinkId>& used() const { return used_; }
  // The bandwidth at which all of it passes at once, and the link that bounds it.
  std::pair<Bandwidth, LinkId> bandwidth() const;
  // The same of a part of it while all of it passes.
  std::pair<Bandwidth, LinkId> bandwidth(std::span<const Load> part) const;
  Time extra_latency() const { return extra_latency_; }  // of the longest route so far

 private:
  void add(std::int64_t from, std::int64_t to, std::int64_t weight, Added* added);
  void add_local_ring(std::span<const std::int64_t> members, Added* added);
  template <class Links, class Id>
  std::pair<Bandwidth, LinkId> slowest(const Links& links, Id id) const;

  const Network& network_;
  std::vector<std::int64_t> load_;
  std::vector<LinkId> used_;
  Loads flows_;  // for adaptive routes
  Path path_;
  std::vector<std::size_t> starts_;
  Time extra_latency_{0};
};

// Of members in the order of a ring: how many, and how they lie in scale-up domains; all but what links give.
GroupLinks group_shape(std::span<const std::int64_t> members, const Network& network, std::int64_t domain);

class Topology {
 public:
  explicit Topology(const Cluster& cluster);
  const Cluster& cluster() const { return cluster_; }
  const Network& network() const { return network_; }

  // Groups of `size` ranks `stride` apart, {o, o + stride, ..} for every offset o, that fill the first
  // `ranks` devices. `ranks` is a multiple of size * stride: all devices less a remainder where it is not
  // given. What each of them gets, in the order of their first ranks; only those that begin before rank
  // distinct(size, stride, ranks), after which all repeats, and one where all get the same.
  std::vector<GroupLinks> groups(std::int64_t size, std::int64_t stride, std::int64_t ranks) const;
  std::int64_t distinct(std::int64_t size, std::int64_t stride, std::int64_t ranks) const;
  // The slowest of them.
  GroupLinks group(std::int64_t size, std::int64_t stride, std::int64_t ranks) const;
  GroupLinks group(std::int64_t size, std::int64_t stride) const;

  // Pipelines of `stages` ranks `stride` apart that fill the first `ranks` devices: what transfers get from
  // each stage to the one that is `by` further on, by the stage that sends, in the pipeline that takes
  // longest for all of them.
  std::vector<GroupLinks> transfers(std::int64_t stages, std::int64_t stride, std::int64_t by,
                                    std::int64_t ranks) const;
  // The slowest between neighbouring stages of any pipeline.
  GroupLinks pairs(std::int64_t stride, std::int64_t stages, std::int64_t ranks) const;

 private:
  struct Transfer {
    std::int64_t stage, pipeline;  // that sends
    GroupLinks links;
  };
  // Of all ranks from `begin` to `end` that send, at the same time.
  std::vector<Transfer> all_transfers(std::int64_t stages, std::int64_t stride, std::int64_t by,
                                      std::int64_t begin, std::int64_t end) const;
  void add_first_block(std::int64_t size, std::int64_t stride, LinkLoads& loads) const;

  Cluster cluster_;
  Network network_;
};

}  // namespace orrery::sim
