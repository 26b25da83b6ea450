// SPDX-License-Identifier: Apache-2.0
//
// Events in the order of time and, at one time, of being pushed: a heap of moments, each with its events.
// Alike ranks do the same at the same moment, so there are far fewer moments than events. Internal to
// sim/engine/.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "core/hash.h"

namespace orrery::sim {

template <class Event>
class Events {
 public:
  Events() { recent_.fill(kNone); }

  // `time` is not before the last event that was popped.
  void push(std::int64_t time, const Event& event) {
    std::uint32_t& recent = recent_[mix(static_cast<std::uint64_t>(time)) % recent_.size()];
    // Another moment may stand here, or none: the same time may then have two, in the order of their
    // beginning.
    if (recent == kNone || moments_[recent].time != time) {
      if (free_.empty()) {
        free_.push_back(static_cast<std::uint32_t>(moments_.size()));
        moments_.emplace_back();
      }
      recent = free_.back();
      free_.pop_back();
      moments_[recent].time = time;
      order_.push({time, begun_++, recent});
    }
    moments_[recent].events.push_back(event);
  }

  bool empty() const { return order_.empty(); }
  std::int64_t next() const { return order_.top().time; }

  Event pop() {
    const std::uint32_t at = order_.top().moment;
    Moment& moment = moments_[at];
    const Event event = moment.events[moment.popped++];
    if (moment.popped == moment.events.size()) {
      order_.pop();
      std::uint32_t& recent = recent_[mix(static_cast<std::uint64_t>(moment.time)) % recent_.size()];
      if (recent == at) recent = kNone;
      moment.events.clear();
      moment.popped = 0;
      free_.push_back(at);
    }
    return event;
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Moment {
    std::int64_t time = 0;
    std::vector<Event> events;
    std::size_t popped = 0;
  };
  struct Order {
    std::int64_t time;
    std::uint64_t begun;
    std::uint32_t moment;
    bool operator>(const Order& o) const { return std::tie(time, begun) > std::tie(o.time, o.begun); }
  };
  std::vector<Moment> moments_;
  std::vector<std::uint32_t> free_;
  std::array<std::uint32_t, 1024> recent_;  // moments by hash of their time
  std::priority_queue<Order, std::vector<Order>, std::greater<>> order_;
  std::uint64_t begun_ = 0;
};

}  // namespace orrery::sim
