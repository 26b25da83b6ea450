// SPDX-License-Identifier: Apache-2.0
#include "sim/cost.h"

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

EngineOptions engine_options(const Device& device, const Stack& stack, bool record) {
  EngineOptions o;
  o.compute_slowdown = device.overlap_compute;
  o.communication_slowdown = device.overlap_communication;
  const Time issue = from_seconds(seconds(device.host_op) * stack.host_cost_factor);
  (stack.launch == Launch::kEager ? o.host_op : o.host_segment) = issue;
  o.record = record;
  return o;
}

namespace {

CollectiveKind collective_of(const program::Op& op) {
  return std::get<program::ops::Collective>(op.kind).collective;
}

}  // namespace

Time CostModel::op(const program::Op& op) const {
  if (program::is_communication(op.kind)) return this->op(op, links(op.group));
  return compute_time(device_, math_, element_bytes_, op);
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

void label(const program::Program& program, const CostModel& cost, Timeline& timeline) {
  std::map<std::string_view, const program::Op*> ops;
  for (const program::RankClass& c : program.classes) {
    for (const program::Segment& s : c.segments) {
      for (const program::Op& op : s.ops) ops.try_emplace(op.name, &op);
    }
  }
  timeline.bounds.clear();
  timeline.payloads.clear();
  for (const std::string& name : timeline.names) {
    const auto found = ops.find(name);
    timeline.bounds.push_back(found == ops.end() ? Bound::kUnknown : cost.bound(*found->second));
    timeline.payloads.push_back(found == ops.end() ? 0 : found->second->payload.value);
  }
}

Durations price(const program::Program& program, const CostModel& cost) {
  // What a stage passes to itself crosses no link.
  const GroupLinks self{.ring = Bandwidth{std::numeric_limits<std::int64_t>::max()}};
  Durations out;
  for (const program::RankClass& c : program.classes) {
    auto& segments = out.emplace_back();
    for (const program::Segment& s : c.segments) {
      auto& ops = segments.emplace_back();
      ops.reserve(s.ops.size());
      for (const program::Op& op : s.ops) {
        const bool inside = op.peer_chunk >= 0 && stage_of_chunk(program.plan, op.peer_chunk) == c.stage;
        ops.push_back(inside ? cost.op(op, self) : cost.op(op));
      }
    }
  }
  return out;
}

}  // namespace orrery::sim
