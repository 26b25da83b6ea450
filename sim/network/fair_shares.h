// SPDX-License-Identifier: Apache-2.0
//
// Max-min fair rates of activities that share links.
//
// An activity with rate x puts weight x on each link it uses: one flow has weight one, a class of k alike
// flows weight k, all channels of all rings of an axis as many as cross the link. Rates grow together; an
// activity stops growing when one of its links is full, or at its own limit (progressive filling; Bertsekas
// and Gallager, Data Networks, 6.5.2). Rates are whole numbers, rounded down from sums that are exact: a
// class of k flows has the rate that k single flows have, to the last bit.
//
//   FairShares shares({100, 50});                    // capacities of two links
//   const int a = shares.add({{0, 1}});              // uses link 0
//   const int b = shares.add({{0, 1}, {1, 1}});      // uses both
//   shares.solve({a, b}, {kNoLimit, kNoLimit});      // rates 50 and 50
//
// O(uses log uses) of the active ones.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace orrery::sim {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

class FairShares {
 public:
  struct Use {
    std::int32_t link;
    std::int64_t weight;
  };

  // Weights are in units of 1/whole: a flow has weight `whole`.
  explicit FairShares(std::vector<std::int64_t> capacities, std::int64_t whole = 1);
  // A link appears once. Returns the activity's number.
  std::int32_t add(std::span<const Use> uses);
  std::int32_t add(std::initializer_list<Use> uses) { return add(std::span(uses.begin(), uses.size())); }
  std::span<const Use> uses(std::int32_t activity) const;
  std::int64_t capacity(std::int32_t link) const { return capacity_[static_cast<std::size_t>(link)]; }
  std::size_t activities() const { return first_.size() - 1; }
  std::size_t links() const { return capacity_.size(); }

  // The rates of activities that run at once, each with its limit. The result is valid until the next call.
  // An activity without links has its limit.
  std::span<const std::int64_t> solve(std::span<const std::int32_t> active,
                                      std::span<const std::int64_t> limits);
  // Of the last solve: the link that stopped each activity; -1 where its limit did.
  std::span<const std::int32_t> bottlenecks() const { return bottlenecks_; }

 private:
  __extension__ using Wide = __int128;
  struct State {
    Wide left = 0;            // of the capacity
    std::int64_t weight = 0;  // of activities that still grow
    std::int32_t first = 0, count = 0;
    std::uint32_t solved = 0;  // the solve() that this belongs to
  };
  struct Candidate {
    std::int64_t rate;
    std::int32_t link;      // or -1:
    std::int32_t position;  // the activity that reaches its limit
    bool operator>(const Candidate& o) const {
      return std::tie(rate, link, position) > std::tie(o.rate, o.link, o.position);
    }
  };
  void freeze(std::size_t position, std::int64_t rate, std::int32_t link,
              std::span<const std::int32_t> active);

  std::vector<std::int64_t> capacity_;
  std::int64_t whole_;
  std::vector<std::size_t> first_{0};
  std::vector<Use> uses_;
  // Of one solve.
  std::vector<State> state_;
  std::vector<std::int32_t> touched_, on_link_;
  std::vector<std::int64_t> rates_;
  std::vector<std::int32_t> bottlenecks_;
  std::vector<bool> frozen_;
  std::vector<Candidate> heap_, happens_;
  std::uint32_t solve_ = 0;
};

}  // namespace orrery::sim
