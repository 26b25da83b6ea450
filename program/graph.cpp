// SPDX-License-Identifier: Apache-2.0
#include "program/graph.h"

#include <algorithm>

namespace orrery::program {

Placements dual(Placements p) {
  for (Placement& along : p.along) along = dual(along);
  return p;
}

bool is_partial(const Placements& p) {
  return std::any_of(p.along.begin(), p.along.end(), [](Placement along) { return is_partial(along); });
}

std::int64_t Graph::elements(const Value& v, const Placements& placed) const {
  std::int64_t n = v.rows * v.columns;
  for (const GraphAxis axis : {GraphAxis::kTp, GraphAxis::kUlysses, GraphAxis::kRing}) {
    if (is_sharded(placed[axis])) n /= ranks(axis);
  }
  // All rows of the ranks that share an expert, or columns of them.
  if (!is_sharded(placed[GraphAxis::kEtp])) n *= ranks(GraphAxis::kEtp);
  return n;
}

}  // namespace orrery::program
