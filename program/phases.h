// SPDX-License-Identifier: Apache-2.0
//
// What the rounds of a collective put on a network: who sends how much to whom. Rounds that are alike are one
// phase, so a ring of any size is one.
#pragma once

#include <span>

#include "program/collectives.h"

namespace orrery::program {

// Who sends to whom in a collective, all of its rounds together: what an algorithm's choice leaves the same.
enum class Pattern : std::uint8_t {
  kRing,        // parts around: all-reduce, all-gather, reduce-scatter, broadcast, reduce
  kNext,        // the whole to the next: shift
  kEachToEach,  // all-to-all
  kToRoot,      // gather
  kFromRoot     // scatter
};
Pattern pattern_of(CollectiveKind kind);

struct Sends {
  std::int32_t from, to;
  std::int64_t parts;  // of the tensor's
  bool operator==(const Sends&) const = default;
};
struct Phase {
  std::vector<Sends> sends;  // at once, by (from, to)
  std::int64_t repeat = 1;
};
struct Phases {
  Algorithm used = Algorithm::kDirect;
  std::int64_t parts = 1;  // that the tensor is cut into
  std::vector<Phase> phases;
};

// As rounds_of(), with trees and chains pipelined over `chunks`; the trees of an all-reduce over nodes of
// several members are NCCL's: a channel for each member of a node, chains inside and trees between. Direct,
// here: every part goes from where it is to where it is needed at once; an all-reduce is a reduce-scatter and
// an all-gather.
Phases phases_of(Algorithm algorithm, CollectiveKind kind, std::int32_t members, std::int32_t chunks,
                 std::int32_t root = 0, std::int32_t node = 1);

// An all-to-all in which every member sends weights[d] parts to member d. With `node` > 1 it is hierarchical:
// inside nodes first, to the member that has the destination's place, then between nodes on equal places, so
// that a member has nodes - 1 messages for other nodes instead of n - node. Precondition: node divides the
// members.
Phases exchange_of(std::span<const std::int64_t> weights, std::int32_t node = 1);

// Of a pattern that is no ring: every part goes where it belongs at once. The root is the first member.
std::vector<Sends> direct_sends(Pattern pattern, std::int32_t members);

// The same from explicit rounds.
Phases phases_of(const Rounds& rounds);

}  // namespace orrery::program
