// SPDX-License-Identifier: Apache-2.0
#include "planner/proxy.h"

#include <algorithm>
#include <numeric>

namespace orrery::planner {

Scenario proxy(const Scenario& scenario, const Plan& plan) {
  Plan p = plan;
  p.pp = std::min<std::int64_t>(plan.pp, 2);
  p.dp = std::min<std::int64_t>(plan.dp, 2);
  p.islands = std::min<std::int64_t>(plan.islands, 2);
  // Two ranks of each way to share sequences.
  p.ulysses = std::gcd<std::int64_t>(plan.ulysses, 2);
  p.cp = p.ulysses * std::gcd<std::int64_t>(plan.ring(), 2);
  if (p.ring() == 1) p.cp_keys.reset();
  const std::int64_t stage = p.tp * p.copies();
  if (stage % p.expert_ranks() != 0) {
    p.ep = std::gcd(p.ep, stage);
    if (stage % p.expert_ranks() != 0) p.etp.reset();
    if (stage % p.expert_ranks() != 0) p.ep = std::gcd(p.ep, p.copies());
  }
  p.expert_exchange.reset();  // the engine has the flat one
  p.overlap_exchanges = p.overlap_exchanges && p.ep > 1;
  p.shard_group = 0;
  p.micro_batches = std::min(plan.micro_batches, 2 * p.pp);
  if (p.schedule == Schedule::kListed) {  // for its own stages and micro-batches
    p.schedule = Schedule::k1F1B;
    p.schedule_order.reset();
    p.vpp = 1;
  }
  p.chunk_layers.clear();
  p.recompute_first = 0;
  p.recompute_by_chunk.clear();
  if (p.recompute == Recompute::kFull) {
    const std::int64_t chunks = plan.pp * plan.vpp;
    p.recompute_layers = std::clamp<std::int64_t>(scenario.model.layers / chunks, 1, plan.recompute_layers);
  }

  Scenario out = scenario;
  out.name = "a proxy of " + (scenario.name.empty() ? short_name(plan) : scenario.name);
  out.model.layers = p.pp * p.vpp * (p.recompute == Recompute::kFull ? p.recompute_layers : 1);
  if (!scenario.model.blocks.empty()) {
    const Depth depth = depth_of(scenario.model);
    const std::int64_t kinds = std::ssize(depth.kinds);
    out.model.blocks = {{(out.model.layers + kinds - 1) / kinds, depth.kinds}};
    out.model.layers = out.model.blocks.front().times * kinds;
  }
  out.training.global_batch = p.global_batch();
  out.training.tokens = 0;
  if (p.islands == 1) out.training.outer.reset();
  out.cluster = {};
  out.cluster.topology = "laptop-cpu";
  out.cluster.nodes = (p.ranks() + 7) / 8;
  out.search = {};
  out.stack = "orrery";
  out.plan = p;
  return out;
}

}  // namespace orrery::planner
