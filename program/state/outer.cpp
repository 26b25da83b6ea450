// SPDX-License-Identifier: Apache-2.0
#include "program/state/outer.h"

#include <fmt/format.h>

#include <vector>

namespace orrery::program {

bool emit_outer(Emitter& e, const StageParameters& state, const Communication& over) {
  const OuterOptimizer& outer = e.training.outer.value();
  const auto bytes = static_cast<std::int64_t>(bytes_of(outer.exchanged()));
  const bool has_master = bytes_per_parameter(e.training.precision).master > 0;
  std::vector<std::int32_t> units;
  for (std::int32_t i = 0; i < std::ssize(e.rank.units); ++i) {
    if (state.trains(i)) units.push_back(i);
  }
  if (units.empty()) return false;
  e.begin(SegmentKind::kOuter, 0, true);
  const std::int32_t differences = state.buffer(Held::kOuterDifference);
  std::int64_t all = 0;
  std::vector<Ref> of;
  for (const std::int32_t i : units) {
    const Unit& u = state.unit(i);
    of.push_back({differences, all});
    all += u.shard;
    const Ref weights = has_master ? Ref{u.optimizer_buffer} : state.parameter_shard(u);
    e.add(ops::OuterDifference{u.shard, bytes}, fmt::format("unit{}/outer-difference", i),
          {weights, {u.outer_buffer}}, {of.back()});
  }
  e.collective({CollectiveKind::kAllReduce, all}, "outer/all-reduce", over.group("island"), bytes,
               {{differences}}, {{differences}});
  for (std::size_t k = 0; k < units.size(); ++k) {
    const Unit& u = state.unit(units[k]);
    std::vector<Ref> writes{state.parameter_shard(u), {u.outer_buffer}};
    if (has_master) writes.push_back({u.optimizer_buffer});
    e.add(ops::OuterUpdate{u.shard, bytes, outer.momentum > 0}, fmt::format("unit{}/outer-update", units[k]),
          {of[k], {u.outer_buffer}}, std::move(writes));
    for (const UnitExchange& x : state.work(units[k]).gathers) {
      e.collective(x.op, fmt::format("unit{}/outer{}", units[k], x.name), x.group, x.element_bytes,
                   {state.parameter_shard(u)}, {{u.parameter_buffer}});
    }
  }
  return true;
}

}  // namespace orrery::program
