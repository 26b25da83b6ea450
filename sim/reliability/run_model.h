// SPDX-License-Identifier: Apache-2.0
//
// A run of many steps as the simulation sees it: how much work there is, what stops it and how long it takes
// to go on. assumptions.h makes one of a scenario.
//
// Work is measured in the time that it takes at full size without stragglers. All rates are of exponential
// times between events, and all mean times of exponential times.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/reliability/clock.h"

namespace orrery::sim {

// What stops a job or slows it. Each has its own random numbers.
enum class Process {
  kHardware,  // a node fails and leaves
  kSoftware,  // the job fails on sound nodes
  kSilent,    // results are spoiled; noticed later
  kSlow,      // a node becomes slow
  kPreempt,   // a node is taken away
};
inline constexpr std::size_t kProcesses = 5;

struct EventRate {
  double per_node_s = 0, per_job_s = 0;
  double of(std::int64_t nodes) const { return per_node_s * static_cast<double>(nodes) + per_job_s; }
  friend bool operator==(const EventRate&, const EventRate&) = default;
};

// A failure of software at a given place of the work, beside those that the rates bring.
struct InjectedStop {
  Ticks position{0};
  Ticks detection{0};
  bool loses_memory = false;  // with it go checkpoints in memory
  friend bool operator==(const InjectedStop&, const InjectedStop&) = default;
};

struct RunModel {
  std::int64_t nodes = 1;  // of the job at full size
  Ticks work{0};
  std::array<EventRate, kProcesses> rates{};  // by Process; while the job runs or restarts

  // A checkpoint in storage follows every `interval` of work and the end. It stops the job for `stall`, and
  // can be read `settle` after that, which is no longer than `interval`.
  Ticks interval{0}, stall{0}, settle{0};
  // Of checkpoints in memory: `interval` is a multiple of `memory_interval`. Zero: there are none.
  Ticks memory_interval{0}, memory_stall{0};
  std::int64_t replicas = 1;  // nodes that hold each part in memory, its own among them
  std::int64_t kept = 1;      // newest checkpoints in storage, beside older ones (run.h)

  Ticks detection{0};  // of failures of hardware and software, before the restart
  // Restarts: on the same nodes, with a spare that is there at once, and with a node that was waited for.
  Ticks restart_software{0}, restart_spare{0}, restart_waited{0};
  Ticks restart_planned{0};                // after a planned stop, or a change of size
  Ticks load_storage{0}, load_memory{0};   // then the checkpoint is loaded
  bool hardware_keeps_node = false;        // a failed node is restarted in place
  std::optional<std::int64_t> spares;      // none: always a free node, but for preempted ones
  Ticks repair{0};                         // mean
  Ticks silent_detection{0};               // mean
  double slow_low = 1, slow_high = 1;      // how many times longer a slow node makes the step
  std::optional<Ticks> slow_lasts;         // mean; none: until the end
  bool evicts_slow = false;                // a slow node is replaced when it is found
  std::optional<Ticks> maintenance_every;  // none: never
  Ticks maintenance_lasts{0};
  Ticks notice{0}, refill{0};  // of preemption; refill: mean

  // The job may lose replicas of `replica_nodes` each, or all of a node's replicas, which are one here.
  // shrunk[k] is how many times longer the step is without k of them; shrunk[0] is 1, and no more than the
  // last may be lost.
  std::int64_t replica_nodes = 1;
  std::vector<double> shrunk{1.0};

  // They strike one after the other, each when the work comes to its place. One whose place lies behind the
  // checkpoint that the run goes back to strikes no more, and neither do those after it.
  std::vector<InjectedStop> injected;
  std::vector<Ticks> unsaved;  // work after which a checkpoint to storage fails; ascending

  const EventRate& rate(Process p) const { return rates[static_cast<std::size_t>(p)]; }
  EventRate& rate(Process p) { return rates[static_cast<std::size_t>(p)]; }
  bool in_memory() const { return memory_interval.value > 0; }
  // Of a checkpoint that is written because the job is about to stop.
  Ticks drain() const { return stall + settle; }
  friend bool operator==(const RunModel&, const RunModel&) = default;
};

}  // namespace orrery::sim
