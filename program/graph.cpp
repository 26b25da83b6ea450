// SPDX-License-Identifier: Apache-2.0
#include "program/graph.h"

#include <algorithm>

namespace orrery::program {

Placements dual(Placements p) {
  for (Placement& along : p.along) along = dual(along);
  return p;
}

bool is_partial(const Placements& p) {
  return std::any_of(p.along.begin(), p.along.end(),
                     [](Placement along) { return along == Placement::kSum || along == Placement::kMax; });
}

std::int64_t Graph::elements(const Value& v, const Placements& placed) const {
  std::int64_t n = v.rows * v.columns;
  for (std::size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    if (is_sharded(placed.along[axis])) n /= mesh.axes()[axis].size;
  }
  return n;
}

}  // namespace orrery::program
