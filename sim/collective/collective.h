// SPDX-License-Identifier: Apache-2.0
//
// Time of a collective on a group, choosing algorithm and protocol as NCCL does: the cheapest of
//
//   ring           base + (hops in the domain) L_i + (hops between domains) L_e + (f + c/n) S / B
//   tree           base + 2 ((g-1) L_i + log2(K) L_e) + 2 S / B          all-reduce only
//   in-network     base + 2 L_nvls + f S / (B gain)                      all-reduce, the domain's switch
//   reduces hierarchical   reduce-scatter in the domain, all-reduce between, all-gather in the domain
//   in-network tree  the same in both of two domains, S over the links between them meanwhile
//   exchange       base + L_i or L_e + the part that stays in the domain over B_i or the part that leaves it
//                  over a member's share of the ports, whichever takes longer             all-to-all
//
//                  by node, of k rows of a token each of D nodes gets one, D = m (1 - (1 - 1/m)^k) of the m
//                  nodes that its experts may be on: D/k of the part that leaves the domain, and all rows
//                  pass inside one
//   shift          base + L_i or L_e + S over B, between domains over a member's share of the ports shift
//
// with f = 2(n-1)/n for all-reduce and (n-1)/n for all-gather and reduce-scatter; S bytes of the whole
// tensor, n ranks in K domains of g, B the ring bandwidth of sim/topology, c the cluster's ring_copy (a
// member also copies its own part from input to output; inside a domain only). Each in the protocols Simple
// (full bandwidth), LL128 (0.92 of it) and LL (0.45, lowest latency). Latencies: NCCL 2.30 tuning.cc, base
// 8.4, 14, 6.6 us, hop 3.4, 1.9, 0.6 us NVLink, 14, 4, 2.7 us network; the cluster file carries those of
// Simple, 1.3 and 1.2 times as long inside nodes, and the others are scaled from them. To a transfer that
// passes in pieces comes a share of 2 sqrt(latency transfer). Broadcast and reduce pass a chain; gather and
// scatter are bounded by the root. What was measured corrects the time inside a domain (measured.h).
#pragma once

#include <memory>

#include "program/ops/communication.h"
#include "sim/collective/measured.h"
#include "sim/topology/topology.h"

namespace orrery::sim {

enum class CollectiveAlgorithm : std::uint8_t {
  kNone,
  kRing,
  kTree,
  kInNetwork,
  kHierarchical,
  kInNetworkTree,
  kExchange
};
std::string_view name_of(CollectiveAlgorithm a);

// How a transfer uses links: not at all while its latency passes, then at this rate, that of each member of a
// ring or of a sender, at most what the links give it alone.
struct Wire {
  Time latency;
  Bandwidth rate;
};

struct CollectiveCost {
  Time time;
  Wire wire;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  bool low_latency = false;
};

// By formula alone.
CollectiveCost collective_formula(const program::ops::Collective& op, Bytes whole, const GroupLinks& group,
                                  const Cluster& cluster);
inline CollectiveCost collective_formula(CollectiveKind kind, Bytes whole, const GroupLinks& group,
                                         const Cluster& cluster) {
  return collective_formula(program::ops::Collective{kind}, whole, group, cluster);
}

// Cheap to copy; the cluster outlives it. `sync`: what software adds for each member
// (Stack::collective_sync).
class CollectiveModel {
 public:
  explicit CollectiveModel(const Cluster& cluster, Time sync = Time{0});
  // `whole`: bytes, whatever elements the op has.
  CollectiveCost cost(const program::ops::Collective& op, Bytes whole, const GroupLinks& group) const;
  CollectiveCost cost(CollectiveKind kind, Bytes whole, const GroupLinks& group) const {
    return cost(program::ops::Collective{kind}, whole, group);
  }

 private:
  const Cluster* cluster_;
  Time sync_;
  std::shared_ptr<const std::vector<MeasuredCollectives>> measured_;  // by type of node
};

// One message of `bytes` between neighbouring pipeline stages.
Time transfer_cost(Bytes bytes, const GroupLinks& pair, const Cluster& cluster);
Wire transfer_wire(const GroupLinks& pair, const Cluster& cluster);

// nccl-tests' bus bandwidth: algorithm bandwidth S/t times f.
double bus_bandwidth(CollectiveKind kind, Bytes whole, std::int64_t ranks, Time time);

}  // namespace orrery::sim
