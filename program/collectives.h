// SPDX-License-Identifier: Apache-2.0
//
// Collective algorithms as rounds over abstract members 0 .. n-1. A tensor is cut into equal blocks, of which
// each member has a copy; in a round, ranges of blocks pass from one member's copy to another's and are added
// there or replace what was there. All transfers of a round see what was there before it, and no member
// receives into a block that it sends: members need to meet between rounds only.
//
//   algorithm         all-reduce of K bytes by n members
//   naive             everything to the first member and back: 2 rounds, (n-1) K through one member
//   ring              2 (n-1) rounds; each member sends 2 (n-1) K / n (Patarasuk and Yuan, 2009)
//   tree              two complementary binary trees, each for half of the tensor, pipelined in four chunks:
//                     2 depth + 3 rounds (Sanders, Speck and Traeff, 2009)
//   halving-doubling  2 log2 n rounds; 2 (n-1) K / n (Thakur, Rabenseifner and Gropp, 2005); members beyond a
//                     power of two join a partner first
//   hierarchical      rings inside nodes of g members, then rings between nodes, on K / g: 2 (g-1) + 2
//   (n/g-1)
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/links.h"
#include "program/program.h"

namespace orrery::program {

using orrery::CollectiveKind;

// Direct: every member does its share on all members' memory at once, sums in member order.
enum class Algorithm : std::uint8_t { kDirect, kNaive, kRing, kTree, kHalvingDoubling, kHierarchical };
constexpr auto enum_names(Algorithm) {
  return std::array{std::pair{Algorithm::kDirect, "direct"},
                    std::pair{Algorithm::kNaive, "naive"},
                    std::pair{Algorithm::kRing, "ring"},
                    std::pair{Algorithm::kTree, "tree"},
                    std::pair{Algorithm::kHalvingDoubling, "halving-doubling"},
                    std::pair{Algorithm::kHierarchical, "hierarchical"}};
}

struct Transfer {
  std::int32_t from, to;
  std::int32_t first, blocks;  // of the tensor's
  bool add;
};

struct Rounds {
  Algorithm used = Algorithm::kDirect;
  // Block b holds elements [b E / blocks, (b+1) E / blocks). Member m's part of n is blocks
  // [m blocks / n, (m+1) blocks / n).
  std::int32_t blocks = 1;
  std::vector<std::vector<Transfer>> rounds;
};

// Of a node of a heap-ordered binary tree; the root's is 0.
std::int32_t heap_depth(std::int32_t node);

// The rounds of a collective; none for a single member. `root` counts for broadcast and reduce; `node` is how
// many consecutive members share a node. What an algorithm cannot do is done by another, as `used` says:
//   reduce-scatter, all-gather   tree, and halving-doubling of no power of two: ring
//   broadcast, reduce            halving-doubling and hierarchical: tree
//   hierarchical                 of members that do not fill whole nodes: ring
//   gather, scatter, all-to-all, shift    direct: every part goes where it belongs at once; no rounds
Algorithm used_algorithm(Algorithm algorithm, CollectiveKind kind, std::int32_t members,
                         std::int32_t node = 1);
Rounds rounds_of(Algorithm algorithm, CollectiveKind kind, std::int32_t members, std::int32_t root = 0,
                 std::int32_t node = 1);

}  // namespace orrery::program
