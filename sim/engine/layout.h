// SPDX-License-Identifier: Apache-2.0
//
// How a program lies on a cluster, as the engine sees it: which ranks act as one, whom they meet, what their
// ops cost there and which links they share. sim/place.h makes one from a topology.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "program/phases.h"
#include "program/program.h"
#include "sim/network/fair_shares.h"

namespace orrery::sim {

// Time of each op alone: [class][segment][op]. A receive's own time is unused: its send decides.
using Durations = std::vector<std::vector<std::vector<Time>>>;

// An op's flows begin when its latency has passed; alone, each of them has this rate (bytes per second).
struct OpCost {
  Time time;
  Time latency{0};
  std::int64_t rate = 0;  // zero: it shares no links
};

// How software issues work to a device, and how compute and collectives slow each other there.
struct Pace {
  double compute_slowdown = 1.0;        // of compute while a collective runs on the device
  double exchange_slowdown = 1.0;       // likewise while tokens go to or from experts, if that is more
  double communication_slowdown = 1.0;  // of a collective while compute runs
  Time host_op{0};                      // host time to issue one op (eager launch)
  Time host_segment{0};                 // host time to issue a segment (graph launch)
  double beside_exchanges() const { return std::max(compute_slowdown, exchange_slowdown); }
  friend bool operator==(const Pace&, const Pace&) = default;
};

// How ranks were put together.
enum class Fold : std::uint8_t {
  kStages,   // one place a stage; the slowest group of an axis stands for all
  kClasses,  // ranks that cannot be told apart
  kRanks     // none: every rank on its own
};

constexpr auto enum_names(Fold) {
  return std::array{std::pair{Fold::kStages, "stages"}, std::pair{Fold::kClasses, "classes"},
                    std::pair{Fold::kRanks, "ranks"}};
}

// Ranks that do the same at the same time.
struct Place {
  std::int32_t stage = 0;  // their class of the program
  std::int64_t ranks = 1, first_rank = 0;
  std::int32_t costs = 0;  // index in Layout::costs
  std::int32_t pace = 0;   // and in Layout::paces
};

// Where places communicate: an op runs once all of them have come to it.
struct Meeting {
  struct End {
    std::int32_t place;
    program::StreamIndex stream;
    friend bool operator==(const End&, const End&) = default;
  };
  std::vector<End> ends;       // of a transfer: the sender, the receiver
  std::int32_t activity = -1;  // of Layout::shares; -1: it shares no links
};

// The partners that the ops of a class have: for each of them a place has a meeting.
struct Partners {
  struct Slot {
    program::StreamIndex stream;
    program::StreamIndex other_end;  // of the stage that a transfer goes to, or comes from
    program::GroupIndex group;
    bool receives;
    std::int32_t peer;         // stage; -1 for collectives
    program::Pattern pattern;  // of a collective
    friend auto operator<=>(const Slot&, const Slot&) = default;
  };
  std::vector<Slot> slots;
  std::vector<std::vector<std::int32_t>> slot;  // [segment][op]; -1: it computes
};
Partners partners_of(const program::Program& program, std::size_t rank_class);
// The slot at the other end of a transfer's, of stage `from`.
Partners::Slot other_end(const Partners::Slot& slot, std::int32_t from);

// Links that carry the same.
struct SharedLink {
  std::string name;        // of one of them
  std::int64_t alike = 0;  // how many there are
  Bandwidth capacity;
};

struct Layout {
  Fold fold = Fold::kStages;
  std::vector<Place> places;                            // by stage, then by first rank
  std::vector<std::int32_t> place_of;                   // by rank; empty where nobody asked for ranks
  std::vector<std::vector<std::vector<OpCost>>> costs;  // [Place::costs][segment][op]
  std::vector<Pace> paces{Pace{}};                      // [Place::pace]
  std::vector<Partners> partners;                       // by stage
  std::vector<Meeting> meetings;
  std::vector<std::vector<std::int32_t>> meeting;  // [place][slot]
  FairShares shares{{}};
  std::vector<std::int32_t> shared_link;  // by link of `shares`
  std::vector<SharedLink> links;
};

// A place for each stage; nothing shares links.
Layout by_stage(const program::Program& program, const Durations& durations, const Pace& pace = {});

}  // namespace orrery::sim
