// SPDX-License-Identifier: Apache-2.0
#include "sim/network/fair_shares.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace orrery::sim {

FairShares::FairShares(std::vector<std::int64_t> capacities, std::int64_t whole)
    : capacity_(std::move(capacities)), whole_(whole), state_(capacity_.size()) {}

std::int32_t FairShares::add(std::span<const Use> uses) {
  uses_.insert(uses_.end(), uses.begin(), uses.end());
  first_.push_back(uses_.size());
  return static_cast<std::int32_t>(first_.size() - 2);
}

std::span<const FairShares::Use> FairShares::uses(std::int32_t activity) const {
  const auto a = static_cast<std::size_t>(activity);
  return std::span(uses_).subspan(first_[a], first_[a + 1] - first_[a]);
}

void FairShares::freeze(std::size_t position, std::int64_t rate, std::int32_t link,
                        std::span<const std::int32_t> active) {
  if (frozen_[position]) return;
  rates_[position] = rate;
  bottlenecks_[position] = link;
  frozen_[position] = true;
  for (const Use& u : uses(active[position])) {
    State& s = state_[static_cast<std::size_t>(u.link)];
    s.left -= static_cast<Wide>(rate) * u.weight;
    s.weight -= u.weight;
  }
}

std::span<const std::int64_t> FairShares::solve(std::span<const std::int32_t> active,
                                                std::span<const std::int64_t> limits) {
  ++solve_;
  touched_.clear();
  rates_.assign(active.size(), 0);
  bottlenecks_.assign(active.size(), -1);
  frozen_.assign(active.size(), false);
  for (const std::int32_t a : active) {
    for (const Use& u : uses(a)) {
      State& s = state_[static_cast<std::size_t>(u.link)];
      if (s.solved != solve_) {
        s = {static_cast<Wide>(capacity_[static_cast<std::size_t>(u.link)]) * whole_, 0, 0, 0, solve_};
        touched_.push_back(u.link);
      }
      s.weight += u.weight;
      ++s.count;
    }
  }
  std::int32_t offset = 0;
  for (const std::int32_t l : touched_) {
    State& s = state_[static_cast<std::size_t>(l)];
    s.first = offset;
    offset += s.count;
    s.count = 0;
  }
  on_link_.resize(static_cast<std::size_t>(offset));
  for (std::size_t i = 0; i < active.size(); ++i) {
    for (const Use& u : uses(active[i])) {
      State& s = state_[static_cast<std::size_t>(u.link)];
      on_link_[static_cast<std::size_t>(s.first + s.count++)] = static_cast<std::int32_t>(i);
    }
  }

  // Links fill, and limits are reached, in the order of the rate at which that happens. A link's rate only
  // grows as others stop before it, so an outdated candidate is put back with what it has become.
  const auto share = [&](std::int32_t link) {
    const State& s = state_[static_cast<std::size_t>(link)];
    return static_cast<std::int64_t>(std::min<Wide>(s.left / s.weight, kNoLimit));
  };
  heap_.clear();
  for (const std::int32_t l : touched_) heap_.push_back({share(l), l, -1});
  for (std::size_t i = 0; i < active.size(); ++i) {
    if (limits[i] != kNoLimit || uses(active[i]).empty())
      heap_.push_back({limits[i], -1, static_cast<std::int32_t>(i)});
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>{});
  const auto pop = [&] {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>{});
    const Candidate c = heap_.back();
    heap_.pop_back();
    return c;
  };
  while (!heap_.empty()) {
    // All that happens at this rate, before any activity stops: links that are alike stay alike.
    const std::int64_t rate = heap_.front().rate;
    happens_.clear();
    while (!heap_.empty() && heap_.front().rate == rate) {
      Candidate c = pop();
      if (c.link >= 0) {
        if (state_[static_cast<std::size_t>(c.link)].weight == 0) continue;
        c.rate = share(c.link);
      }
      happens_.push_back(c);
    }
    for (const Candidate& c : happens_) {
      if (c.rate > rate) {
        heap_.push_back(c);
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
      } else if (c.link < 0) {
        freeze(static_cast<std::size_t>(c.position), rate, -1, active);
      } else {
        const State& s = state_[static_cast<std::size_t>(c.link)];
        for (std::int32_t k = s.first; k < s.first + s.count; ++k)
          freeze(static_cast<std::size_t>(on_link_[static_cast<std::size_t>(k)]), rate, c.link, active);
      }
    }
  }
  return rates_;
}

}  // namespace orrery::sim
