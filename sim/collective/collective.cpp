// SPDX-License-Identifier: Apache-2.0
#include "sim/collective/collective.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace orrery::sim {
namespace {

// Against Simple in NCCL 2.30's tables (base 8.4 us, NVLink hop 3.4, network hop 14). Half of each line of LL
// is flags, an eighth of a line of LL128 and what it loses besides.
struct Protocol {
  double base, hop, net, bandwidth;
  bool low_latency;
};
constexpr Protocol kProtocols[] = {{1.0, 1.0, 1.0, 1.0, false},
                                   {14.0 / 8.4, 1.9 / 3.4, 4.0 / 14.0, 0.92, true},
                                   {6.6 / 8.4, 0.6 / 3.4, 2.7 / 14.0, 0.45, true}};

// A message passes in pieces while hops go on: with the best number of pieces that takes
// (sqrt(latency) + sqrt(transfer))^2, so 2 sqrt(latency transfer) beyond both. Between nodes it does, up to
// twice the latency, where pieces are no longer cut smaller; inside nodes 0.4 in place of 2 was seen. Fitted
// to 1,494 published collectives together with the latencies of nodes.
constexpr double kPiecesInside = 0.4, kPiecesBetween = 2, kMostPieces = 2;

// NVLS pays from 5 ranks (NCCL issue 272).
// What a device passes there of what a ring of 8 would: in_network_gain is that of 8 devices.
constexpr double kInNetworkBus = (2 * 7.0 / 8) / (9.0 / 8);
constexpr double kInNetworkHops = 25.0 / 4.1;
constexpr std::int64_t kInNetworkLeastRanks = 5;
// Share of the ideal overlap of a hierarchical collective's legs that is lost (4 nodes of B200: 22.05 ms
// measured between 16.1 fully overlapped and 26.3 serial).
constexpr double kHierarchicalLoss = 0.6;

double log2_ceil(std::int64_t n) {
  return n <= 1 ? 0 : static_cast<double>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
}

// Of a token's groups of experts, how many nodes there are that have one of them: top_groups of as many nodes
// as groups, or of more; of fewer nodes those that not all groups of which are left out.
double nodes_of_groups(const program::ops::Collective& op, double nodes) {
  const auto groups = static_cast<double>(op.groups), top = static_cast<double>(op.top_groups);
  if (nodes >= groups) return nodes * top / groups;
  double none = 1;  // of a node's groups is chosen: C(groups - here, top) / C(groups, top)
  for (double i = 0; i < top; ++i) none *= std::max(0.0, groups - groups / nodes - i) / (groups - i);
  return nodes * (1 - none);
}
// Of the rows that leave a node one by one, those that leave it where each node gets one of a token's.
double share_of_nodes(const program::ops::Collective& op, double nodes) {
  const auto k = static_cast<double>(op.copies);
  const double of = std::max(1.0, nodes_of_groups(op, nodes));
  return of * (1 - std::pow(1 - 1 / of, k)) / k;
}

}  // namespace

std::string_view name_of(CollectiveAlgorithm a) {
  static constexpr const char* kNames[] = {
      "none", "ring", "tree", "in-network", "hierarchical", "in-network tree", "exchange"};
  return kNames[static_cast<std::size_t>(a)];
}

CollectiveCost collective_formula(const program::ops::Collective& op, Bytes whole, const GroupLinks& group,
                                  const Cluster& cluster) {
  using enum CollectiveKind;
  const CollectiveKind kind = op.collective;
  if (group.ranks <= 1) return {};
  const auto n = static_cast<double>(group.ranks), domains = static_cast<double>(group.domains);
  const auto g = static_cast<double>(group.per_domain);
  const double bytes = static_cast<double>(whole.value);
  const ScaleUp& inside_node = cluster.type(group.node_type);
  const bool reduce_all = kind == kAllReduce;
  const bool rooted = kind == kBroadcast || kind == kReduce;
  const bool direct = kind == kAllToAll || kind == kGather || kind == kScatter;
  const double rounds = reduce_all ? 2 : 1;
  const double ring_bandwidth = static_cast<double>(group.ring.value);
  const double intra_bandwidth =
      group.intra.value > 0
          ? static_cast<double>(group.intra.value)
          : static_cast<double>(inside_node.intra_bandwidth.value) * inside_node.intra_efficiency;
  const double base = seconds(inside_node.collective_latency);
  const double simple_net = seconds(cluster.nic_latency + group.extra_latency);
  const double copies = !group.local() || rooted ? 0
                        : direct                 ? inside_node.exchange_copy
                                                 : inside_node.ring_copy;
  const double passed = rooted ? 1 : (rounds * (n - 1) + copies) / n;  // of the tensor, by each member

  const bool by_node = op.copies > 1 && !group.local();
  const double of_nodes = by_node ? share_of_nodes(op, domains) : 1;

  // What a member sends out of its domain while all members do: its share of the ring's bandwidth, or, where
  // links inside bound the ring, of the node's ports.
  const NodeType& node = cluster.type(group.node_type);
  const double ports = static_cast<double>(node.nic_bandwidth.value) * node.nic_efficiency;
  const double port = ports / static_cast<double>(cluster.devices_per_node);
  const double own_port =
      ring_bandwidth < intra_bandwidth ? ring_bandwidth / g : std::max(ring_bandwidth / g, port);

  struct Offer {
    double latency, transfer;
    CollectiveAlgorithm algorithm;
    bool low_latency;
  };
  Offer best{0, std::numeric_limits<double>::infinity(), CollectiveAlgorithm::kNone, false};
  const auto offer = [&](double latency, double transfer, CollectiveAlgorithm a, bool low_latency) {
    const double root = std::sqrt(latency * transfer);
    transfer += group.local() ? kPiecesInside * root : std::min(kPiecesBetween * root, kMostPieces * latency);
    if (latency + transfer < best.latency + best.transfer) best = {latency, transfer, a, low_latency};
  };
  const auto chosen = [&]() -> CollectiveCost {
    // Of the tensor, by each member.
    const double sent = kind == kShift ? 1 : by_node ? of_nodes * (n - 1) / n : rounds * (n - 1) / n;
    const double rate = std::min(ring_bandwidth, sent * bytes / best.transfer);
    return {from_seconds(best.latency + best.transfer),
            {from_seconds(best.latency), Bandwidth{saturating_cast(rate)}},
            best.algorithm,
            best.low_latency};
  };
  for (const Protocol& p : kProtocols) {
    const double hop = seconds(inside_node.intra_latency) * p.hop;
    const double net = p.low_latency && cluster.nic_latency_small.value > 0
                           ? seconds(cluster.nic_latency_small + group.extra_latency)
                           : simple_net * p.net;
    const double start = base * p.base;
    if (direct) {
      const double inside =
          by_node ? bytes * (g - 1) / g / intra_bandwidth : bytes * (g - 1 + copies) / n / intra_bandwidth;
      // Every member sends through its own port; a root through all of its domain's, where PXN lets it.
      const bool alone = kind == kAllToAll || !cluster.fabric.pxn;
      const double outside = of_nodes * bytes * (n - g) / n / (alone ? own_port : ring_bandwidth);
      offer(start + hop + (group.local() ? 0 : net), std::max(inside, outside) / p.bandwidth,
            CollectiveAlgorithm::kExchange, p.low_latency);
      continue;
    }
    if (kind == kShift) {
      // The one member of a domain that sends to another has a whole adapter.
      const auto adapters = static_cast<double>(std::min(cluster.nics, cluster.devices_per_node));
      const double to_next =
          group.local() ? intra_bandwidth : std::min(intra_bandwidth, std::max(own_port, ports / adapters));
      offer(start + hop + (group.local() ? 0 : net), bytes / (to_next * p.bandwidth),
            CollectiveAlgorithm::kRing, p.low_latency);
      continue;
    }
    const double ring_hops = rounds * ((n - 1) - (domains - 1)) * hop + rounds * (domains - 1) * net;
    offer(start + ring_hops, passed * bytes / (ring_bandwidth * p.bandwidth), CollectiveAlgorithm::kRing,
          p.low_latency);
    if (!reduce_all) continue;
    const double tree_hops = 2 * ((g - 1) * hop + log2_ceil(group.domains) * net);
    offer(start + tree_hops, 2 * bytes / (ring_bandwidth * p.bandwidth * 0.92), CollectiveAlgorithm::kTree,
          p.low_latency);
  }
  if (!reduce_all) return chosen();
  const double switch_hops = kInNetworkHops * seconds(inside_node.intra_latency);
  if (inside_node.in_network_gain > 0 && group.per_domain >= kInNetworkLeastRanks) {
    // Each device passes (g+1)/g of the tensor, and never more than a bus of 2(g-1)/g does.
    const double bus = intra_bandwidth * inside_node.in_network_gain;
    const double inside = std::max((g + 1) / g * kInNetworkBus, 2 * (g - 1) / g) * bytes / bus;
    const double hops = switch_hops + 2 * log2_ceil(group.domains) * simple_net;
    if (group.local()) {
      offer(base + hops, inside, CollectiveAlgorithm::kInNetwork, false);
    } else if (group.domains == 2) {
      offer(base + hops, std::max(inside, bytes / ring_bandwidth), CollectiveAlgorithm::kInNetworkTree,
            false);
    }
  }
  if (group.domains > 1 && group.per_domain > 1) {
    const double inside = 2 * (g - 1) / g * bytes / intra_bandwidth;
    const double between = 2 * (domains - 1) / domains * bytes / ring_bandwidth;
    const double hops =
        2 * (g - 1) * seconds(inside_node.intra_latency) + 2 * log2_ceil(group.domains) * simple_net;
    offer(2 * base + hops, std::max(inside, between) + kHierarchicalLoss * std::min(inside, between),
          CollectiveAlgorithm::kHierarchical, false);
  }
  return chosen();
}

CollectiveModel::CollectiveModel(const Cluster& cluster, Time sync) : cluster_(&cluster), sync_(sync) {
  auto measured = std::make_shared<std::vector<MeasuredCollectives>>();
  for (std::size_t i = 0; i < cluster.types(); ++i) measured->emplace_back(cluster, cluster.type(i));
  measured_ = std::move(measured);
}

CollectiveCost CollectiveModel::cost(const program::ops::Collective& op, Bytes whole,
                                     const GroupLinks& group) const {
  const CollectiveKind kind = op.collective;
  CollectiveCost out = collective_formula(op, whole, group, *cluster_);
  if (group.ranks <= 1) return out;
  const Time sync{sync_.value * group.ranks};
  if (!group.local()) {
    out.time += sync;
    out.wire.latency += sync;
    return out;
  }
  // A shift is one round of an all-gather of as many such tensors.
  const Bytes like = kind == CollectiveKind::kShift ? whole * group.ranks : whole;
  const double correction = (*measured_)[group.node_type].correction(kind, group.ranks, like);
  out.time = from_seconds(seconds(out.time) * correction) + sync;
  out.wire.latency = from_seconds(seconds(out.wire.latency) * correction) + sync;
  out.wire.rate =
      std::min(group.ring, Bandwidth{saturating_cast(static_cast<double>(out.wire.rate.value) / correction)});
  return out;
}

Wire transfer_wire(const GroupLinks& pair, const Cluster& cluster) {
  return {
      pair.local() ? cluster.type(pair.node_type).intra_latency : cluster.nic_latency + pair.extra_latency,
      pair.ring};
}

Time transfer_cost(Bytes bytes, const GroupLinks& pair, const Cluster& cluster) {
  const Wire wire = transfer_wire(pair, cluster);
  return wire.latency + transfer_time(bytes, wire.rate);
}

double bus_bandwidth(CollectiveKind kind, Bytes whole, std::int64_t ranks, Time time) {
  using enum CollectiveKind;
  const auto n = static_cast<double>(ranks);
  const double algorithm = static_cast<double>(whole.value) / seconds(time);
  if (kind == kBroadcast || kind == kReduce || kind == kShift) return algorithm;
  return algorithm * (kind == kAllReduce ? 2 : 1) * (n - 1) / n;
}

}  // namespace orrery::sim
