// SPDX-License-Identifier: Apache-2.0
//
// Where a rank stands in its program, and its buffers in its arena: what whoever executes the ops needs to
// know beside them. Internal to exec/.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/logical.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/token_share.h"
#include "program/program.h"

namespace orrery::exec {

// Elements of a rank's shard that are of one tensor, an index into RankClass::parameters.
struct TensorPart {
  std::int64_t tensor, first, count;
  bool decays;       // weight decay shrinks it
  double sign_rate;  // of Parameter
};
// Neighbouring elements of a rank's shard that are updated alike.
struct UpdateRange {
  std::int64_t first, count;
  bool decays;
  double sign_rate;
};

struct Coordinates {
  std::int64_t tp = 0, ulysses = 0, ring = 0;
  // Among the replicas of all islands, whose islands take turns: what an island sees does not depend on how
  // many replicas it has.
  std::int64_t replica = 0;
  std::int64_t stage = 0;
  std::int64_t etp = 0;  // among the ranks that share experts' columns
  std::int64_t ulysses_ranks = 1, ring_ranks = 1;
  // Of the samples' tokens, those that the rank has: so many of each.
  kernels::TokenShare token_share(std::int64_t tokens) const {
    return kernels::token_share(tokens, ring_ranks, ulysses_ranks, ring, ulysses);
  }
};

class Placement {
 public:
  // `program` must outlive it.
  Placement(const program::Program& program, std::int64_t rank);

  const program::Program& program;
  const std::int64_t rank;
  const Coordinates at;
  const program::RankClass& rank_class;
  const WeightShare& share(bool of_experts) const { return shares_[of_experts ? 1 : 0]; }

  const program::Buffer& buffer(const program::Ref& r) const {
    return rank_class.buffers[static_cast<std::size_t>(r.buffer)];
  }
  // Bytes from the start of the arena.
  std::int64_t offset(const program::Ref& r, std::int64_t micro_batch) const;

  // Of this rank's shard of a unit: (first element, how many) of what counts in the gradient norm, the parts
  // of tensors that it is made of, and the same parts put together where they are updated alike.
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const Ranges& counted(std::int64_t unit) const { return counted_[static_cast<std::size_t>(unit)]; }
  const std::vector<TensorPart>& parts(std::int64_t unit) const {
    return parts_[static_cast<std::size_t>(unit)];
  }
  const std::vector<UpdateRange>& update_ranges(std::int64_t unit) const {
    return update_ranges_[static_cast<std::size_t>(unit)];
  }

  // The other end of a send or receive.
  std::int64_t peer(const program::Op& op) const;

  // What an op drops. Elements are named as the loader numbers sequences: over all steps, micro-batches of
  // replicas in turn; the first sample is that of the micro-batch since `first_sample`, the step's.
  kernels::Dropout dropout(const program::Op& op, std::int64_t micro_batch, std::uint64_t seed,
                           std::int64_t first_sample) const;
  std::int64_t first_sample(std::int64_t step) const;
  // How an optimizer op rounds the parameters of its shard.
  kernels::StochasticRounding rounding(const program::Op& op, std::uint64_t seed) const;

 private:
  const std::array<WeightShare, 2> shares_;
  std::vector<Ranges> counted_;
  std::vector<std::vector<TensorPart>> parts_;
  std::vector<std::vector<UpdateRange>> update_ranges_;
};

}  // namespace orrery::exec
