// SPDX-License-Identifier: Apache-2.0
#include "sim/traffic.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>

namespace orrery::sim {

using program::Op;
using program::StreamIndex;

Traffic::Traffic(const Topology& topology, const program::Program& program, const CostModel& cost)
    : topology_(topology), program_(program), cost_(cost) {
  enumerate();
  set_prices();
  find_shared();
}

// All groups of an axis, which communicate at once, one axis after the other. Transfers to the next stage
// are one axis, those to the stage before another, and so are collectives that send to others.
void Traffic::enumerate() {
  using Axis = std::tuple<StreamIndex, program::GroupIndex, std::int32_t, program::Pattern>;
  std::vector<Axis> axes;
  const auto axis_of = [](std::size_t stage, const Partners::Slot& s) {
    return Axis{s.stream, s.group, s.peer < 0 ? 0 : s.peer - static_cast<std::int32_t>(stage), s.pattern};
  };
  for (std::size_t c = 0; c < program_.classes.size(); ++c) {
    partners_.push_back(partners_of(program_, c));
    width_ = std::max(width_, partners_.back().slots.size());
    for (const Partners::Slot& s : partners_.back().slots) {
      if (!s.receives) axes.push_back(axis_of(c, s));
    }
  }
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  instance_.assign(static_cast<std::size_t>(mesh().ranks()) * width_, -1);
  LinkLoads on_links(topology_.network()), direct(topology_.network());
  for (const Axis& axis : axes) {
    on_links.clear();
    rings_.clear();
    const std::size_t begin = instances_.size();
    for (std::size_t c = 0; c < partners_.size(); ++c) {
      const auto& slots = partners_[c].slots;
      for (std::size_t k = 0; k < slots.size(); ++k) {
        if (axis_of(c, slots[k]) == axis)
          add_slot(on_links, direct, static_cast<std::int32_t>(c), static_cast<std::int32_t>(k));
      }
    }
    for (std::size_t i = begin; i < instances_.size(); ++i) {
      GroupLinks& l = instances_[i].links;
      std::tie(l.ring, l.bottleneck) =
          on_links.bandwidth(rings_.empty() ? loads(instances_[i]) : std::span(rings_[i - begin]));
    }
    axis_ends_.push_back(instances_.size());
  }
}

// What a collective costs goes by the bandwidth of a ring over its group, whatever it puts on links.
void Traffic::add_slot(LinkLoads& on_links, LinkLoads& direct, std::int32_t stage, std::int32_t k) {
  const Partners::Slot slot = partners_[static_cast<std::size_t>(stage)].slots[static_cast<std::size_t>(k)];
  const std::int64_t domain = topology_.cluster().scale_up_domain();
  LinkLoads::Added added;
  std::vector<std::int64_t> members;
  const AxisSet pp = mesh()["pp"], others = mesh().others(pp);
  const AxisSet group = program_.communication.groups[static_cast<std::size_t>(slot.group)].axes;
  const std::int64_t first = mesh().moved(0, pp, stage), ranks = mesh().size(others);
  for (std::int64_t n = 0; n < ranks; ++n) {
    const std::int64_t rank = mesh().moved(first, others, n);
    if (slot.peer < 0) {
      if (mesh().coordinate(rank, group) != 0) continue;
      members = mesh().members(group, rank);
      on_links.add_ring(members, domain, &added);
      if (slot.pattern != program::Pattern::kRing) {
        rings_.push_back(added.loads);
        direct.add_direct(slot.pattern, members, &added);
        direct.clear();
      }
    } else {
      members = {rank, mesh().moved(rank, pp, slot.peer)};
      on_links.add_flow(members[0], members[1], &added);
    }
    Instance& i = instances_.emplace_back();
    i.stage = stage;
    i.slot = k;
    i.first_end = ends_.size();
    i.ends = members.size();
    i.first_load = loads_.size();
    i.loads = added.loads.size();
    i.channels = added.channels;
    i.links = group_shape(members, topology_.network(), domain);
    i.links.extra_latency = added.extra_latency;
    loads_.insert(loads_.end(), added.loads.begin(), added.loads.end());
    if (slot.peer < 0) {
      for (const std::int64_t m : members) add_end(m, stage, slot);
    } else {
      add_end(members[0], stage, slot);
      add_end(members[1], slot.peer, other_end(slot, stage));
    }
  }
}

// A rank takes part in the last instance, by this slot of its stage if it has it.
void Traffic::add_end(std::int64_t rank, std::int32_t stage, const Partners::Slot& slot) {
  ends_.push_back({rank, slot.stream});
  const auto& slots = partners_[static_cast<std::size_t>(stage)].slots;
  if (const auto at = std::find(slots.begin(), slots.end(), slot); at != slots.end()) {
    instance_[static_cast<std::size_t>(rank) * width_ + static_cast<std::size_t>(at - slots.begin())] =
        static_cast<std::int32_t>(instances_.size() - 1);
  }
}

void Traffic::equalise() {
  std::size_t begin = 0;
  for (const std::size_t end : axis_ends_) {
    GroupLinks all = instances_[begin].links;
    std::int64_t channels = 1;
    for (std::size_t i = begin; i < end; ++i) {
      const GroupLinks& l = instances_[i].links;
      all.domains = std::max(all.domains, l.domains);
      all.per_domain = std::max(all.per_domain, l.per_domain);
      all.extra_latency = std::max(all.extra_latency, l.extra_latency);
      if (l.ring < all.ring) all.node_type = l.node_type;
      all.ring = std::min(all.ring, l.ring);
      channels = std::max(channels, instances_[i].channels);
    }
    for (std::size_t i = begin; i < end; ++i) {
      instances_[i].links = all;
      instances_[i].channels = channels;
    }
    begin = end;
  }
  set_prices();
  find_shared();
}

// What an op costs depends on its slot and the instance's links.
void Traffic::set_prices() {
  prices_.clear();
  using Key = std::array<std::int64_t, 9>;
  std::map<Key, std::int32_t> known;
  for (Instance& i : instances_) {
    const GroupLinks& l = i.links;
    const auto [found, added] =
        known.try_emplace(Key{i.stage, i.slot, l.ranks, l.domains, l.per_domain, l.ring.value,
                              l.extra_latency.value, static_cast<std::int64_t>(l.node_type), i.channels},
                          static_cast<std::int32_t>(prices_.size()));
    i.price = found->second;
    if (added) prices_.push_back(price_of(i));
  }
}

Price Traffic::price_of(const Instance& i) const {
  Price out;
  const auto stage = static_cast<std::size_t>(i.stage);
  const auto& segments = program_.classes[stage].segments;
  for (std::size_t g = 0; g < segments.size(); ++g) {
    for (std::size_t o = 0; o < segments[g].ops.size(); ++o) {
      if (partners_[stage].slot[g][o] != i.slot) continue;
      const Op& op = segments[g].ops[o];
      const Wire wire = cost_.wire(op, i.links);
      out.ops.push_back({cost_.op(op, i.links), wire.latency, wire.rate.value / i.channels});
      out.rate = std::max(out.rate, out.ops.back().rate);
    }
  }
  return out;
}

// The links that ops can fill together.
void Traffic::find_shared() {
  const Network& network = topology_.network();
  std::vector<std::size_t> first(network.links() + 1, 0);
  for (const LinkLoads::Load& l : loads_) ++first[l.link + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  on_links_.resize(loads_.size());
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    for (const LinkLoads::Load& l : loads(instances_[i]))
      on_links_[first[l.link]++] = {static_cast<std::int32_t>(i), l.weight * instances_[i].channels};
  }
  shared_.clear();
  std::size_t begin = 0;
  for (LinkId l = 0; l < network.links(); ++l) {
    const std::size_t end = first[l];
    if (fills(l, std::span(on_links_).subspan(begin, end - begin)))
      shared_.push_back({l, begin, end - begin});
    begin = end;
  }
}

bool Traffic::fills(LinkId link, std::span<const OnLink> here) const {
  // Ops of one stream run one after the other: of those of a stage the most demanding count.
  struct Lane {
    std::int32_t stage;
    StreamIndex stream;
    double most;
  };
  boost::container::small_vector<Lane, 16> lanes;
  for (std::size_t i = 0; i < here.size();) {
    const Instance& instance = instances_[static_cast<std::size_t>(here[i].instance)];
    double demand = 0;
    for (; i < here.size(); ++i) {
      const Instance& other = instances_[static_cast<std::size_t>(here[i].instance)];
      if (other.stage != instance.stage || other.slot != instance.slot) break;
      demand +=
          static_cast<double>(here[i].weight) / LinkLoads::kWhole * static_cast<double>(price(other).rate);
    }
    const StreamIndex stream = partners_[static_cast<std::size_t>(instance.stage)]
                                   .slots[static_cast<std::size_t>(instance.slot)]
                                   .stream;
    auto lane = std::find_if(lanes.begin(), lanes.end(),
                             [&](const Lane& x) { return x.stage == instance.stage && x.stream == stream; });
    if (lane == lanes.end()) lane = lanes.insert(lanes.end(), {instance.stage, stream, 0});
    lane->most = std::max(lane->most, demand);
  }
  double total = 0;
  for (const Lane& l : lanes) total += l.most;
  return lanes.size() > 1 && total > static_cast<double>(topology_.network().capacity(link)) * (1 + 1e-9);
}

}  // namespace orrery::sim
