// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/topology.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

namespace orrery::sim {

namespace {

// Of a ring over several domains, full ones: over racks of 72 with a 400 Gb/s NIC each, NCCL 2.26 reaches a
// bus bandwidth of 434 GB/s in a ring of 20 racks and 829 in a tree of two (coreweave/nccl-tests@cb86553).
constexpr std::size_t kMostChannels = 9;

void merge(std::vector<LinkLoads::Load>& loads) {
  std::sort(loads.begin(), loads.end(), [](const auto& a, const auto& b) { return a.link < b.link; });
  std::size_t kept = 0;
  for (const LinkLoads::Load& l : loads) {
    if (kept > 0 && loads[kept - 1].link == l.link) {
      loads[kept - 1].weight += l.weight;
    } else {
      loads[kept++] = l;
    }
  }
  loads.resize(kept);
}

// Lists of loads, one after the other.
class Parts {
 public:
  void push_back(std::span<const LinkLoads::Load> part) {
    all_.insert(all_.end(), part.begin(), part.end());
    ends_.push_back(all_.size());
  }
  std::span<const LinkLoads::Load> operator[](std::size_t i) const {
    return std::span(all_).subspan(i == 0 ? 0 : ends_[i - 1], ends_[i] - (i == 0 ? 0 : ends_[i - 1]));
  }

 private:
  std::vector<LinkLoads::Load> all_;
  std::vector<std::size_t> ends_;
};

// Members at(0), at(1), ..
template <class At>
void lay_in_domains(std::int64_t size, At at, std::int64_t domain, GroupLinks& out) {
  std::int64_t before = -1, here = 0;
  out.domains = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t d = at(i) / domain;
    here = d == before ? here + 1 : 1;
    out.domains += d != before;
    out.per_domain = std::max(out.per_domain, here);
    before = d;
  }
}

}  // namespace

LinkLoads::LinkLoads(const Network& network) : network_(network), load_(network.links()) {}

void LinkLoads::add(std::int64_t from, std::int64_t to, std::int64_t weight, Added* added) {
  if (network_.adaptive()) flows_.resize(load_.size());
  network_.route(from, to, path_, network_.adaptive() ? &flows_ : nullptr);
  for (const LinkId l : path_) {
    if (load_[l] == 0) used_.push_back(l);
    load_[l] += weight;
    if (!flows_.empty()) flows_[l] += static_cast<double>(weight) / static_cast<double>(kWhole);
  }
  const Time extra = network_.extra_latency(path_);
  extra_latency_ = std::max(extra_latency_, extra);
  if (added == nullptr) return;
  for (const LinkId l : path_) added->loads.push_back({l, weight});
  added->extra_latency = std::max(added->extra_latency, extra);
}

void LinkLoads::add_flow(std::int64_t from, std::int64_t to, Added* added) {
  if (added != nullptr) added->clear();
  add(from, to, kWhole, added);
  if (added != nullptr) merge(added->loads);
}

void LinkLoads::add_direct(program::Pattern pattern, std::span<const std::int64_t> members, Added* added) {
  if (added != nullptr) added->clear();
  const bool one = pattern == program::Pattern::kNext;
  const auto partners = one ? 1 : static_cast<std::int64_t>(members.size()) - 1;
  for (const program::Sends& s : program::direct_sends(pattern, static_cast<std::int32_t>(members.size())))
    add(members[static_cast<std::size_t>(s.from)], members[static_cast<std::size_t>(s.to)], kWhole / partners,
        added);
  if (added != nullptr) merge(added->loads);
}

void LinkLoads::add_ring(std::span<const std::int64_t> members, std::int64_t domain, Added* added) {
  if (added != nullptr) added->clear();
  // Where the members of each domain begin.
  starts_.clear();
  std::size_t channels = members.size();
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i > 0 && members[i] / domain == members[i - 1] / domain) continue;
    if (i > 0) channels = std::min(channels, i - starts_.back());
    starts_.push_back(i);
  }
  if (starts_.size() == 1) {
    add_local_ring(members, added);
    return;
  }
  const std::size_t least = std::min({channels, members.size() - starts_.back(), kMostChannels});
  // Through cables of its own a node is left by as many members as it has ports.
  channels =
      network_.inside() == nullptr ? least : std::min(least, static_cast<std::size_t>(network_.ports()));
  const auto entry = [&](std::size_t channel) { return channel * least / channels; };
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
      std::size_t through = channels;
      for (std::size_t c = 0; c < channels; ++c) through -= entry(c) == to;
      if (through > 0) add(here[i], here[to], share(through), added);
    }
    for (std::size_t c = 0; c < channels; ++c) add(here[entry(c)], next[entry(c)], share(1), added);
  }
  if (added == nullptr) return;
  added->channels = static_cast<std::int64_t>(channels);
  merge(added->loads);
}

void LinkLoads::add_local_ring(std::span<const std::int64_t> members, Added* added) {
  const auto add_order = [&](std::span<const std::int64_t> order, std::int64_t share) {
    for (std::size_t i = 0; i < order.size(); ++i) add(order[i], order[(i + 1) % order.size()], share, added);
  };
  if (network_.inside() == nullptr) {
    add_order(members, kWhole);
  } else {
    const auto orders = network_.inside()->rings(members);
    const auto channels = static_cast<std::int64_t>(orders.size());
    for (const auto& order : orders) add_order(order, kWhole / channels);
    if (added != nullptr) added->channels = channels;
  }
  if (added != nullptr) merge(added->loads);
}

void LinkLoads::clear() {
  for (const LinkId l : used_) {
    load_[l] = 0;
    if (!flows_.empty()) flows_[l] = 0;
  }
  used_.clear();
  extra_latency_ = Time{0};
}

std::pair<Bandwidth, LinkId> LinkLoads::bandwidth() const {
  return slowest(used_, [](LinkId l) { return l; });
}

std::pair<Bandwidth, LinkId> LinkLoads::bandwidth(std::span<const Load> part) const {
  return slowest(part, [](const Load& l) { return l.link; });
}

template <class Links, class Id>
std::pair<Bandwidth, LinkId> LinkLoads::slowest(const Links& links, Id id) const {
  const auto slower = [&](const auto& a, const auto& b) {
    return static_cast<double>(network_.capacity(id(a))) * static_cast<double>(load_[id(b)]) <
           static_cast<double>(network_.capacity(id(b))) * static_cast<double>(load_[id(a)]);
  };
  const auto least = std::min_element(links.begin(), links.end(), slower);
  if (least == links.end()) return {Bandwidth{std::numeric_limits<std::int64_t>::max()}, 0};
  const LinkId l = id(*least);
  return {Bandwidth{mul_div(network_.capacity(l), kWhole, load_[l])}, l};
}

bool faster(const GroupLinks& a, const GroupLinks& b) {
  const auto slowness = [](const GroupLinks& l) {
    return std::tuple(-l.ring.value, l.ranks, l.domains, l.extra_latency, l.per_domain, l.node_type);
  };
  return slowness(a) < slowness(b);
}

GroupLinks group_shape(std::span<const std::int64_t> members, const Network& network, std::int64_t domain) {
  GroupLinks out;
  for (const std::int64_t m : network.mixed() ? members : members.first(0)) {
    const std::size_t type = network.type_of(m);
    if (m == members[0] || network.intra(type) < network.intra(out.node_type)) out.node_type = type;
  }
  out.intra = network.intra(out.node_type);
  out.ranks = static_cast<std::int64_t>(members.size());
  lay_in_domains(
      out.ranks, [&](std::int64_t i) { return members[static_cast<std::size_t>(i)]; }, domain, out);
  return out;
}

Topology::Topology(const Cluster& cluster) : cluster_(cluster), network_(cluster) {}

std::int64_t Topology::distinct(std::int64_t size, std::int64_t stride, std::int64_t ranks) const {
  // Where groups, blocks of the fabric and scale-up domains begin together, all repeats.
  const std::int64_t span = size * stride;
  const std::int64_t same = std::lcm(network_.block(), cluster_.scale_up_domain());
  return same >= ranks ? ranks : std::min(ranks, same / std::gcd(span, same) * span);
}

GroupLinks Topology::group(std::int64_t size, std::int64_t stride) const {
  const std::int64_t span = std::max<std::int64_t>(1, size * stride);
  return group(size, stride, cluster_.devices() / span * span);
}

GroupLinks Topology::group(std::int64_t size, std::int64_t stride, std::int64_t ranks) const {
  const std::vector<GroupLinks> all = groups(size, stride, ranks);
  return *std::max_element(all.begin(), all.end(), faster);
}

std::vector<GroupLinks> Topology::groups(std::int64_t size, std::int64_t stride, std::int64_t ranks) const {
  GroupLinks alone;
  alone.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()};
  alone.intra = network_.intra(0);
  alone.ranks = std::max<std::int64_t>(1, size);
  const std::int64_t span = size * stride, domain = cluster_.scale_up_domain();
  if (size <= 1 || ranks < span) return {alone};
  LinkLoads loads(network_);
  if (const std::int64_t block = network_.block(); span % block == 0 && span >= 4 * block) {
    add_first_block(size, stride, loads);
    std::tie(alone.ring, alone.bottleneck) = loads.bandwidth();
    alone.extra_latency = loads.extra_latency();
    lay_in_domains(
        size, [stride](std::int64_t i) { return i * stride; }, domain, alone);
    return {alone};
  }
  std::vector<GroupLinks> out;
  Parts parts;
  std::vector<std::int64_t> members(static_cast<std::size_t>(size));
  LinkLoads::Added added;
  for (std::int64_t first = 0; first < distinct(size, stride, ranks); first += span) {
    for (std::int64_t offset = 0; offset < stride; ++offset) {
      for (std::int64_t i = 0; i < size; ++i)
        members[static_cast<std::size_t>(i)] = first + offset + i * stride;
      loads.add_ring(members, domain, &added);
      out.push_back(group_shape(members, network_, domain));
      out.back().extra_latency = added.extra_latency;
      parts.push_back(added.loads);
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    std::tie(out[i].ring, out[i].bottleneck) = loads.bandwidth(parts[i]);
  if (std::all_of(out.begin(), out.end(), [&](const GroupLinks& g) { return alike(g, out[0]); }))
    out.resize(1);
  return out;
}

// Groups of at least four blocks, aligned to them: every block of the fabric sees the same, what its members
// pass on and what comes to them. The hops of the first block are those of its members and of the domains
// before and after them.
void Topology::add_first_block(std::int64_t size, std::int64_t stride, LinkLoads& loads) const {
  const std::int64_t span = size * stride, block = network_.block(), domain = cluster_.scale_up_domain();
  const std::int64_t last = span - stride;
  std::vector<std::int64_t> members;
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
}

std::vector<Topology::Transfer> Topology::all_transfers(std::int64_t stages, std::int64_t stride,
                                                        std::int64_t by, std::int64_t begin,
                                                        std::int64_t end) const {
  LinkLoads loads(network_);
  std::vector<Transfer> out;
  Parts parts;
  LinkLoads::Added added;
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t stage = r / stride % stages, to = r + by * stride;
    if (stage + by < 0 || stage + by >= stages) continue;
    loads.add_flow(r, to, &added);
    parts.push_back(added.loads);
    out.push_back({stage, r / (stride * stages) * stride + r % stride,
                   group_shape(std::array{r, to}, network_, cluster_.scale_up_domain())});
    out.back().links.extra_latency = added.extra_latency;
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    std::tie(out[i].links.ring, out[i].links.bottleneck) = loads.bandwidth(parts[i]);
  return out;
}

std::vector<GroupLinks> Topology::transfers(std::int64_t stages, std::int64_t stride, std::int64_t by,
                                            std::int64_t ranks) const {
  GroupLinks none;
  none.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()};
  std::vector<GroupLinks> out(static_cast<std::size_t>(stages), none);
  // Stages of whole blocks of the fabric all see the same: one block of the first that sends says it.
  if (stride % network_.block() == 0) {
    const std::int64_t begin = by < 0 ? -by * stride : 0;
    GroupLinks slowest = none;
    for (const Transfer& t : all_transfers(stages, stride, by, begin, begin + network_.block()))
      slowest = std::max(slowest, t.links, faster);
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      if (stage + by >= 0 && stage + by < stages) out[static_cast<std::size_t>(stage)] = slowest;
    }
    return out;
  }
  const std::vector<Transfer> all = all_transfers(stages, stride, by, 0, distinct(stages, stride, ranks));
  std::map<std::int64_t, double> per_byte;  // by pipeline, of all of its transfers
  for (const Transfer& t : all)
    per_byte[t.pipeline] += 1 / std::max(1.0, static_cast<double>(t.links.ring.value));
  const auto slowest = std::max_element(per_byte.begin(), per_byte.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const Transfer& t : all) {
    if (t.pipeline == slowest->first) out[static_cast<std::size_t>(t.stage)] = t.links;
  }
  return out;
}

GroupLinks Topology::pairs(std::int64_t stride, std::int64_t stages, std::int64_t ranks) const {
  const bool alike = stride % network_.block() == 0;
  GroupLinks slowest;
  slowest.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()};
  for (const Transfer& t :
       all_transfers(stages, stride, 1, 0, alike ? network_.block() : distinct(stages, stride, ranks)))
    slowest = std::max(slowest, t.links, faster);
  return slowest;
}

}  // namespace orrery::sim
