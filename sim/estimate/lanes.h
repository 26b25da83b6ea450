// SPDX-License-Identifier: Apache-2.0
//
// A rank's segments by themselves: the engine's streams and overlap, without other ranks. Internal to
// sim/estimate/.
#pragma once

#include <array>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "sim/engine/engine.h"

namespace orrery::sim {

// The streams that work inside a segment; transfers between stages are the pipeline's business.
enum LaneIndex : std::uint8_t {
  kComputeLane,
  kTpLane,
  kDpLane,
  kEpLane,
  kCpLane,
  kToHostLane,
  kFromHostLane,
  kFromDrivesLane,
  kLanes
};

// The last lanes are of copies between a device, its host's memory and drives, which no other op slows.
constexpr bool is_copies(std::size_t lane) {
  return lane >= kToHostLane;
}

// What an op waits for: that a lane has completed so many ops, counted from the start of its segment. Not
// above zero: of earlier segments.
using Waits = std::array<std::int32_t, kLanes>;
constexpr std::int32_t kNoWait = std::numeric_limits<std::int32_t>::min() / 2;

struct OpTime {
  double duration = 0;
  double latency = 0;         // of that, at first: nothing is on the links
  double share = 0;           // of what its links give it, that it takes then
  bool of_documents = false;  // program::is_of_documents
};
struct TimedOp {
  Waits waits{};
  OpTime time;
  double issued = 0;  // by the host, at the earliest
};
using TimedSegment = std::array<std::vector<TimedOp>, kLanes>;

// How many times as long each of two ops takes that share links, max-min fairly, where each alone takes such
// a share of them.
std::pair<double, double> sharing_of(double a, double b);

// Segments one after the other on their rank, overlap slow-down included, as the engine would run them: when
// the last compute op of each ends. At most kMostSegments.
inline constexpr std::size_t kMostSegments = 6;
struct LaneEnds {
  double begin = -1;  // of the first op that needs the segment's input: all but parameter gathers
  std::array<double, kMostSegments> ends{};
  double drained = 0;  // when all has ended
};
// Ops of this lane use the links of data-parallel ones.
struct Sharing {
  bool tp = false, ep = false, cp = false;
};
// When the first segment's input arrives: at once, or when all that does not need it, which is gathers and
// copies, has gone as far as it can.
enum class InputComes : std::uint8_t { kAtOnce, kLate };
LaneEnds run_segments(std::initializer_list<const TimedSegment*> segments, const Pace& pace,
                      const Sharing& sharing = {}, InputComes input = InputComes::kAtOnce);

}  // namespace orrery::sim
