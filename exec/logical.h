// SPDX-License-Identifier: Apache-2.0
//
// Between a rank's share of a parameter and the logical tensor, and the numbers everybody must agree
// on: initial values and training data are functions of (seed, name, index), never of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/run.h"
#include "program/program.h"

namespace orrery::exec {

// Rows and columns of a logical tensor, held one after the other.
struct Box {
  std::int64_t row, rows, col, cols;
};

// What a rank has of weights of a kind: of `parts` that their blocks are in, one; of its blocks, the share of
// one of `ranks`; of all that a shard of ZeRO's, in one of several copies.
struct WeightShare {
  std::int64_t parts = 1, part = 0;
  std::int64_t ranks = 1, rank = 0;
  std::int64_t shard = 0, copy = 0;
};
WeightShare weight_share(const program::Program& program, std::int64_t rank, bool of_experts);

// Calls visit(box, local index of its first element) for each box that a rank holds of a parameter.
template <class Visit>
void for_each_box(const program::Parameter& p, const WeightShare& share, Visit visit) {
  using Split = program::Parameter::Split;
  std::int64_t local = 0, block_start = 0;
  const std::int64_t blocks = std::ssize(p.row_blocks) / share.parts;
  for (std::int64_t b = 0; b < (share.part + 1) * blocks; ++b) {
    const std::int64_t block = p.row_blocks[static_cast<std::size_t>(b)];
    if (b >= share.part * blocks) {
      const std::int64_t rows = p.split == Split::kRows ? block / share.ranks : block;
      visit(Box{block_start + (p.split == Split::kRows ? share.rank * rows : 0), rows,
                p.split == Split::kCols ? share.rank * p.local_cols : 0, p.local_cols},
            local);
      local += rows * p.local_cols;
    }
    block_start += block;
  }
}

// Calls visit(local index, logical index) for each element a rank holds of a parameter.
template <class Visit>
void for_each_element(const program::Parameter& p, const WeightShare& share, Visit visit) {
  for_each_box(p, share, [&](const Box& box, std::int64_t local) {
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
  double bound_;           // of uniform numbers
  std::uint64_t key_;
};

// As checkpoints name a tensor that a rank holds: "island1/" and so on before its name, but for the first
// island.
std::string name_on_island(std::string_view tensor, std::int64_t island);
std::int64_t island_of(const program::Program& program, std::int64_t rank);

// One captured array per unit: a rank's shard of it, empty of frozen ones. And those of all ranks.
using UnitShard = std::vector<std::vector<float>>;
using UnitShards = std::vector<UnitShard>;
// Of the first island.
LogicalTensors assemble(const program::Program& program, const UnitShards& shards);

}  // namespace orrery::exec
