// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/rates.h"

#include <algorithm>

namespace orrery::sim {
namespace {

// Components that are remembered: of at most so many activities, so many of them.
constexpr std::size_t kMostRemembered = 64, kMostKnown = 1 << 16;

}  // namespace

std::size_t Rates::KeyHash::operator()(const std::vector<std::int64_t>& key) const {
  std::uint64_t h = 0;
  for (const std::int64_t k : key) h = (h ^ static_cast<std::uint64_t>(k)) * 0x9e3779b97f4a7c15ULL;
  return h ^ (h >> 32);
}

Rates::Rates(const FairShares& shares) : shares_(shares) {
  std::size_t uses = 0;
  for (std::size_t a = 0; a < shares_.activities(); ++a) {
    first_.push_back(uses);
    uses += shares_.uses(static_cast<std::int32_t>(a)).size();
  }
  positions_.resize(uses);
  limits_.resize(shares_.activities());
  seen_activity_.resize(shares_.activities());
  carried_.resize(shares_.links());
  seen_link_.resize(shares_.links());
}

void Rates::start(std::int32_t activity, std::int64_t limit) {
  std::int64_t& mine = limits_[static_cast<std::size_t>(activity)];
  changed_.push_back(activity);
  const bool flows = mine > 0;
  mine = limit;
  if (flows) return;
  const auto uses = shares_.uses(activity);
  for (std::size_t u = 0; u < uses.size(); ++u) {
    auto& here = carried_[static_cast<std::size_t>(uses[u].link)];
    positions_[first_use(activity) + u] = static_cast<std::int32_t>(here.size());
    here.push_back({activity, static_cast<std::int32_t>(u)});
  }
}

void Rates::stop(std::int32_t activity) {
  limits_[static_cast<std::size_t>(activity)] = 0;
  const auto uses = shares_.uses(activity);
  for (std::size_t u = 0; u < uses.size(); ++u) {
    auto& here = carried_[static_cast<std::size_t>(uses[u].link)];
    const std::int32_t at = positions_[first_use(activity) + u];
    const Carried last = here.back();
    here[static_cast<std::size_t>(at)] = last;
    positions_[first_use(last.activity) + static_cast<std::size_t>(last.use)] = at;
    here.pop_back();
    if (!here.empty()) freed_.push_back(uses[u].link);
  }
}

void Rates::collect(std::int32_t link) {
  if (std::exchange(seen_link_[static_cast<std::size_t>(link)], update_) == update_) return;
  for (const Carried& c : carried_[static_cast<std::size_t>(link)]) {
    if (std::exchange(seen_activity_[static_cast<std::size_t>(c.activity)], update_) != update_)
      component_.push_back(c.activity);
  }
}

// component_ grows while it is walked.
void Rates::collect_from(std::int32_t activity) {
  component_.clear();
  if (limits_[static_cast<std::size_t>(activity)] == 0 ||
      std::exchange(seen_activity_[static_cast<std::size_t>(activity)], update_) == update_)
    return;
  component_.push_back(activity);
  for (std::size_t i = 0; i < component_.size(); ++i) {
    for (const FairShares::Use& u : shares_.uses(component_[i])) collect(u.link);
  }
  solve_component();
}

void Rates::solve_component() {
  const bool small = component_.size() <= kMostRemembered;
  if (small) {
    std::sort(component_.begin(), component_.end());
    key_.clear();
    for (const std::int32_t a : component_) {
      key_.push_back(a);
      key_.push_back(limits_[static_cast<std::size_t>(a)]);
    }
    if (const auto found = known_.find(key_); found != known_.end()) {
      rates_.insert(rates_.end(), found->second.begin(), found->second.end());
      return;
    }
  }
  component_limits_.clear();
  for (const std::int32_t a : component_) component_limits_.push_back(limits_[static_cast<std::size_t>(a)]);
  const auto rates = shares_.solve(component_, component_limits_);
  for (std::size_t i = 0; i < component_.size(); ++i)
    rates_.push_back({component_[i], rates[i], shares_.bottlenecks()[i]});
  if (!small) return;
  if (known_.size() >= kMostKnown) known_.clear();
  known_.emplace(
      key_, std::vector<Rate>(rates_.end() - static_cast<std::ptrdiff_t>(component_.size()), rates_.end()));
}

const std::vector<Rates::Rate>& Rates::update() {
  ++update_;
  rates_.clear();
  for (const std::int32_t a : changed_) collect_from(a);
  for (const std::int32_t l : freed_) {
    const auto& here = carried_[static_cast<std::size_t>(l)];
    if (!here.empty()) collect_from(here.front().activity);  // all of them are connected
  }
  changed_.clear();
  freed_.clear();
  return rates_;
}

}  // namespace orrery::sim
