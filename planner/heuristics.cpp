// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "planner/evaluate.h"
#include "planner/plan.h"
#include "planner/space.h"

namespace orrery::planner {
namespace {

Plan filled(const Problem& problem, Plan p) {
  const std::int64_t devices = problem.cluster.devices();
  const std::int64_t batch = problem.scenario.training.global_batch;
  p.dp = std::max<std::int64_t>(1, replicas(batch, p.micro_batch, devices / (p.tp * p.pp)));
  p.micro_batches = batch / (p.dp * p.micro_batch);
  if (p.dp == 1) p.zero = 0;
  return p;
}

// Model state of the scenario's precision on one device.
bool state_fits(const Problem& problem, std::int64_t split) {
  Bytes least = problem.devices.front().memory;
  for (std::size_t i = 1; i < problem.cluster.types(); ++i)
    least = std::min(least, problem.devices[i].memory);
  const double bytes = state_bytes(problem.scenario.model, problem.scenario.training);
  return bytes / static_cast<double>(split) < 0.8 * static_cast<double>(least.value);
}

}  // namespace

std::vector<Heuristic> heuristics(const Problem& problem) {
  const Model& m = problem.scenario.model;
  const std::int64_t node = problem.cluster.devices_per_node;
  // Experts' columns too, as these rules lay experts over the ranks as all else.
  const std::int64_t tp =
      std::gcd(node, std::gcd(shared_count(m), depth_of(m).shared(Degree::kExpertTensor)));
  std::vector<Heuristic> out;

  Heuristic tree{"decision tree",
                 "fits one GPU: DDP; one node: TP; larger: TP in the node, PP until it fits, DP for the rest",
                 {},
                 {}};
  tree.plan.recompute = Recompute::kFull;
  if (!state_fits(problem, 1)) tree.plan.tp = tp;
  if (!state_fits(problem, tp)) {
    while (tree.plan.pp < m.layers && !state_fits(problem, tp * tree.plan.pp)) {
      do ++tree.plan.pp;
      while (tree.plan.pp < m.layers && m.layers % tree.plan.pp != 0);
    }
  }
  tree.plan.sequence_parallel = tree.plan.tp > 1;
  out.push_back(tree);

  Heuristic fixed{
      "TP8 then PP", "TP = GPUs of a node, PP = depth over layers per node (20), DP = rest, ZeRO-1", {}, {}};
  fixed.plan.tp = tp;
  fixed.plan.pp = std::max<std::int64_t>(1, m.layers / 20);
  while (fixed.plan.pp > 1 &&
         (m.layers % fixed.plan.pp != 0 || fixed.plan.tp * fixed.plan.pp > problem.cluster.devices()))
    --fixed.plan.pp;
  fixed.plan.zero = 1;
  fixed.plan.recompute = Recompute::kFull;
  fixed.plan.sequence_parallel = tp > 1;
  out.push_back(fixed);

  Heuristic fsdp{
      "FSDP",
      "shard everything over all GPUs, no tensor or pipeline parallelism, recompute what does not fit",
      {},
      {}};
  fsdp.plan.zero = 3;
  for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    fsdp.plan.recompute = r;
    const Plan p = filled(problem, fsdp.plan);
    if (plan_problem(problem, p).empty() && fit(problem, p).fits()) break;
  }
  out.push_back(fsdp);

  for (Heuristic& h : out) {
    h.plan = filled(problem, h.plan);
    h.problem = plan_problem(problem, h.plan);
  }
  return out;
}

}  // namespace orrery::planner
