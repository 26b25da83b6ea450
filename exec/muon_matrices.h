// SPDX-License-Identifier: Apache-2.0
//
// Where the matrices of an Orthogonalise op stand: as parts of U, which every tensor rank has its own of, and
// as wholes. Internal to exec/.
#pragma once

#include <cmath>
#include <vector>

#include "exec/placement.h"

namespace orrery::exec {

// `rows` of `width` elements, so many elements from one to the next.
struct RowCopy {
  std::int64_t from = 0, to = 0, rows = 1, width = 0, from_stride = 0, to_stride = 0;
};
// From what the op reads to a matrix, and back from it to what the op writes: the rank's part.
struct MuonMatrix {
  std::vector<RowCopy> load;
  RowCopy store;
};
// Those that the rank's shard has a part of.
std::vector<MuonMatrix> muon_matrices(const Placement& place, const program::Op& op);

// Of a matrix with singular values of 1, in an update.
inline float muon_factor(const Muon& muon, const program::ops::Orthogonalise& op) {
  return static_cast<float>(muon.scale * std::sqrt(static_cast<double>(op.longer())));
}

}  // namespace orrery::exec
