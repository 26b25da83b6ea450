// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/topology.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace orrery::sim {

namespace {

// Of a ring over several domains, full ones: over racks of 72 with a 400 Gb/s NIC each, NCCL 2.26 reaches a
// bus bandwidth of 434 GB/s in a ring of 20 racks and 829 in a tree of two (coreweave/nccl-tests@cb86553).
constexpr std::size_t kMostChannels = 9;

}  // namespace

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
  // Where the members of each domain begin.
  starts_.clear();
  std::size_t channels = members.size();
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i > 0 && members[i] / domain == members[i - 1] / domain) continue;
    if (i > 0) channels = std::min(channels, i - starts_.back());
    starts_.push_back(i);
  }
  if (starts_.size() == 1) {
    for (std::size_t i = 0; i < members.size(); ++i) add_flow(members[i], members[(i + 1) % members.size()]);
    return;
  }
  channels = std::min({channels, members.size() - starts_.back(), kMostChannels});
  channels_ = std::max(channels_, static_cast<std::int64_t>(channels));
  const auto share = [&](std::size_t of) {
    return static_cast<std::int64_t>(of) * kWhole / static_cast<std::int64_t>(channels);
  };
  for (std::size_t k = 0; k < starts_.size(); ++k) {
    const std::size_t end = k + 1 < starts_.size() ? starts_[k + 1] : members.size();
    const auto here = members.subspan(starts_[k], end - starts_[k]);
    const auto next = members.subspan(starts_[(k + 1) % starts_.size()]);
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
  const auto slower = [&](LinkId a, LinkId b) {
    return static_cast<double>(network_.capacity(a)) * static_cast<double>(load_[b]) <
           static_cast<double>(network_.capacity(b)) * static_cast<double>(load_[a]);
  };
  const auto least = std::min_element(used_.begin(), used_.end(), slower);
  if (least == used_.end()) return {Bandwidth{std::numeric_limits<std::int64_t>::max()}, 0};
  return {Bandwidth{mul_div(network_.capacity(*least), kWhole, load_[*least])}, *least};
}

Topology::Topology(const Cluster& cluster) : cluster_(cluster), network_(cluster) {}

GroupLinks Topology::group(std::int64_t size, std::int64_t stride) const {
  GroupLinks out;
  out.ranks = std::max<std::int64_t>(1, size);
  out.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()};
  const std::int64_t devices = cluster_.devices(), span = size * stride, domain = cluster_.scale_up_domain();
  const std::int64_t block = network_.block();
  if (size <= 1 || devices < span) return out;
  LinkLoads loads(network_);
  std::vector<std::int64_t> members;
  if (span % block == 0 && span >= 4 * block) {
    // Every block of the fabric sees the same: what its members pass on, and what comes to them. The hops of
    // the first block are those of its members and of the domains before and after them.
    const std::int64_t last = span - stride;
    for (std::int64_t offset = 0; offset < std::min(stride, block); ++offset) {
      const auto add_domain = [&](std::int64_t with) {
        std::int64_t m = with;
        while (m - stride >= 0 && (m - stride) / domain == with / domain) m -= stride;
        for (; m < span && m / domain == with / domain; m += stride) members.push_back(m);
      };
      members.clear();
      add_domain(last + offset);
      for (std::int64_t m = offset; m < block; m += stride) members.push_back(m);
      const std::int64_t next = offset + (block - offset + stride - 1) / stride * stride;
      if (next / domain != (last + offset) / domain) add_domain(next);
      loads.add_ring(members, domain);
    }
  } else {
    // Only flows of the same block, and what leaves it, meet the group of rank 0.
    const std::int64_t near = (span + block + span - 1) / span * span;
    members.resize(static_cast<std::size_t>(size));
    for (std::int64_t first = 0; first < std::min(near, devices - devices % span); first += span) {
      for (std::int64_t offset = 0; offset < stride; ++offset) {
        for (std::int64_t i = 0; i < size; ++i)
          members[static_cast<std::size_t>(i)] = first + offset + i * stride;
        loads.add_ring(members, domain);
      }
    }
  }
  std::tie(out.ring, out.bottleneck) = loads.bandwidth();
  out.extra_latency = loads.extra_latency();
  std::int64_t before = -1, here = 0;
  out.domains = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t at = i * stride / domain;
    here = at == before ? here + 1 : 1;
    out.domains += at != before;
    out.per_domain = std::max(out.per_domain, here);
    before = at;
  }
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
