// SPDX-License-Identifier: Apache-2.0
//
// Between a rank's share of a parameter and the logical tensor, and the numbers everybody must agree
// on: initial values and training data are functions of (seed, name, index), never of the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/run.h"
#include "program/program.h"

namespace orrery::exec {

// Calls visit(local index, logical index) for each element a tensor rank holds of a parameter.
template <class Visit>
void for_each_element(const program::Parameter& p, std::int64_t tp, std::int64_t tp_rank, Visit visit) {
  using Split = program::Parameter::Split;
  std::int64_t local = 0, block_start = 0;
  for (const std::int64_t block : p.row_blocks) {
    const std::int64_t rows = p.split == Split::kRows ? block / tp : block;
    const std::int64_t first_row = block_start + (p.split == Split::kRows ? tp_rank * rows : 0);
    const std::int64_t first_col = p.split == Split::kCols ? tp_rank * p.local_cols : 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < p.local_cols; ++c)
        visit(local++, (first_row + r) * p.cols + first_col + c);
    }
    block_start += block;
  }
}

std::uint64_t hash_mix(std::uint64_t x);
class InitialValues {
 public:
  InitialValues(std::uint64_t seed, const program::Parameter& p);
  float at(std::int64_t logical_index) const;

 private:
  program::Parameter::Init init_;
  std::int64_t elements_;  // padding beyond them is zero
  std::uint64_t key_;
};

// One captured array per (rank, unit): the rank's shard of the unit.
using UnitShards = std::vector<std::vector<std::vector<float>>>;
LogicalTensors assemble(const program::Program& program, const UnitShards& shards);

}  // namespace orrery::exec
