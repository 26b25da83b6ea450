// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "gui/what_if/page.h"
#include "planner/evaluate.h"
#include "planner/search.h"

namespace orrery::gui {
namespace {

Bandwidth times(Bandwidth b, double factor) {
  return {std::max<std::int64_t>(1, std::llround(static_cast<double>(b.value) * factor))};
}

// In every format the device has.
void faster(Device& device, double factor) {
  for (FlopRate* rate : {&device.fp32, &device.tf32, &device.half, &device.fp8}) rate->value *= factor;
}

}  // namespace

Numbers numbers_of(const Problem& base, const Plan& plan, const Change& change) {
  Problem p = base;
  Numbers out;
  out.plan = plan;
  try {
    for_each_type(p.cluster, [&](NodeType& t) {
      t.nic_bandwidth = times(t.nic_bandwidth, change.nic);
      t.intra_bandwidth = times(t.intra_bandwidth, change.nvlink);
      t.node_hour.value = std::llround(static_cast<double>(t.node_hour.value) * change.price);
    });
    for (Cable& c : p.cluster.inside) c.bandwidth = times(c.bandwidth, change.nvlink);
    for (Device& d : p.devices) {
      d.memory_bandwidth = times(d.memory_bandwidth, change.memory_bandwidth);
      faster(d, change.compute);
    }
    p.cluster.nodes =
        std::max<std::int64_t>(1, std::llround(static_cast<double>(p.cluster.nodes) * change.nodes));
    Training& t = p.scenario.training;
    t.global_batch =
        std::max<std::int64_t>(1, std::llround(static_cast<double>(t.global_batch) * change.batch));
    out.devices = p.cluster.devices();
    const std::int64_t in_replica = plan.tp * plan.cp * plan.pp * plan.islands;
    out.plan.dp = std::max<std::int64_t>(
        1, plan.dp * p.cluster.devices() / std::max<std::int64_t>(1, base.cluster.devices()));
    if (in_replica * out.plan.dp > p.cluster.devices()) out.plan.dp = p.cluster.devices() / in_replica;
    if (out.plan.dp < 1) {
      out.problem = "one replica needs " + std::to_string(in_replica) + " devices";
      return out;
    }
    if (out.plan.shard_group > 0 && out.plan.dp % out.plan.shard_group != 0) out.plan.shard_group = 0;
    const std::int64_t at_once = out.plan.replicas() * plan.micro_batch;
    if (t.global_batch % at_once != 0) {
      const std::int64_t below = t.global_batch / at_once * at_once;
      out.problem = "a batch of " + std::to_string(t.global_batch) +
                    " does not divide into micro-batches of " + std::to_string(plan.micro_batch) + " on " +
                    std::to_string(out.plan.dp) +
                    " replicas; the nearest do: " + (below > 0 ? std::to_string(below) + ", " : "") +
                    std::to_string(below + at_once);
      return out;
    }
    out.plan.micro_batches = t.global_batch / at_once;
    out.problem = planner::plan_problem(p, out.plan);
    if (!out.problem.empty()) return out;
    const sim::Topology topology(p.cluster);
    sim::Estimator estimator(p, topology);
    const sim::Estimate e = estimator.estimate(out.plan);
    out.step_s = seconds(e.step);
    out.tokens_per_s = t.tokens_per_step() / out.step_s;
    out.mfu = planner::model_flops_utilisation(p, out.plan.ranks(), out.step_s);
    out.gib = static_cast<double>(estimator.device_bytes(out.plan, e.peak).value) / kGiB;
    out.capacity_gib = static_cast<double>(e.memory.value) / kGiB;
    if (t.tokens > 0) {
      out.days = t.tokens / out.tokens_per_s / 86400;
      out.dollars = p.cluster.dollars_per_hour(p.cluster.nodes) * 24 * out.days;
    }
  } catch (const Error& e) {
    out.problem = e.what();
  }
  return out;
}

}  // namespace orrery::gui
