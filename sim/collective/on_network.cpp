// SPDX-License-Identifier: Apache-2.0
#include "sim/collective/on_network.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace orrery::sim {
namespace {

// The orders of a ring's channels; one where the domains do not all have as many members, one after another.
std::vector<std::vector<std::int64_t>> channels(std::span<const std::int64_t> devices, std::int64_t domain) {
  const std::vector<std::int64_t> given(devices.begin(), devices.end());
  std::size_t each = 1;
  while (each < given.size() && given[each] / domain == given[0] / domain) ++each;
  const std::size_t domains = given.size() / each;
  if (domains == 1 || given.size() % each != 0) return {given};
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] / domain != given[i / each * each] / domain) return {given};
    if (i >= each && i % each == 0 && given[i] / domain == given[i - 1] / domain) return {given};
  }
  std::vector<std::vector<std::int64_t>> out(each);
  for (std::size_t c = 0; c < each; ++c) {
    for (std::size_t d = 0; d < domains; ++d) {
      // Even domains are passed from member c up and round to c - 1, odd ones back.
      for (std::size_t i = 0; i < each; ++i)
        out[c].push_back(given[d * each + (d % 2 == 0 ? c + i : c + 2 * each - 1 - i) % each]);
    }
  }
  return out;
}

program::Phases phases_of(const NetworkCollective& c, std::int32_t members, std::int32_t node) {
  if (c.imbalance == 1) return program::phases_of(c.algorithm, c.kind, members, c.chunks, 0, node);
  // An even share is 1000 (n - 1) parts: what the first does not get divides evenly.
  constexpr std::int64_t kEven = 1000;
  const std::int64_t first = std::llround(kEven * c.imbalance);
  std::vector<std::int64_t> weights(static_cast<std::size_t>(members), kEven * members - first);
  weights[0] = first * (members - 1);
  const bool in_nodes =
      c.algorithm == program::Algorithm::kHierarchical && node < members && members % node == 0;
  return program::exchange_of(weights, in_nodes ? node : 1);
}

}  // namespace

NetworkRun run_on_network(const Topology& topology, const NetworkCollective& collective,
                          std::span<const std::int64_t> devices) {
  const Cluster& cluster = topology.cluster();
  const Network& network = topology.network();
  const std::int64_t domain = cluster.scale_up_domain();
  const auto members = static_cast<std::int32_t>(devices.size());
  const auto node = static_cast<std::int32_t>(std::count_if(
      devices.begin(), devices.end(), [&](std::int64_t d) { return d / domain == devices[0] / domain; }));
  const program::Phases phases = phases_of(collective, members, std::max(1, node));
  std::vector<std::vector<std::int64_t>> orders{std::vector<std::int64_t>(devices.begin(), devices.end())};
  const bool rooted =
      collective.kind == CollectiveKind::kBroadcast || collective.kind == CollectiveKind::kReduce;

  const bool passes_on = phases.used == program::Algorithm::kRing && !rooted;
  const bool pipelined =
      phases.used == program::Algorithm::kTree || (phases.used == program::Algorithm::kRing && rooted);
  if (passes_on) {
    orders = channels(devices, domain);
    if (node == members && network.inside() != nullptr) orders = network.inside()->rings(devices);
  }

  NetworkRun out;
  out.used = phases.used;
  // Of the slowest to begin.
  for (const std::int64_t d : members > 1 ? devices : devices.first(0))
    out.time = std::max(out.time, cluster.type(cluster.type_of_device(d)).collective_latency);
  Time longest_hop{0};
  Flows flows(network);
  Path path;
  std::vector<std::int64_t> carried(network.links(), 0);
  const std::int64_t cut = phases.parts * static_cast<std::int64_t>(orders.size());
  for (const program::Phase& phase : phases.phases) {
    flows.clear();
    Time round{0};
    for (const auto& order : orders) {
      Time hops{0};
      for (const program::Sends& s : phase.sends) {
        const std::int64_t from = order[static_cast<std::size_t>(s.from)],
                           to = order[static_cast<std::size_t>(s.to)];
        const Bytes bytes{mul_div_up(collective.whole.value, s.parts, cut)};
        network.route(from, to, path);
        for (const LinkId l : path) carried[l] += bytes.value * phase.repeat;
        const Time hop = from / domain == to / domain
                             ? cluster.type(cluster.type_of_device(from)).intra_latency
                             : cluster.nic_latency + network.extra_latency(path);
        flows.add(path, bytes, passes_on || pipelined ? Time{0} : hop);
        hops += hop;
        longest_hop = std::max(longest_hop, hop);
      }
      // What a ring passes on sees each hop once while others see theirs: the mean counts, not the longest.
      if (passes_on) round = std::max(round, Time{hops.value / members});
    }
    const FlowTimes times = flows.run();
    out.time += (times.end + round) * phase.repeat;
    out.rounds += phase.repeat;
    out.flows += static_cast<std::int64_t>(flows.size()) * phase.repeat;
    out.most_classes = std::max(out.most_classes, times.classes);
  }
  // Chunks follow each other: only the first sees the latency of every hop on its way.
  if (pipelined) out.time += longest_hop * (out.rounds - collective.chunks + 1);
  for (LinkId l = 0; l < carried.size(); ++l) {
    if (carried[l] == 0) continue;
    const Time needs = transfer_time(Bytes{carried[l]}, Bandwidth{network.capacity(l)});
    if (needs > out.busiest_needs) {
      out.busiest = l;
      out.busiest_needs = needs;
    }
  }
  return out;
}

std::vector<std::int64_t> shuffled(std::vector<std::int64_t> devices, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = devices.size(); i > 1; --i) std::swap(devices[i - 1], devices[random() % i]);
  return devices;
}

}  // namespace orrery::sim
