// SPDX-License-Identifier: Apache-2.0
#include "sim/cost.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <variant>

namespace orrery::sim {

PlanLinks plan_links(const Topology& topology, const Plan& plan) {
  const Mesh mesh = mesh_of(plan);
  PlanLinks links;
  for (const program::Group& group : program::communication_of(mesh).groups) {
    const auto [size, stride] = mesh.range(group.axes);
    if (group.meets())
      links.push_back(topology.group(size, stride, mesh.ranks()));
    else
      links.push_back(size > 1 ? topology.pairs(stride, size, mesh.ranks()) : GroupLinks{});
  }
  return links;
}

std::vector<NodeTypes> node_types_by_stage(const Cluster& cluster, const Mesh& mesh) {
  if (cluster.types() == 1) return {only(0)};
  const Mesh::Range stages = mesh.range("pp");
  std::vector<NodeTypes> out(static_cast<std::size_t>(stages.size), 0);
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank)
    out[static_cast<std::size_t>(rank / stages.stride % stages.size)] |= only(cluster.type_of_device(rank));
  if (std::equal(out.begin() + 1, out.end(), out.begin())) out.resize(1);
  return out;
}

Pace pace_of(Devices devices, NodeTypes types, const Stack& stack) {
  Pace p;
  Time issue{0};
  for_each_node_type(types, [&](std::size_t i) {
    p.compute_slowdown = std::max(p.compute_slowdown, devices[i].overlap_compute);
    const std::int64_t left = std::max<std::int64_t>(1, devices[i].units - stack.exchange_units);
    const double of_units = static_cast<double>(devices[i].units) / static_cast<double>(left);
    p.exchange_slowdown = std::max(p.exchange_slowdown, of_units);
    p.communication_slowdown = std::max(p.communication_slowdown, devices[i].overlap_communication);
    issue = std::max(issue, from_seconds(seconds(devices[i].host_op) * stack.host_cost_factor));
  });
  (stack.launch == Launch::kEager ? p.host_op : p.host_segment) = issue;
  return p;
}

Time compute_time(Devices devices, NodeTypes types, const Stack& stack, Math training,
                  std::int64_t element_bytes, const program::Op& op) {
  Time longest{0};
  for_each_node_type(types, [&](std::size_t i) {
    longest =
        std::max(longest, compute_time(devices[i], training, element_bytes, op, stack.attention_kernels));
  });
  return longest;
}

Bytes memory_of(Devices devices, NodeTypes types) {
  Bytes least{std::numeric_limits<std::int64_t>::max()};
  for_each_node_type(types, [&](std::size_t i) { least = std::min(least, devices[i].memory); });
  return least;
}

namespace {

// Bytes per second, as achieved, of a rank that shares its host with so many.
double host_memory(const Host& h, std::int64_t ranks) {
  return static_cast<double>(h.memory_bandwidth.value) * h.memory_efficiency / static_cast<double>(ranks);
}

double copy_rate(const Host& h, program::ops::CopyWay way, std::int64_t ranks) {
  const auto drives = [&](Bandwidth Drives::*of) {
    const Drives& d = h.nvme.value();
    return static_cast<double>((d.*of).value) * d.efficiency / static_cast<double>(ranks);
  };
  switch (way) {
    case program::ops::CopyWay::kToHost:
    case program::ops::CopyWay::kFromHost:
      return static_cast<double>(h.link.value) * h.link_efficiency /
             static_cast<double>(std::min(ranks, h.devices_per_link));
    case program::ops::CopyWay::kToDrives:
      return drives(&Drives::write);
    case program::ops::CopyWay::kFromDrives:
      return drives(&Drives::read);
  }
  return 0;
}

}  // namespace

Time HostCost::copy(Bytes payload, program::ops::CopyWay way, NodeTypes types) const {
  double longest = 0;
  for_each_node_type(types, [&](std::size_t i) {
    const Host& h = cluster_.type(i).host.value();
    const double rate = std::min(copy_rate(h, way, ranks_), host_memory(h, ranks_));
    longest = std::max(longest, static_cast<double>(payload.value) / rate);
  });
  return from_seconds(longest);
}

Time HostCost::update(Bytes traffic, NodeTypes types) const {
  double longest = 0;
  for_each_node_type(types, [&](std::size_t i) {
    longest = std::max(longest, static_cast<double>(traffic.value) * stack_.host_update_passes /
                                    host_memory(cluster_.type(i).host.value(), ranks_));
  });
  return from_seconds(longest);
}

Bound CostModel::bound(const program::Op& op, NodeTypes types) const {
  return bound_of(devices_[static_cast<std::size_t>(std::countr_zero(types))], math_, op);
}

namespace {

const program::ops::Collective& collective_of(const program::Op& op) {
  return std::get<program::ops::Collective>(op.kind);
}

}  // namespace

Time CostModel::op(const program::Op& op, NodeTypes types) const {
  if (program::is_communication(op.kind)) return this->op(op, links(op.group));
  if (const auto* copy = op.as<program::ops::Copy>()) return host_.copy(op.payload, copy->way, types);
  if (op.stream == program::kHostStream) return host_.update(op.traffic, types);
  return compute_time(devices_, types, stack_, math_, element_bytes_, op);
}

Time CostModel::op(const program::Op& op, const GroupLinks& links) const {
  if (op.is<program::ops::Recv>()) return Time{0};
  if (op.is<program::ops::Send>()) return transfer_cost(op.payload, links, cluster_);
  return collectives_.cost(collective_of(op), op.payload, links).time;
}

Wire CostModel::wire(const program::Op& op, const GroupLinks& links) const {
  if (op.is<program::ops::Send>()) return transfer_wire(links, cluster_);
  return collectives_.cost(collective_of(op), op.payload, links).wire;
}

namespace {

OpClass class_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return OpClass::kAllReduce;
    case CollectiveKind::kAllGather:
      return OpClass::kAllGather;
    case CollectiveKind::kReduceScatter:
      return OpClass::kReduceScatter;
    case CollectiveKind::kAllToAll:
      return OpClass::kAllToAll;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return OpClass::kBroadcast;
    case CollectiveKind::kShift:
      return OpClass::kSendReceive;
  }
  return OpClass::kUnknown;
}

OpClass class_of(const program::Op& op) {
  using program::ops::Nature;
  switch (program::nature_of(op.kind)) {
    case Nature::kProduct:
      return OpClass::kProduct;
    case Nature::kAttention:
      return OpClass::kAttention;
    case Nature::kPointwise:
    case Nature::kQuantised:
      return OpClass::kElementwise;
    case Nature::kRouting:
      return OpClass::kRouting;
    case Nature::kState:
      return OpClass::kOptimizer;
    case Nature::kCollective:
      return class_of(std::get<program::ops::Collective>(op.kind).collective);
    case Nature::kTransfer:
      return OpClass::kSendReceive;
    case Nature::kCopy:
      return OpClass::kCopy;
    case Nature::kSoftware:
      return OpClass::kSoftware;
  }
  return OpClass::kUnknown;
}

}  // namespace

void label(const program::Program& program, const CostModel& cost, Timeline& timeline) {
  struct Known {
    const program::Op* op;
    NodeTypes types;
  };
  const std::vector<NodeTypes> types = node_types_by_stage(cost.cluster(), program.mesh);
  std::map<std::string_view, Known> ops;
  for (const program::RankClass& c : program.classes) {
    for (const program::Segment& s : c.segments) {
      for (const program::Op& op : s.ops) ops.try_emplace(op.name, Known{&op, types_of(types, c.stage)});
    }
  }
  timeline.bounds.clear();
  timeline.classes.clear();
  timeline.payloads.clear();
  for (const std::string& name : timeline.names) {
    const auto found = ops.find(name);
    timeline.bounds.push_back(found == ops.end() ? Bound::kUnknown
                                                 : cost.bound(*found->second.op, found->second.types));
    timeline.classes.push_back(found == ops.end() ? OpClass::kUnknown : class_of(*found->second.op));
    timeline.payloads.push_back(found == ops.end() ? 0 : found->second.op->payload.value);
  }
}

Durations price(const program::Program& program, const CostModel& cost) {
  // What a stage passes to itself crosses no link.
  const GroupLinks self{.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()}};
  Durations out;
  const std::vector<NodeTypes> types = node_types_by_stage(cost.cluster(), program.mesh);
  for (const program::RankClass& c : program.classes) {
    auto& segments = out.emplace_back();
    for (const program::Segment& s : c.segments) {
      auto& ops = segments.emplace_back();
      ops.reserve(s.ops.size());
      for (const program::Op& op : s.ops) {
        const bool inside = op.peer_chunk >= 0 && stage_of_chunk(program.plan, op.peer_chunk) == c.stage;
        ops.push_back(inside ? cost.op(op, self) : cost.op(op, types_of(types, c.stage)));
      }
    }
  }
  return out;
}

}  // namespace orrery::sim
