// SPDX-License-Identifier: Apache-2.0
#include "program/graph.h"

#include <algorithm>

namespace orrery::program {

Placements dual(Placements p) {
  for (Placement& along : p.along) along = dual(along);
  return p;
}

std::int64_t Graph::elements(const Value& v, const Placements& placed) const {
  std::int64_t n = v.rows * v.columns;
  for (std::size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    if (is_sharded(placed.along[axis])) n /= mesh.axes()[axis].size;
  }
  return n;
}

std::int64_t Graph::elements_of_piece(std::int32_t piece) const {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    n += piece_of[i] == piece ? parameters[i].local_elements() : 0;
  return n;
}

std::int64_t Graph::tensors_of_piece(std::int32_t piece) const {
  return std::count(piece_of.begin(), piece_of.end(), piece);
}

}  // namespace orrery::program
