// SPDX-License-Identifier: Apache-2.0
//
// What the groups of an axis get on a topology, asked for once. Groups that get the same have the same index,
// so costs that depend on links can be kept by index: most placements of a search share few kinds of links.
// Internal to sim/estimate/.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "program/program.h"
#include "sim/cost.h"
#include "sim/topology/topology.h"

namespace orrery::sim {

// What two kinds of flows take from each other while both run: half of what they have in common.
inline constexpr double kSharing = 2;
// Whether they use links of the same kind: those of a scale-up domain, or those between domains.
inline bool same_links(const GroupLinks& a, const GroupLinks& b) {
  return a.ranks > 1 && b.ranks > 1 && a.local() == b.local();
}

// What a stage runs on: the types of its nodes, and what its groups get.
struct StageHardware {
  NodeTypes nodes = 0;
  program::ByGroup<std::int32_t> of;  // index in the table of groups
  // Whether tensor-parallel ops, exchanges between experts, and those of ranks that share sequences use some
  // of these links.
  program::ByGroup<bool> meets_tp, meets_ep, meets_cp;
  std::int32_t operator[](program::GroupIndex group) const { return of[group]; }
  friend bool operator==(const StageHardware&, const StageHardware&) = default;
};

class GroupTable {
 public:
  explicit GroupTable(const Topology& topology) : topology_(topology) {}

  // Of groups of `size` ranks `stride` apart, the index of the slowest of each pipeline stage; one index
  // where all stages have the same. Valid for good.
  const std::vector<std::int32_t>& by_stage(std::int64_t size, std::int64_t stride, const Mesh& mesh);
  // Whether the rings of rank 0 over two such groups have a link in common. In a node with cables of its own,
  // neighbours and ranks further apart may each have their cables.
  bool meet(std::int64_t size_a, std::int64_t stride_a, std::int64_t size_b, std::int64_t stride_b);
  // Valid until by_stage() is asked again.
  const GroupLinks& operator[](std::int32_t index) const { return links_[static_cast<std::size_t>(index)]; }

 private:
  std::int32_t index_of(const GroupLinks& links);
  std::vector<std::int32_t> slowest_by_stage(const std::vector<std::int32_t>& groups, std::int64_t size,
                                             std::int64_t stride, const Mesh& mesh) const;

  const Topology& topology_;
  // By size, stride and as many ranks as make a difference: an index for each group that differs, or one.
  std::map<std::array<std::int64_t, 3>, std::vector<std::int32_t>> groups_;
  // By size, stride, ranks, stages and their stride.
  std::map<std::array<std::int64_t, 5>, std::vector<std::int32_t>> by_stage_;
  std::map<std::array<std::int64_t, 4>, bool> meet_;  // by sizes and strides
  std::vector<GroupLinks> links_;
};

}  // namespace orrery::sim
