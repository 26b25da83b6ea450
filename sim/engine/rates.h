// SPDX-License-Identifier: Apache-2.0
//
// Fair rates of what flows, kept as flows begin and end: only the connected component of links and activities
// that changed is solved again, and small components that were solved before are remembered. Internal to
// sim/engine/.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/network/fair_shares.h"

namespace orrery::sim {

class Rates {
 public:
  struct Rate {
    std::int32_t activity;
    std::int64_t rate;
    std::int32_t bottleneck;  // link; -1: its limit
  };

  explicit Rates(const FairShares& shares);
  // `limit`: what the activity takes at most; setting it again changes it.
  void start(std::int32_t activity, std::int64_t limit);
  void stop(std::int32_t activity);
  bool stale() const { return !changed_.empty() || !freed_.empty(); }
  // The rates of all whose rates may have changed since the last call. Valid until the next one.
  const std::vector<Rate>& update();

 private:
  struct Carried {
    std::int32_t activity;
    std::int32_t use;  // its position among the activity's uses
  };
  void collect(std::int32_t link);
  void collect_from(std::int32_t activity);
  void solve_component();
  std::size_t first_use(std::int32_t activity) const { return first_[static_cast<std::size_t>(activity)]; }

  FairShares shares_;
  std::vector<std::size_t> first_;             // by activity, into positions_
  std::vector<std::int32_t> positions_;        // of each use in the list of its link
  std::vector<std::vector<Carried>> carried_;  // by link: what flows
  std::vector<std::int64_t> limits_;           // by activity; zero: it does not flow
  std::vector<std::int32_t> changed_, freed_;  // activities and links, since the last update
  std::vector<std::uint32_t> seen_activity_, seen_link_;
  std::uint32_t update_ = 0;
  std::vector<std::int32_t> component_;
  std::vector<std::int64_t> component_limits_;
  std::vector<Rate> rates_;

  struct KeyHash {
    std::size_t operator()(const std::vector<std::int64_t>& key) const;
  };
  std::vector<std::int64_t> key_;  // activities of a component and their limits
  std::unordered_map<std::vector<std::int64_t>, std::vector<Rate>, KeyHash> known_;
};

}  // namespace orrery::sim
