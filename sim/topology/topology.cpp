// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/topology.h"

#include <algorithm>

namespace orrery::sim {
namespace {

Bandwidth scaled(Bandwidth b, double factor) {
  return {static_cast<std::int64_t>(static_cast<double>(b.value) * factor)};
}

}  // namespace

Topology::Topology(const Cluster& cluster) : cluster_(cluster), devices_(cluster.devices()) {
  const std::int64_t domain = cluster.scale_up_domain();
  const std::int64_t domains = (devices_ + domain - 1) / domain;
  const std::int64_t leaves = (cluster.nodes + cluster.leaf_nodes - 1) / cluster.leaf_nodes;
  const auto add = [&](VertexKind kind, std::int64_t index) {
    return static_cast<Id>(boost::add_vertex(Vertex{kind, index}, graph_));
  };
  const auto connect = [&](Id child, Id parent, Bandwidth b) {
    const std::size_t most = static_cast<std::size_t>(std::max(child, parent)) + 1;
    parent_.resize(std::max(parent_.size(), most));
    up_.resize(parent_.size());
    down_.resize(parent_.size());
    boost::add_edge(child, parent, Link{b}, graph_);
    boost::add_edge(parent, child, Link{b}, graph_);
    parent_[child] = parent;
    up_[child] = static_cast<Id>(bandwidth_.size());
    bandwidth_.push_back(b);
    down_[child] = static_cast<Id>(bandwidth_.size());
    bandwidth_.push_back(b);
  };
  for (std::int64_t d = 0; d < devices_; ++d) add(VertexKind::kDevice, d);
  const Id spine = add(VertexKind::kSpine, 0);
  std::vector<Id> leaf;
  const Bandwidth node_net = scaled(cluster.nic_bandwidth, cluster.nic_efficiency);
  for (std::int64_t l = 0; l < leaves; ++l) {
    leaf.push_back(add(VertexKind::kLeaf, l));
    connect(leaf.back(), spine,
            scaled(node_net, static_cast<double>(cluster.leaf_nodes) / cluster.oversubscription));
  }
  const Bandwidth intra = scaled(cluster.intra_bandwidth, cluster.intra_efficiency);
  for (std::int64_t i = 0; i < domains; ++i) {
    const Id fabric = add(VertexKind::kFabric, i);
    const Id nic = add(VertexKind::kNic, i);
    connect(fabric, nic, scaled(node_net, static_cast<double>(cluster.scale_up_nodes)));
    const auto first_leaf = static_cast<std::size_t>(i * cluster.scale_up_nodes / cluster.leaf_nodes);
    connect(nic, leaf[first_leaf], scaled(node_net, static_cast<double>(cluster.scale_up_nodes)));
    for (std::int64_t d = i * domain; d < std::min(devices_, (i + 1) * domain); ++d) {
      connect(static_cast<Id>(d), fabric, intra);
    }
  }
}

template <class Visit>
void Topology::visit_route(std::int64_t from, std::int64_t to, Visit visit) const {
  Id a = static_cast<Id>(from), b = static_cast<Id>(to);
  // Both are devices, so they are equally deep: climb together.
  while (a != b) {
    visit(up_[a]);
    visit(down_[b]);
    a = parent_[a];
    b = parent_[b];
  }
}

std::int64_t Topology::neighbourhood() const {
  return std::max(cluster_.scale_up_domain(), cluster_.leaf_nodes * cluster_.devices_per_node);
}

// Every rank below `senders` sends to next(rank); what the ring of the group of rank 0 gets.
template <class Next>
GroupLinks Topology::load(std::int64_t size, std::int64_t senders, Next next) const {
  std::vector<std::int32_t> flows(bandwidth_.size());
  for (std::int64_t r = 0; r < senders; ++r) {
    const std::int64_t to = next(r);
    if (to >= 0 && to != r) visit_route(r, to, [&](Id e) { ++flows[e]; });
  }
  GroupLinks out;
  out.ranks = size;
  out.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()};
  const std::int64_t domain = cluster_.scale_up_domain();
  const Bandwidth one_nic =
      scaled(cluster_.nic_bandwidth, cluster_.nic_efficiency / static_cast<double>(cluster_.nics));
  std::map<std::int64_t, std::int64_t> members;
  std::int64_t r = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    ++members[r / domain];
    const std::int64_t to = next(r);
    if (to < 0 || to == r) break;
    visit_route(r, to, [&](Id e) {
      out.ring = std::min(out.ring, Bandwidth{bandwidth_[e].value / std::max(1, flows[e])});
    });
    r = to;
  }
  out.domains = static_cast<std::int64_t>(members.size());
  for (const auto& [index, n] : members) out.per_domain = std::max(out.per_domain, n);
  // A ring enters a domain through at most as many NICs as it has members there.
  if (out.domains > 1) {
    const double nics_per_member =
        std::max(1.0, static_cast<double>(cluster_.nics) / static_cast<double>(cluster_.devices_per_node));
    out.ring = std::min(out.ring, scaled(one_nic, static_cast<double>(out.per_domain) * nics_per_member));
  }
  return out;
}

// Only flows that share a leaf or a scale-up domain with the group of rank 0 meet it.
GroupLinks Topology::group(std::int64_t size, std::int64_t stride) const {
  const std::int64_t block = size * stride;
  const std::int64_t near = (block + neighbourhood() + block - 1) / block * block;
  const std::int64_t senders = std::min(near, devices_ - devices_ % block);
  if (size <= 1 || senders < block) return {size, 1, 1, Bandwidth{std::numeric_limits<std::int64_t>::max()}};
  return load(size, senders, [&](std::int64_t r) {
    const std::int64_t at = r / stride % size;
    return at + 1 < size ? r + stride : r - (size - 1) * stride;
  });
}

GroupLinks Topology::pairs(std::int64_t stride, std::int64_t span) const {
  const std::int64_t ranks = std::min(devices_, span);
  return load(2, std::min(ranks, 2 * neighbourhood()),
              [&](std::int64_t r) { return r + stride < ranks ? r + stride : -1; });
}

}  // namespace orrery::sim
