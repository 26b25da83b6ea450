// SPDX-License-Identifier: Apache-2.0
#include "exec/placement.h"

#include <algorithm>

namespace orrery::exec {

Placement::Placement(const program::Program& program_in, std::int64_t rank_in)
    : program(program_in),
      rank(rank_in),
      at{program_in.mesh.coordinate(rank_in, "tp"),
         program_in.mesh.coordinate(rank_in, "ulysses"),
         program_in.mesh.coordinate(rank_in, "ring"),
         program_in.mesh.coordinate(rank_in, "dp") * program_in.plan.islands +
             program_in.mesh.coordinate(rank_in, "island"),
         program_in.stage_of(rank_in),
         weight_share(program_in, rank_in, true).rank,
         program_in.plan.ulysses,
         program_in.plan.ring()},
      rank_class(program_in.classes[static_cast<std::size_t>(at.stage)]),
      shares_{weight_share(program_in, rank_in, false), weight_share(program_in, rank_in, true)},
      counted_(rank_class.units.size()),
      parts_(rank_class.units.size()),
      update_ranges_(rank_class.units.size()) {
  std::int64_t tensor = -1;
  for (const program::Parameter& p : rank_class.parameters) {
    ++tensor;
    const program::Unit& u = rank_class.units[static_cast<std::size_t>(p.unit)];
    const WeightShare& own = share(u.of_experts);
    const std::int64_t shard = own.shard * u.shard;
    const std::int64_t first = std::max(p.offset, shard) - shard;
    const std::int64_t count = std::min(p.offset + p.local_elements() - shard, u.shard) - first;
    if (count <= 0) continue;
    const bool decays = program.training.optimizer.decay == Decay::kAll || !p.is_vector();
    parts_[static_cast<std::size_t>(p.unit)].push_back({tensor, first, count, decays, p.sign_rate});
    auto& alike = update_ranges_[static_cast<std::size_t>(p.unit)];
    if (!alike.empty() && alike.back().decays == decays && alike.back().sign_rate == p.sign_rate &&
        alike.back().first + alike.back().count == first)
      alike.back().count += count;
    else
      alike.push_back({first, count, decays, p.sign_rate});
    // What every tensor rank holds alike counts on the first.
    if ((p.split == program::Parameter::Split::kNone && own.rank > 0) || p.sign_rate > 0) continue;
    Ranges& ranges = counted_[static_cast<std::size_t>(p.unit)];
    if (!ranges.empty() && ranges.back().first + ranges.back().second == first)
      ranges.back().second += count;
    else
      ranges.emplace_back(first, count);
  }
}

std::int64_t Placement::offset(const program::Ref& r, std::int64_t micro_batch) const {
  const program::Buffer& b = buffer(r);
  const std::int64_t element = r.offset + share(r.of_experts).shard * r.shard_stride;
  return b.arena_offset + (micro_batch % b.instances) * b.arena_stride +
         element * static_cast<std::int64_t>(bytes_of(b.type));
}

std::int64_t Placement::peer(const program::Op& op) const {
  return program.mesh.moved(rank, program.mesh["pp"], stage_of_chunk(program.plan, op.peer_chunk));
}

kernels::Dropout Placement::dropout(const program::Op& op, std::int64_t micro_batch, std::uint64_t seed,
                                    std::int64_t first) const {
  const Plan& p = program.plan;
  const auto* residual = op.as<program::ops::Residual>();
  const bool cross = op.is<program::ops::CrossAttention>() || op.is<program::ops::CrossAttentionGrad>();
  // 0: attention to the layer's own tower.
  const std::int64_t site = residual != nullptr ? residual->site : cross ? std::int64_t{1} << 30 : 0;
  return {program.training.dropout, hash_mix(seed), static_cast<std::uint32_t>(4 * op.layer + site),
          first + (micro_batch * p.replicas() + at.replica) * p.micro_batch};
}

// The tensor is a unit of a stage and one of the ranks that share its weights, whose shard this rank has.
kernels::StochasticRounding Placement::rounding(const program::Op& op, std::uint64_t seed) const {
  const auto* update = op.as<program::ops::Optimizer>();
  if (update == nullptr || !program.training.stochastic_rounding) return {};
  const std::int64_t unit = update->unit;
  const auto units = static_cast<std::int64_t>(rank_class.units.size());
  const program::Unit& of = rank_class.units[static_cast<std::size_t>(unit)];
  const WeightShare& own = share(of.of_experts);
  const std::int64_t sharing = (at.stage * own.parts + own.part) * own.ranks + own.rank;
  return {.on = true,
          .seed = hash_mix(seed + 1),
          .site = static_cast<std::uint32_t>(sharing * units + unit),
          .first = own.shard * of.shard};
}

std::int64_t Placement::first_sample(std::int64_t step) const {
  const Plan& p = program.plan;
  return step * p.global_batch();
}

}  // namespace orrery::exec
