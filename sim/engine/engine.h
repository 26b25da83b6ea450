// SPDX-License-Identifier: Apache-2.0
//
// The event engine: runs a program on a layout and yields its timeline.
//
// State is one lane per (place, stream). A lane runs its ops in order; an op starts when its waits are met,
// the host has issued it, and, where several places meet, all of them are there. A running op is remaining
// work with a rate: while compute and a collective run on the same device, each is slowed by the profile's
// overlap factors (Pace); while flows share links, each has its max-min fair rate. Events are ordered by time
// and then as they were caused, times are integers, and rates change between moments, never within one: equal
// input gives equal output everywhere, and a place that stands for many ranks has, to the picosecond, what
// each of them has alone. O(ops log lanes).
//
// Invariants: lanes never run backwards in time; the step is at least any lane's busy time.
#pragma once

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "core/timeline.h"
#include "program/program.h"
#include "sim/engine/layout.h"

namespace orrery::sim {

struct EngineOptions {
  bool record = true;                    // keep slices
  Cursor scenario;                       // that is named when the step is too long
  std::function<void(double)> progress;  // told the share of ops that are done, now and then
  // Unless empty, by micro-batch: factors on the time of attention within documents.
  std::vector<double> document_loads;
};

// The pieces of work of a stage's schedule. A piece includes what it waits for within its stage.
enum class StageWork : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kSideBySide,  // a forward and a backward that take turns
  kOptimizer,   // and what else follows the chunks, up to the last gather of parameters
};
constexpr auto enum_names(StageWork) {
  using enum StageWork;
  return std::array{std::pair{kForward, "forward"},
                    std::pair{kBackward, "backward"},
                    std::pair{kBackwardInput, "backward_input"},
                    std::pair{kBackwardWeight, "backward_weight"},
                    std::pair{kSideBySide, "side_by_side"},
                    std::pair{kOptimizer, "optimizer"}};
}
inline constexpr std::size_t kStageWorks = enum_names(StageWork{}).size();

// Where the compute stream of a place's ranks spent the step. The parts add up to the step exactly: compute,
// host and what is exposed; and work and idle.
struct PlaceReport {
  std::int32_t stage = 0;
  std::int64_t ranks = 1, first_rank = 0;
  Time forward, backward, recompute, optimizer;
  std::array<Time, program::kMostStreams> exposed{};  // compute waited for this stream
  // To all streams of such a role.
  Time exposed_to(const program::Communication& over, bool (*has)(program::StreamRole)) const {
    Time sum{0};
    for (std::size_t s = 0; s < over.streams.size(); ++s) {
      if (has(over.streams[s].role)) sum += exposed[s];
    }
    return sum;
  }
  Time host;  // compute waited to be issued, and for the software to hand work over
  std::array<Time, program::kMostStreams> busy{};
  std::array<Time, kStageWorks> work{};  // by StageWork
  Time idle;                             // waits for other stages, and the time after the stage's last work
  Time compute() const { return forward + backward + recompute + optimizer; }
};

// A link that flows of several lanes met on.
struct LinkReport {
  SharedLink link;
  // By the flows it held back, over what they take alone: of a stage's ranks on average, summed over stages
  // and streams.
  Time lost;
};

struct SimulationResult {
  Time step;
  std::int64_t ops = 0;  // op instances walked
  std::vector<PlaceReport> places;
  std::vector<LinkReport> links;  // that were shared, the one that cost most time first
  Timeline timeline;
};

// Throws Error naming the ops at the heads of their lanes if the program cannot finish, and InputError when
// the step takes longer than kLongestStep.
SimulationResult simulate(const program::Program& program, const Layout& layout,
                          const EngineOptions& options = {});

}  // namespace orrery::sim
