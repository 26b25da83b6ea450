// SPDX-License-Identifier: Apache-2.0
//
// Time of a collective on a group, choosing algorithm and protocol as NCCL does: the cheapest of
//
//   ring           base + (hops in the domain) L_i + (hops between domains) L_e + f S / B
//   tree           base + 2 ((g-1) L_i + log2(K) L_e) + 2 S / B          all-reduce only
//   in-network     base + 2 L_nvls + (n+1)/n S / B_nvls                  all-reduce, switch reduces
//   hierarchical   reduce-scatter in the domain, all-reduce between, all-gather in the domain
//
// with f = 2(n-1)/n for all-reduce and (n-1)/n for all-gather and reduce-scatter; S bytes of the whole
// tensor, n ranks in K domains of g, B the ring bandwidth of sim/topology. Each in the Simple protocol
// (full bandwidth) and in LL (half the bandwidth, lower latency). Latencies: NCCL 2.30 tuning.cc
// base 6.6/8.4 us, hop 0.6/3.4 us NVLink, 2.7/14 us network, for LL/Simple; the cluster file carries
// the Simple ones and LL is scaled from them.
#pragma once

#include "program/program.h"
#include "sim/topology/topology.h"

namespace orrery::sim {

enum class CollectiveAlgorithm : std::uint8_t { kNone, kRing, kTree, kInNetwork, kHierarchical };
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

// `kind` is one of kAllReduce, kAllReduceMax, kAllGather, kReduceScatter.
CollectiveCost collective_cost(program::OpKind kind, Bytes whole, const GroupLinks& group,
                               const Cluster& cluster);

// One message of `bytes` between neighbouring pipeline stages.
Time transfer_cost(Bytes bytes, const GroupLinks& pair, const Cluster& cluster);
Wire transfer_wire(const GroupLinks& pair, const Cluster& cluster);

// nccl-tests' bus bandwidth: algorithm bandwidth S/t times f.
double bus_bandwidth(program::OpKind kind, Bytes whole, std::int64_t ranks, Time time);

}  // namespace orrery::sim
