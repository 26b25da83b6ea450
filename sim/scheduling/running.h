// SPDX-License-Identifier: Apache-2.0
//
// The jobs that hold nodes: how far each is, when it ends, and who is on which node. Internal to
// sim/scheduling; schedule.h says what happens.
#pragma once

#include <boost/container/small_vector.hpp>

#include "sim/scheduling/schedule.h"

namespace orrery::sim {

struct Running {
  std::int32_t job = 0;
  std::vector<std::int32_t> nodes;
  std::int64_t held = 0;  // devices on each of them
  std::vector<LeafPart> parts;
  ShapeCost cost;
  bool contends = false;  // it uses uplinks
  Progress progress;
  Ticks start{0};
  Ticks done{0}, as_of{0};  // of progress.total(), until then
  double pace = 1;
  Ticks expected{0};  // when it ends, by what it asked for or what is known
  Ticks end{0};
  std::uint32_t version = 0;  // of `end`
  bool active = false;
};

// Slots of running jobs; a slot is used again.
class RunningJobs {
 public:
  explicit RunningJobs(std::int64_t nodes) : on_node_(static_cast<std::size_t>(nodes)) {}

  std::int32_t add(Running r);
  void remove(std::int32_t slot);
  Running& operator[](std::int32_t slot) { return slots_[static_cast<std::size_t>(slot)]; }
  const Running& operator[](std::int32_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  // Those that hold nodes, in no order.
  const std::vector<std::int32_t>& active() const { return active_; }
  std::span<const std::int32_t> on(std::int32_t node) const {
    const auto& slots = on_node_[static_cast<std::size_t>(node)];
    return {slots.data(), slots.size()};
  }

 private:
  std::vector<Running> slots_;
  std::vector<std::int32_t> unused_, active_;
  std::vector<std::size_t> place_;  // by slot, in active_
  std::vector<boost::container::small_vector<std::int32_t, 2>> on_node_;
};

// Where and when the head starts at the latest.
struct Reservation {
  Ticks at{0};
  std::vector<std::int32_t> nodes;
};
Reservation reserve(std::int64_t devices, const FreeNodes& free, const RunningJobs& running,
                    const ClusterNodes& cluster, Ticks now);

// Jobs of a lower priority whose nodes a job needs; none where all of them are not enough.
std::vector<std::int32_t> victims(std::int64_t devices, std::int64_t priority, const FreeNodes& free,
                                  const RunningJobs& running, const std::vector<ClusterJob>& jobs);

}  // namespace orrery::sim
