// SPDX-License-Identifier: Apache-2.0
#include "exec/muon_matrices.h"

#include "program/state/units.h"

namespace orrery::exec {

std::vector<MuonMatrix> muon_matrices(const Placement& place, const program::Op& op) {
  using Split = program::Parameter::Split;
  const auto& of = std::get<program::ops::Orthogonalise>(op.kind);
  const program::Unit& unit = place.rank_class.units[static_cast<std::size_t>(of.unit)];
  const WeightShare& own = place.share(unit.of_experts);
  const Muon& muon = place.program.training.muon.value();
  // All tensor ranks' U, one behind the other, or the rank's own.
  const bool gathered = op.reads[0].buffer != op.writes[0].buffer;
  const std::int64_t from = own.shard * unit.shard, to = from + unit.shard;
  std::vector<MuonMatrix> out;
  for (const program::Parameter& p : place.rank_class.parameters) {
    if (p.unit != of.unit) continue;
    for (const program::Matrices& m : program::matrices_of(p, own.ranks, own.parts, p.offset, muon.tp_mode)) {
      if (m.rows != of.rows || m.columns != of.columns) continue;
      for (std::int64_t first = m.first, end = m.first + m.count * m.elements; first < end;
           first += m.elements) {
        if (first + m.elements <= from || first >= to) continue;
        MuonMatrix& matrix = out.emplace_back();
        if (!gathered || p.split == Split::kNone) {
          const std::int64_t base = gathered ? own.rank * unit.padded : 0;
          matrix.load.push_back({.from = base + first, .width = m.elements});
          matrix.store = {.to = first, .width = m.elements};
          continue;
        }
        const bool by_rows = p.split == Split::kRows;
        const std::int64_t rows = by_rows ? 1 : m.rows, width = m.elements / rows;
        const std::int64_t stride = by_rows ? 0 : m.columns;
        for (std::int64_t r = 0; r < own.ranks; ++r)
          matrix.load.push_back({r * unit.padded + first, r * width, rows, width, width, stride});
        matrix.store = {own.rank * width, first, rows, width, stride, width};
      }
    }
  }
  return out;
}

}  // namespace orrery::exec
