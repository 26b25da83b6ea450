// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/topology.h"

#include <algorithm>
#include <limits>
#include <map>

namespace orrery::sim {

LinkLoads::LinkLoads(const Network& network) : network_(network), load_(network.links()) {}

void LinkLoads::add_flow(std::int64_t from, std::int64_t to, std::int64_t weight) {
  if (network_.adaptive()) flows_.resize(load_.size());
  network_.route(from, to, path_, network_.adaptive() ? &flows_ : nullptr);
  for (const LinkId l : path_) {
    if (load_[l] == 0) used_.push_back(l);
    load_[l] += weight;
    if (!flows_.empty()) flows_[l] += static_cast<double>(weight) / static_cast<double>(kWhole);
  }
  extra_latency_ = std::max(extra_latency_, network_.extra_latency(path_));
}

void LinkLoads::add_ring(std::span<const std::int64_t> members, std::int64_t domain) {
  std::vector<std::vector<std::int64_t>> by_domain;
  for (const std::int64_t m : members) {
    if (by_domain.empty() || by_domain.back().front() / domain != m / domain) by_domain.emplace_back();
    by_domain.back().push_back(m);
  }
  if (by_domain.size() == 1) {
    for (std::size_t i = 0; i < members.size(); ++i) add_flow(members[i], members[(i + 1) % members.size()]);
    return;
  }
  std::size_t channels = members.size();
  for (const auto& d : by_domain) channels = std::min(channels, d.size());
  channels_ = std::max(channels_, static_cast<std::int64_t>(channels));
  const auto share = [&](std::size_t of) {
    return static_cast<std::int64_t>(of) * kWhole / static_cast<std::int64_t>(channels);
  };
  for (std::size_t k = 0; k < by_domain.size(); ++k) {
    const auto& here = by_domain[k];
    const auto& next = by_domain[(k + 1) % by_domain.size()];
    // A channel enters at its own member, so it does not come there from the member before.
    for (std::size_t i = 0; here.size() > 1 && i < here.size(); ++i) {
      const std::size_t to = (i + 1) % here.size();
      if (const std::size_t through = channels - (to < channels); through > 0)
        add_flow(here[i], here[to], share(through));
    }
    for (std::size_t c = 0; c < channels; ++c) add_flow(here[c], next[c], share(1));
  }
}

void LinkLoads::clear() {
  for (const LinkId l : used_) {
    load_[l] = 0;
    if (!flows_.empty()) flows_[l] = 0;
  }
  used_.clear();
  extra_latency_ = Time{0};
  channels_ = 1;
}

std::pair<Bandwidth, LinkId> LinkLoads::bandwidth() const {
  std::pair<Bandwidth, LinkId> least{Bandwidth{std::numeric_limits<std::int64_t>::max()}, 0};
  for (const LinkId l : used_) {
    const auto b = mul_div(network_.capacity(l), kWhole, load_[l]);
    if (b < least.first.value) least = {Bandwidth{b}, l};
  }
  return least;
}

Topology::Topology(const Cluster& cluster) : cluster_(cluster), network_(cluster) {}

// Only flows of the same block of the fabric, and what leaves it, meet the group of rank 0.
GroupLinks Topology::group(std::int64_t size, std::int64_t stride) const {
  GroupLinks out;
  out.ranks = size;
  out.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()};
  const std::int64_t devices = cluster_.devices(), span = size * stride, domain = cluster_.scale_up_domain();
  const std::int64_t near = (span + network_.block() + span - 1) / span * span;
  const std::int64_t ranks = std::min(near, devices - devices % span);
  if (size <= 1 || ranks < span) {
    out.ranks = std::max<std::int64_t>(1, size);
    return out;
  }
  LinkLoads loads(network_);
  std::vector<std::int64_t> members(static_cast<std::size_t>(size));
  for (std::int64_t first = 0; first < ranks; first += span) {
    for (std::int64_t offset = 0; offset < stride; ++offset) {
      for (std::int64_t i = 0; i < size; ++i)
        members[static_cast<std::size_t>(i)] = first + offset + i * stride;
      loads.add_ring(members, domain);
    }
  }
  std::tie(out.ring, out.bottleneck) = loads.bandwidth();
  out.extra_latency = loads.extra_latency();
  std::map<std::int64_t, std::int64_t> count;
  for (std::int64_t i = 0; i < size; ++i) ++count[i * stride / domain];
  out.domains = static_cast<std::int64_t>(count.size());
  for (const auto& [index, n] : count) out.per_domain = std::max(out.per_domain, n);
  return out;
}

GroupLinks Topology::pairs(std::int64_t stride, std::int64_t stages, std::int64_t span) const {
  GroupLinks out;
  out.ranks = 2;
  LinkLoads loads(network_);
  const std::int64_t ranks = std::min(cluster_.devices(), span), block = stages * stride;
  const std::int64_t near = (block + network_.block() + block - 1) / block * block;
  for (std::int64_t r = 0; r < std::min(ranks, near); ++r) {
    if (r / stride % stages + 1 == stages || r + stride >= ranks) continue;
    loads.add_flow(r, r + stride);
    if (r / cluster_.scale_up_domain() != (r + stride) / cluster_.scale_up_domain()) out.domains = 2;
  }
  std::tie(out.ring, out.bottleneck) = loads.bandwidth();
  out.extra_latency = loads.extra_latency();
  return out;
}

}  // namespace orrery::sim
