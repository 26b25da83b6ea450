// SPDX-License-Identifier: Apache-2.0
//
// The declared space of plans: the product of what the scenario's search lists, or of everything that
// makes sense. Dependent choices follow from the others: dp is the most replicas that fit and divide the
// batch, micro-batches follow from batch, dp and micro-batch.
#pragma once

#include <functional>
#include <tuple>
#include <vector>

#include "core/scenario.h"

namespace orrery::planner {

class Space {
 public:
  explicit Space(const Problem& problem);

  // The slow axes: what chunk costs depend on. One task of the search.
  struct Outer {
    std::int64_t tp = 1, micro_batch = 1;
    RankOrder rank_order = RankOrder::kTpDpPp;
    bool sequence_parallel = false;
  };
  const std::vector<Outer>& outer() const { return outer_; }

  // Calls `plan` for every valid plan; counts combinations and those that are not plans.
  void visit(const Outer& outer, std::int64_t& considered, std::int64_t& invalid,
             const std::function<void(const Plan&)>& plan) const;

 private:
  struct Remat {
    Recompute mode;
    std::int64_t every;
  };
  const Problem& problem_;
  std::vector<Outer> outer_;
  std::vector<std::int64_t> pp_, zero_, shard_;
  std::vector<Schedule> schedules_;
  std::vector<Remat> remat_;
};

// The most replicas, at most `most`, whose micro-batches divide the batch; 0 if there are none.
std::int64_t replicas(std::int64_t batch, std::int64_t micro_batch, std::int64_t most);

// A sort key that tells any two plans apart.
using Canonical =
    std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
               std::int64_t, int, int, std::int64_t, int, bool, std::vector<std::int64_t>>;
Canonical canonical(const Plan& p);

}  // namespace orrery::planner
