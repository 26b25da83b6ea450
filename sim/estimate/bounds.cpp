// SPDX-License-Identifier: Apache-2.0
//
// What a plan takes at least, and holds at least: cheaper than its estimate, so that a search prices few
// plans.
#include <algorithm>
#include <utility>

#include "program/schedule.h"
#include "sim/estimate/estimate.h"
#include "sim/estimate/pipeline_parts.h"

namespace orrery::sim {

// The plan, or where ZeRO-2 or 3 communicates in chunks the one that does not.
void Estimator::select_unsharded(const Plan& plan) {
  if (plan.zero < 2) return select(plan);
  Plan without = plan;
  without.zero = 0;
  without.reshard_after_forward.reset();
  without.shard_group = 0;
  select(without);
}

// What the slowest stage exchanges with other replicas for a micro-batch.
Time Estimator::least_exchanged(const Plan& plan) {
  const HardwareByStage& hardware = hardware_by_stage(plan);
  const std::int64_t gathers = plan.zero < 3 ? 0 : plan.reshards() ? 2 : 1;
  std::int64_t most = 0;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    const StageHardware& on =
        hardware[hardware.size() == 1 ? 0 : static_cast<std::size_t>(costs_.runs[r].first)];
    look_at_stage(plan, costs_.runs[r].last(), held_);
    hold_units(plan);
    std::int64_t sum = 0, each = 0;
    for (std::size_t i = 0; i < on_stage_.units.size(); ++i) {
      const program::UnitSize& u = on_stage_.units[i];
      const bool like_last = i > 0 && u.elements == on_stage_.units[i - 1].elements &&
                             u.of_experts == on_stage_.units[i - 1].of_experts &&
                             u.kept == on_stage_.units[i - 1].kept;
      if (!like_last) {
        const std::int64_t elements = program::UnitShare(plan, u.elements, u.of_experts).padded;
        const std::int32_t links = on[state_.of(u.of_experts).shard];
        const std::int64_t shards = u.of_experts ? plan.expert_shards() : plan.shards();
        each = 0;
        if (shards > 1) {
          const auto stored = static_cast<std::int64_t>(
              orrery::bytes_of(program::stored_type(problem_.scenario.training, u.kept)));
          each = gathers * collective(CollectiveKind::kAllGather, elements * stored, links);
          if (u.trained())
            each += collective(CollectiveKind::kReduceScatter, elements * bytes_.gradient, links);
        }
      }
      sum += each;
    }
    most = std::max(most, sum);
  }
  return Time{most};
}

// What the host takes, or a stage's own work for all micro-batches, after the first micro-batch has come down
// to it and before the last one has gone up (weight gradients may come after that). ZeRO-2 and 3 only add
// communication to a chunk, and pricing both together is what costs: the bound takes the longer of them.
Time Estimator::lower_bound(const Plan& plan) {
  select_unsharded(plan);
  const auto v = static_cast<std::size_t>(plan.vpp);
  std::int64_t most = 0, down = 0, up = 0, host = 0;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    const ChunkCost& first = *costs_.chunks[r * v];
    const auto least = [&](ChunkWork work) { return std::min(first[work].time, first[work].latency); };
    const auto advance = [&](std::int64_t stages) {
      down += stages * least(kChunkForward);
      if (key_.backwards == program::Backwards::kWhole) up += stages * least(kChunkBackward);
    };
    advance(costs_.runs[r].count - 1);
    most = std::max(most, down + time_of_chunks(r) * plan.micro_batches + up);
    host = std::max(host, host_of_chunks(r) * plan.micro_batches);
    advance(1);
  }
  if (costs_.walk && !unequal_turns_ && !always_walked(plan.schedule) && !plan.overlap_exchanges) {
    if (!least_end_) {
      const std::int64_t transfer = std::exchange(costs_.transfer, least_transfer_);
      costs_.reductions.clear();
      least_end_ = pipeline_.least_end(shape_of(plan), costs_);
      costs_.transfer = transfer;
    }
    most = std::max(most, *least_end_);
  }
  if (plan.zero >= 2) most = std::max(most, (least_exchanged(plan) * plan.micro_batches).value);
  return Time{std::max(most, host)};
}

Time Estimator::least_work(const Plan& whole) {
  select(whole);
  const ChunkCost& cost = *costs_.chunks.front();
  return Time{of_micro_batch(cost, &WorkCost::time) - of_micro_batch(cost, &WorkCost::waiting)};
}

Estimator::HeldBytes Estimator::held_bytes(const Plan& plan) {
  ranges_of_chunks(plan, held_by_other_);
  HeldBytes out;
  for (std::int64_t stage = 0; stage < plan.pp; ++stage) {
    const auto like_last = [&](std::int64_t c) {
      const auto at = [&](std::int64_t s) {
        return static_cast<std::size_t>(program::global_chunk(chunk_placement(plan), plan.pp, s, c));
      };
      const std::size_t g = at(stage), before = at(stage - 1);
      return before > 0 && g + 1 < held_by_other_.size() && held_by_other_[g] == held_by_other_[before];
    };
    bool same = stage > 0 && stage + 1 < plan.pp;
    for (std::int64_t c = 0; c < plan.vpp && same; ++c) same = like_last(c);
    if (same) continue;
    look_at_stage(plan, stage, held_by_other_);
    hold_units(plan);
    const Bytes held{static_bytes(plan).device};
    out.most = std::max(out.most, held);
    if (stage == 0) out.first = held;
  }
  return out;
}

// Backwards free all that forwards left, and side by side with them no more forwards come first.
Bytes Estimator::least_peak(const Plan& plan, const HeldBytes& held) {
  ranges_of_chunks(plan, held_by_other_);
  std::vector<ChunkCost> chunks(static_cast<std::size_t>(plan.vpp));
  std::vector<const ChunkCost*> costs;
  std::int64_t once = 0;
  for (std::int64_t c = 0; c < plan.vpp; ++c) {
    const std::int64_t g = program::global_chunk(chunk_placement(plan), plan.pp, 0, c);
    const BlockRange& blocks = held_by_other_[static_cast<std::size_t>(g)];
    const std::int64_t recomputed =
        plan.recompute == Recompute::kFull ? recomputed_layers(plan, g, blocks.blocks) : 0;
    const std::int64_t left = chunk_costs_.least_left(plan, blocks, recomputed);
    ChunkCost& cost = chunks[static_cast<std::size_t>(c)];
    cost[kChunkForward].peak = cost[kChunkForward].net = left;
    cost[kChunkBackward].net = cost[kChunkBackwardInput].net = -left;
    costs.push_back(&cost);
    once += left;
  }
  const PipelineShape shape{
      .schedule = plan.schedule, .p = plan.pp, .v = plan.vpp, .m = plan.micro_batches};
  const std::int64_t left =
      always_walked(plan.schedule) ? once : stage_peak(shape, {.chunks = std::move(costs)}, 0, 0);
  return std::max(held.most, held.first + Bytes{left});
}

// A chunk's activations are there for as many micro-batches as are on their way through the stages behind it.
Estimator::HostMemory Estimator::host_memory(const Plan& plan) {
  HostMemory out;
  if (!plan.offloads()) return out;
  select(plan);
  const auto v = static_cast<std::size_t>(plan.vpp);
  std::int64_t most = 0, most_on_drives = 0;
  for (std::size_t r = 0; r < costs_.runs.size(); ++r) {
    look_at_stage(plan, costs_.runs[r].first, held_);
    hold_units(plan);
    const std::int64_t behind = plan.pp - costs_.runs[r].first;
    const std::int64_t in_flight = plan.schedule == Schedule::kGPipe || plan.schedule == Schedule::kListed
                                       ? plan.micro_batches
                                       : std::min(plan.micro_batches, plan.vpp > 1 ? 2 * plan.pp : behind);
    const program::StaticBytes held = static_bytes(plan);
    std::int64_t bytes = held.host;
    most_on_drives = std::max(most_on_drives, held.drives);
    for (std::size_t c = r * v; c < (r + 1) * v; ++c)
      bytes += in_flight * (*costs_.chunks[c])[kChunkForward].offloaded;
    most = std::max(most, bytes);
  }
  const std::int64_t ranks = std::min(plan.ranks(), problem_.cluster.devices_per_node);
  out.needed = Bytes{most * ranks};
  out.available = problem_.cluster.least_host_memory();
  out.on_drives = Bytes{most_on_drives * ranks};
  if (plan.optimizer_on_drives()) out.drives = problem_.cluster.least_drives();
  return out;
}

}  // namespace orrery::sim
