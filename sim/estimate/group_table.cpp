// SPDX-License-Identifier: Apache-2.0
#include "sim/estimate/group_table.h"

#include <algorithm>
#include <iterator>

namespace orrery::sim {

const std::vector<std::int32_t>& GroupTable::by_stage(std::int64_t size, std::int64_t stride,
                                                      const Mesh& mesh) {
  const std::int64_t ranks = mesh.ranks();
  const auto [groups, added] = groups_.try_emplace({size, stride, topology_.distinct(size, stride, ranks)});
  if (added) {
    for (const GroupLinks& links : topology_.groups(size, stride, ranks))
      groups->second.push_back(index_of(links));
  }
  if (groups->second.size() == 1) return groups->second;
  const Mesh::Range stages = mesh.range("pp");
  const auto [known, first] = by_stage_.try_emplace({size, stride, ranks, stages.size, stages.stride});
  if (first) known->second = slowest_by_stage(groups->second, size, stride, mesh);
  return known->second;
}

bool GroupTable::meet(std::int64_t size_a, std::int64_t stride_a, std::int64_t size_b,
                      std::int64_t stride_b) {
  if (size_a == 1 || size_b == 1) return false;
  const auto [known, added] = meet_.try_emplace({size_a, stride_a, size_b, stride_b}, false);
  if (!added) return known->second;
  LinkLoads loads(topology_.network());
  const auto links_of = [&](std::int64_t size, std::int64_t stride) {
    std::vector<std::int64_t> members;
    for (std::int64_t i = 0; i < size; ++i) members.push_back(i * stride);
    LinkLoads::Added ring;
    loads.add_ring(members, topology_.cluster().scale_up_domain(), &ring);
    std::vector<LinkId> out;
    for (const LinkLoads::Load& l : ring.loads) out.push_back(l.link);
    return out;  // in order
  };
  const std::vector<LinkId> a = links_of(size_a, stride_a), b = links_of(size_b, stride_b);
  std::vector<LinkId> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return known->second = !both.empty();
}

std::int32_t GroupTable::index_of(const GroupLinks& links) {
  const auto known =
      std::find_if(links_.begin(), links_.end(), [&](const GroupLinks& l) { return alike(l, links); });
  const auto index = static_cast<std::int32_t>(known - links_.begin());
  if (known == links_.end()) links_.push_back(links);
  return index;
}

std::vector<std::int32_t> GroupTable::slowest_by_stage(const std::vector<std::int32_t>& groups,
                                                       std::int64_t size, std::int64_t stride,
                                                       const Mesh& mesh) const {
  const Mesh::Range stages = mesh.range("pp");
  std::vector<std::int32_t> out(static_cast<std::size_t>(stages.size), -1);
  const std::int64_t span = size * stride;
  std::size_t group = 0;
  for (std::int64_t first = 0; first < mesh.ranks(); first += span) {
    for (std::int64_t offset = 0; offset < stride; ++offset) {
      const std::int32_t index = groups[group];
      group = (group + 1) % groups.size();
      std::int32_t& slowest = out[static_cast<std::size_t>((first + offset) / stages.stride % stages.size)];
      if (slowest < 0 || faster((*this)[slowest], (*this)[index])) slowest = index;
    }
  }
  if (std::all_of(out.begin(), out.end(), [&](std::int32_t i) { return i == out[0]; })) out.resize(1);
  return out;
}

}  // namespace orrery::sim
