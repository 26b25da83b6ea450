// SPDX-License-Identifier: Apache-2.0
//
// A rank's parameters: from logical values to the arena of whoever executes its program. Internal to exec/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/executor.h"
#include "exec/logical.h"
#include "exec/placement.h"

namespace orrery::exec {

// The whole of a unit as this tensor rank has it. `value(p)` gives what is asked for each logical element of
// parameter p.
template <class Value>
std::vector<float> unit_values(const Placement& place, std::size_t index, Value value) {
  const program::RankClass& rank = place.rank_class;
  std::vector<float> all(static_cast<std::size_t>(rank.units[index].padded));
  for (const program::Parameter& p : rank.parameters) {
    if (p.unit != static_cast<std::int32_t>(index)) continue;
    const auto of = value(p);
    for_each_element(p, place.share(p.of_experts), [&](std::int64_t local, std::int64_t logical) {
      all[static_cast<std::size_t>(p.offset + local)] = of(logical);
    });
  }
  return all;
}

// Of these, the shard that is the rank's own.
std::span<const float> own_shard(const Placement& place, std::size_t index, const std::vector<float>& values);

// Writes a unit as the rank keeps it, rounded from the master copy where there is one; where there are
// islands it is what they begin from.
void write_unit(Executor& executor, const Placement& place, std::size_t index,
                const std::vector<float>& values);

// All units as a run begins: tensors by logical name where there are any, and where not, those of the seed.
void write_initial(Executor& executor, const Placement& place, std::uint64_t seed,
                   const LogicalTensors* tensors = nullptr);
// Those that are trained, of tensors by the names that checkpoints have for them.
void write_trained(Executor& executor, const Placement& place, const LogicalTensors& tensors);
// Of these, one that the rank holds: of its island, or else of the first.
const std::vector<float>& tensor_of(const Placement& place, const LogicalTensors& tensors,
                                    const std::string& name);

inline bool is_trained(const Placement& place, std::size_t unit) {
  return place.rank_class.units[unit].kept == program::Kept::kTrained;
}

// What a tensor has for a logical element: padding beyond its end is zero.
inline float element_of(const std::vector<float>& tensor, std::int64_t logical) {
  const auto at = static_cast<std::size_t>(logical);
  return at < tensor.size() ? tensor[at] : 0.0F;
}

}  // namespace orrery::exec
