// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/contention.h"

#include <algorithm>

namespace orrery::sim {
namespace {

constexpr double kMostTaken = 0.75;  // of uplinks, by others: max-min fair sharing leaves a job some

// Nodes that may send through the uplinks of a part's leaf, over what the uplinks carry.
double demand(const ClusterNodes& cluster, const LeafPart& part, std::int64_t all) {
  const auto sending = static_cast<double>(std::min(part.nodes, all - part.nodes));
  if (sending == 0) return 0;
  const double uplink = cluster.uplink[static_cast<std::size_t>(part.leaf)];
  return uplink > 0 ? sending / uplink : sending;
}

std::int64_t nodes_of(std::span<const LeafPart> parts) {
  std::int64_t sum = 0;
  for (const LeafPart& p : parts) sum += p.nodes;
  return sum;
}

}  // namespace

std::vector<LeafPart> leaf_parts(const ClusterNodes& cluster, std::span<const std::int32_t> nodes) {
  std::vector<LeafPart> out;
  for (const std::int32_t n : nodes) {
    const std::int32_t leaf = cluster.leaf[static_cast<std::size_t>(n)];
    if (out.empty() || out.back().leaf != leaf) out.push_back({leaf, 0});
    ++out.back().nodes;
  }
  return out;
}

ShapeCost duration_cost(const ClusterNodes& cluster, std::span<const LeafPart> parts, double f) {
  if (parts.size() < 2) return {};
  double longest = 1;
  for (const LeafPart& p : parts) longest = std::max(longest, demand(cluster, p, nodes_of(parts)));
  return {1 + f * (longest - 1), f * longest};
}

ShapeCost ShapeCosts::operator()(std::int32_t plan, std::span<const std::int32_t> nodes,
                                 std::span<const LeafPart> parts) {
  std::vector<std::int64_t> key{plan};
  if (cluster_.regular) {
    std::map<std::int32_t, std::int64_t> pods;
    for (const LeafPart& p : parts) {
      const std::int32_t pod = cluster_.pod[static_cast<std::size_t>(p.leaf)];
      key.push_back(pods.try_emplace(pod, std::ssize(pods)).first->second);
      key.push_back(p.nodes);
    }
  } else {
    key.insert(key.end(), nodes.begin(), nodes.end());
  }
  const auto [found, added] = known_.try_emplace(std::move(key));
  if (added) found->second = cost_(plan, nodes);
  return found->second;
}

std::vector<std::int32_t> Contention::beside(std::int32_t job, std::span<const LeafPart> parts) const {
  std::vector<std::int32_t> out;
  for (const LeafPart& p : parts) {
    for (const User& u : on_[static_cast<std::size_t>(p.leaf)]) {
      if (u.job != job) out.push_back(u.job);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<std::int32_t> Contention::add(std::int32_t job, std::span<const LeafPart> parts,
                                          const ShapeCost& cost) {
  const std::int64_t all = nodes_of(parts);
  for (const LeafPart& p : parts) {
    const double use = cost.sensitivity / cost.slow * std::min(1.0, demand(cluster_, p, all));
    on_[static_cast<std::size_t>(p.leaf)].push_back({job, use});
  }
  return beside(job, parts);
}

std::vector<std::int32_t> Contention::remove(std::int32_t job, std::span<const LeafPart> parts) {
  for (const LeafPart& p : parts)
    std::erase_if(on_[static_cast<std::size_t>(p.leaf)], [&](const User& u) { return u.job == job; });
  return beside(job, parts);
}

double Contention::pace(std::int32_t job, std::span<const LeafPart> parts, const ShapeCost& cost) const {
  double most = 0;
  for (const LeafPart& p : parts) {
    double others = 0;
    for (const User& u : on_[static_cast<std::size_t>(p.leaf)]) others += u.job == job ? 0 : u.use;
    most = std::max(most, others);
  }
  return cost.slow + cost.sensitivity * (1 / (1 - std::min(most, kMostTaken)) - 1);
}

}  // namespace orrery::sim
