// SPDX-License-Identifier: Apache-2.0
//
// The links inside a scale-up domain: constants, and collectives measured over them. A link profile
// (profiles/links/) is both for one kind of device and switch; a cluster file names it and may set constants
// of its own. How the two are used together: sim/collective/measured.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,      // input: this member's part; output: the whole
  kReduceScatter,  // input: the whole; output: this member's part of the sum
  kBroadcast,      // from the root's input to every output
  kReduce,         // the sum, to the root's output
  kGather,         // parts, to the whole in the root's output
  kScatter,        // parts of the root's input
  kAllToAll,       // part j of member i's input becomes part i of member j's output
  kShift,          // member i's input becomes member i + 1's output (XLA's collective-permute around a ring)
};
constexpr auto enum_names(CollectiveKind) {
  using enum CollectiveKind;
  return std::array{std::pair{kAllReduce, "all-reduce"},
                    std::pair{kAllGather, "all-gather"},
                    std::pair{kReduceScatter, "reduce-scatter"},
                    std::pair{kBroadcast, "broadcast"},
                    std::pair{kReduce, "reduce"},
                    std::pair{kGather, "gather"},
                    std::pair{kScatter, "scatter"},
                    std::pair{kAllToAll, "all-to-all"},
                    std::pair{kShift, "shift"}};
}

// Of one device into the domain's switches, one direction.
struct ScaleUp {
  Bandwidth intra_bandwidth;
  double intra_efficiency = 0.78;  // achieved over wire, large messages
  Time intra_latency{3'400'000};   // per hop
  double in_network_gain = 0;      // bus bandwidth of an all-reduce in the switch (NVLS) over that of a ring
  double exchange_copy = 0;        // the same in an all-to-all
  double ring_copy = 0;            // what copying a member's own part costs in a ring, in rounds
  Time collective_latency{8'400'000};  // fixed cost of a collective
};

template <class V>
void describe(V& v, ScaleUp& s) {
  v(Field{.name = "intra_bandwidth",
          .help = "one device into the node's fabric, one direction; the link profile's where one is named",
          .min = limits::kSlowest,
          .max = limits::kFastest},
    s.intra_bandwidth);
  v(Field{.name = "intra_efficiency",
          .help = "achieved over wire bandwidth inside the node",
          .min = 0.01,
          .max = 1},
    s.intra_efficiency);
  v(Field{.name = "intra_latency",
          .help = "latency of a hop inside the node",
          .min = 0,
          .max = limits::kLongestLatency},
    s.intra_latency);
  v(Field{.name = "in_network_gain",
          .help = "bus bandwidth where the switch reduces (NVLS) over a ring's; 0: it does not",
          .min = 0,
          .max = 2},
    s.in_network_gain);
  v(Field{.name = "ring_copy",
          .help = "cost of a member's copy of its own part, in rounds of a ring",
          .min = 0,
          .max = 2},
    s.ring_copy);
  v(Field{.name = "exchange_copy",
          .help = "cost of a member's copy of its own part in an all-to-all, in parts",
          .min = 0,
          .max = 2},
    s.exchange_copy);
  v(Field{.name = "collective_latency",
          .help = "fixed cost of one collective",
          .min = 0,
          .max = limits::kLongestLatency},
    s.collective_latency);
}

// Times of a collective by its size, as nccl-tests prints them: bytes of the whole tensor.
struct CollectiveCurve {
  std::string system;  // what it was measured on
  CollectiveKind collective = CollectiveKind::kAllReduce;
  std::int64_t ranks = 2;
  std::vector<Bytes> bytes;  // ascending
  std::vector<Time> times;
};

template <class V>
void describe(V& v, CollectiveCurve& c) {
  v(Field{.name = "system", .help = "what it was measured on"}, c.system);
  v(Field{.name = "collective", .help = "which", .required = true}, c.collective);
  v(Field{.name = "ranks", .help = "devices that took part", .min = 2, .max = 1024, .required = true},
    c.ranks);
  v(Field{.name = "bytes",
          .help = "sizes of the whole tensor, ascending",
          .min = 1,
          .max = limits::kLargestMessage,
          .required = true,
          .most = limits::kMostMeasured},
    c.bytes);
  v(Field{.name = "times",
          .help = "one for each size",
          .min = 1,
          .max = limits::kLongestOp,
          .required = true,
          .most = limits::kMostMeasured},
    c.times);
}

struct LinkProfile : ScaleUp {
  std::string name;
  std::vector<CollectiveCurve> measured;
  std::map<std::string, std::string> origin;
};

template <class V>
void describe(V& v, LinkProfile& p) {
  v(Field{.name = "name", .help = "name of the profile", .required = true}, p.name);
  describe(v, static_cast<ScaleUp&>(p));
  v(Field{.name = "measured", .help = "collectives measured with these links", .most = limits::kMostCurves},
    p.measured);
  v(Field{.name = "origin", .help = "where each value comes from"}, p.origin);
}

ORRERY_FIELDS(extern, LinkProfile);

}  // namespace orrery
