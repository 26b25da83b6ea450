// SPDX-License-Identifier: Apache-2.0
//
// Measured collectives correct the formulas: a correction is measured time over the formula's, both with the
// constants of the link profile, so that a cluster with other bandwidths than the profile's scales by the
// formula. For a size between two measured ones the logarithm of the correction is interpolated over the
// logarithm of the size; below the smallest it stays, beyond the largest it halves every factor of four.
//
// A group that was measured (same collective, same number of devices) takes its own curve. Another takes the
// mean of the logarithms over all curves of the profile, weighted exp(-2 distance): doubling the devices is a
// distance of 1, all-gather and reduce-scatter are 0.1 apart, all-reduce 0.7 from both, and all-to-all 1.5
// from each of them.
#pragma once

#include <array>
#include <vector>

#include "core/cluster.h"

namespace orrery::sim {

class MeasuredCollectives {
 public:
  // The kinds that are corrected each by curves of its own; others are corrected as what they are like.
  static constexpr std::array kTabulated{CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                         CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll};
  MeasuredCollectives(const Cluster& cluster, const NodeType& type);
  // Of a group of so many devices inside one domain; 1 where nothing is known.
  double correction(CollectiveKind kind, std::int64_t ranks, Bytes whole) const;

 private:
  static constexpr int kFirst = 9, kLast = 35;  // powers of two that are tabulated
  static constexpr std::size_t kKinds = kTabulated.size();
  using Curve = std::array<float, kLast - kFirst + 1>;  // logarithms
  std::vector<std::array<Curve, kKinds>> by_ranks_;
};

}  // namespace orrery::sim
