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

// Rows and columns of a logical tensor, held one after the other.
struct Box {
  std::int64_t row, rows, col, cols;
};

// Calls visit(box, local index of its first element) for each box that a tensor rank holds of a parameter.
template <class Visit>
void for_each_box(const program::Parameter& p, std::int64_t tp, std::int64_t tp_rank, Visit visit) {
  using Split = program::Parameter::Split;
  std::int64_t local = 0, block_start = 0;
  for (const std::int64_t block : p.row_blocks) {
    const std::int64_t rows = p.split == Split::kRows ? block / tp : block;
    visit(Box{block_start + (p.split == Split::kRows ? tp_rank * rows : 0), rows,
              p.split == Split::kCols ? tp_rank * p.local_cols : 0, p.local_cols},
          local);
    block_start += block;
    local += rows * p.local_cols;
  }
}

// Calls visit(local index, logical index) for each element a tensor rank holds of a parameter.
template <class Visit>
void for_each_element(const program::Parameter& p, std::int64_t tp, std::int64_t tp_rank, Visit visit) {
  for_each_box(p, tp, tp_rank, [&](const Box& box, std::int64_t local) {
    for (std::int64_t r = 0; r < box.rows; ++r) {
      for (std::int64_t c = 0; c < box.cols; ++c) visit(local++, (box.row + r) * p.cols + box.col + c);
    }
  });
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

// One captured array per unit: a rank's shard of it. And those of all ranks.
using UnitShard = std::vector<std::vector<float>>;
using UnitShards = std::vector<UnitShard>;
LogicalTensors assemble(const program::Program& program, const UnitShards& shards);

}  // namespace orrery::exec
