// SPDX-License-Identifier: Apache-2.0
#include "sim/collective/measured.h"

#include <algorithm>
#include <cmath>

#include "sim/collective/collective.h"

namespace orrery::sim {
namespace {

// Kinds that are corrected; others have the correction of what they are like.
enum Corrected : std::size_t { kReduceAll, kGatherAll, kScatterSum, kExchange };

Corrected corrected(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return kReduceAll;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      return kScatterSum;
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return kExchange;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kShift:
      break;
  }
  return kGatherAll;
}

double distance(Corrected a, Corrected b) {
  if (a == b) return 0;
  if (a == kExchange || b == kExchange) return 1.5;
  return a == kReduceAll || b == kReduceAll ? 0.7 : 0.1;
}

GroupLinks in_domain(const ScaleUp& links, std::int64_t ranks) {
  GroupLinks g;
  g.ranks = g.per_domain = ranks;
  g.ring = Bandwidth{
      static_cast<std::int64_t>(static_cast<double>(links.intra_bandwidth.value) * links.intra_efficiency)};
  return g;
}

// The logarithm of the correction that a curve says for each of its sizes.
std::vector<double> logarithms(const CollectiveCurve& c, const Cluster& reference) {
  const GroupLinks group = in_domain(reference, c.ranks);
  std::vector<double> out;
  for (std::size_t i = 0; i < c.bytes.size(); ++i) {
    const Time formula = collective_formula(c.collective, c.bytes[i], group, reference).time;
    out.push_back(std::log(ratio(c.times[i], formula)));
  }
  return out;
}

double between(const CollectiveCurve& c, const std::vector<double>& at, int log2) {
  const Bytes size{std::int64_t{1} << log2};
  const auto above =
      static_cast<std::size_t>(std::lower_bound(c.bytes.begin(), c.bytes.end(), size) - c.bytes.begin());
  if (above == 0) return at.front();
  if (above == c.bytes.size()) {
    const double beyond = static_cast<double>(size.value) / static_cast<double>(c.bytes.back().value);
    return at.back() / std::sqrt(beyond);
  }
  if (c.bytes[above] == size) return at[above];
  const double low = std::log2(static_cast<double>(c.bytes[above - 1].value));
  const double high = std::log2(static_cast<double>(c.bytes[above].value));
  return std::lerp(at[above - 1], at[above], (log2 - low) / (high - low));
}

}  // namespace

MeasuredCollectives::MeasuredCollectives(const Cluster& cluster, const NodeType& type) {
  if (type.measured.measured.empty()) return;
  Cluster reference = cluster;
  static_cast<ScaleUp&>(reference) = type.measured;
  std::vector<Curve> curves;
  for (const CollectiveCurve& c : type.measured.measured) {
    const std::vector<double> at = logarithms(c, reference);
    Curve& curve = curves.emplace_back();
    for (int i = kFirst; i <= kLast; ++i)
      curve[static_cast<std::size_t>(i - kFirst)] = static_cast<float>(between(c, at, i));
  }
  by_ranks_.resize(static_cast<std::size_t>(cluster.scale_up_domain()) + 1);
  for (std::size_t ranks = 2; ranks < by_ranks_.size(); ++ranks) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      Curve sum{};
      float weights = 0;
      for (std::size_t i = 0; i < curves.size(); ++i) {
        const CollectiveCurve& c = type.measured.measured[i];
        const double apart = distance(corrected(kTabulated[kind]), corrected(c.collective)) +
                             std::abs(std::log2(static_cast<double>(ranks) / static_cast<double>(c.ranks)));
        // Its own curve outweighs the others.
        const auto weight = static_cast<float>(apart == 0 ? 1e9 : std::exp(-2 * apart));
        for (std::size_t s = 0; s < sum.size(); ++s) sum[s] += weight * curves[i][s];
        weights += weight;
      }
      for (std::size_t s = 0; s < sum.size(); ++s) by_ranks_[ranks][kind][s] = sum[s] / weights;
    }
  }
}

double MeasuredCollectives::correction(CollectiveKind kind, std::int64_t ranks, Bytes whole) const {
  if (static_cast<std::size_t>(ranks) >= by_ranks_.size() || whole.value <= 0) return 1;
  const Curve& curve = by_ranks_[static_cast<std::size_t>(ranks)][corrected(kind)];
  const double at = std::clamp(std::log2(static_cast<double>(whole.value)), double{kFirst}, double{kLast});
  const auto low = std::min(static_cast<std::size_t>(at) - kFirst, curve.size() - 2);
  return std::exp(std::lerp(static_cast<double>(curve[low]), static_cast<double>(curve[low + 1]),
                            at - static_cast<double>(low) - kFirst));
}

}  // namespace orrery::sim
