// SPDX-License-Identifier: Apache-2.0
#include "sim/collective/collective.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace orrery::sim {
namespace {

// LL against Simple in NCCL 2.30's tables: base 6.6/8.4, NVLink hop 0.6/3.4, network hop 2.7/14; half of
// each LL line is flags.
struct Protocol {
  double base, hop, net, bandwidth;
  bool low_latency;
};
constexpr Protocol kProtocols[] = {{1.0, 1.0, 1.0, 1.0, false},
                                   {6.6 / 8.4, 0.6 / 3.4, 2.7 / 14.0, 0.45, true}};

// NVLS: 480 GB/s bus bandwidth at 8 H100 where the ring gets 370 (NCCL issue 272); it pays from 5 ranks.
constexpr double kInNetworkGain = 1.3;
constexpr double kInNetworkHops = 25.0 / 3.4;
constexpr std::int64_t kInNetworkLeastRanks = 5;
// Share of the ideal overlap of a hierarchical collective's legs that is lost (4 nodes of B200: 22.05 ms
// measured between 16.1 fully overlapped and 26.3 serial).
constexpr double kHierarchicalLoss = 0.6;

double log2_ceil(std::int64_t n) {
  return n <= 1 ? 0 : static_cast<double>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
}

}  // namespace

std::string_view name_of(CollectiveAlgorithm a) {
  static constexpr const char* kNames[] = {"none", "ring", "tree", "in-network", "hierarchical"};
  return kNames[static_cast<std::size_t>(a)];
}

CollectiveCost collective_cost(program::OpKind kind, Bytes whole, const GroupLinks& group,
                               const Cluster& cluster) {
  if (group.ranks <= 1) return {};
  const auto n = static_cast<double>(group.ranks), domains = static_cast<double>(group.domains);
  const double bytes = static_cast<double>(whole.value);
  const bool reduce_all = kind == program::OpKind::kAllReduce || kind == program::OpKind::kAllReduceMax;
  const double rounds = reduce_all ? 2 : 1;
  const double ring_bandwidth = static_cast<double>(group.ring.value);
  const double intra_bandwidth =
      static_cast<double>(cluster.intra_bandwidth.value) * cluster.intra_efficiency;
  const double base = seconds(cluster.collective_latency);
  const double network_hop = seconds(cluster.nic_latency + group.extra_latency);

  CollectiveCost best{.time = Time{std::numeric_limits<std::int64_t>::max()}};
  const auto offer = [&](double latency, double transfer, CollectiveAlgorithm a, bool low_latency) {
    const Time t = from_seconds(latency + transfer);
    if (t >= best.time) return;
    const double rate = std::min(ring_bandwidth, rounds * (n - 1) / n * bytes / transfer);
    best = {t, {from_seconds(latency), Bandwidth{static_cast<std::int64_t>(rate)}}, a, low_latency};
  };
  for (const Protocol& p : kProtocols) {
    const double hop = seconds(cluster.intra_latency) * p.hop;
    const double net = network_hop * p.net;
    const double start = base * p.base;
    const double ring_hops = rounds * ((n - 1) - (domains - 1)) * hop + rounds * (domains - 1) * net;
    offer(start + ring_hops, rounds * (n - 1) / n * bytes / (ring_bandwidth * p.bandwidth),
          CollectiveAlgorithm::kRing, p.low_latency);
    if (!reduce_all) continue;
    const double tree_hops =
        2 * (static_cast<double>(group.per_domain - 1) * hop + log2_ceil(group.domains) * net);
    offer(start + tree_hops, 2 * bytes / (ring_bandwidth * p.bandwidth * 0.92), CollectiveAlgorithm::kTree,
          p.low_latency);
  }
  if (reduce_all && cluster.in_network_reduction && group.local() && group.ranks >= kInNetworkLeastRanks) {
    offer(base + kInNetworkHops * seconds(cluster.intra_latency),
          2 * (n - 1) / n * bytes / (intra_bandwidth * kInNetworkGain), CollectiveAlgorithm::kInNetwork,
          false);
  }
  if (reduce_all && group.domains > 1 && group.per_domain > 1) {
    const auto g = static_cast<double>(group.per_domain);
    const double inside = 2 * (g - 1) / g * bytes / intra_bandwidth;
    const double between = 2 * (domains - 1) / domains * bytes / ring_bandwidth;
    const double hops =
        2 * (g - 1) * seconds(cluster.intra_latency) + 2 * log2_ceil(group.domains) * network_hop;
    offer(2 * base + hops, std::max(inside, between) + kHierarchicalLoss * std::min(inside, between),
          CollectiveAlgorithm::kHierarchical, false);
  }
  return best;
}

Wire transfer_wire(const GroupLinks& pair, const Cluster& cluster) {
  return {pair.local() ? cluster.intra_latency : cluster.nic_latency + pair.extra_latency, pair.ring};
}

Time transfer_cost(Bytes bytes, const GroupLinks& pair, const Cluster& cluster) {
  const Wire wire = transfer_wire(pair, cluster);
  return wire.latency + transfer_time(bytes, wire.rate);
}

double bus_bandwidth(program::OpKind kind, Bytes whole, std::int64_t ranks, Time time) {
  const auto n = static_cast<double>(ranks);
  const bool reduce_all = kind == program::OpKind::kAllReduce || kind == program::OpKind::kAllReduceMax;
  return static_cast<double>(whole.value) / seconds(time) * (reduce_all ? 2 : 1) * (n - 1) / n;
}

}  // namespace orrery::sim
