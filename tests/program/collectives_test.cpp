// SPDX-License-Identifier: Apache-2.0
//
// Rounds moved symbolically: which members' contributions each copy of each block holds.
#include "program/collectives.h"

#include <gtest/gtest.h>

#include "program/phases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <string>

namespace orrery::program {
namespace {

using enum CollectiveKind;

constexpr Algorithm kAlgorithms[] = {Algorithm::kNaive, Algorithm::kRing, Algorithm::kTree,
                                     Algorithm::kHalvingDoubling, Algorithm::kHierarchical};
constexpr CollectiveKind kKinds[] = {kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce};

// How often each member's contribution is in a copy of a block.
using Holders = std::vector<int>;
using Copies = std::vector<std::vector<Holders>>;  // by member and block

std::int32_t node_of(std::int32_t n) {
  return n % 4 == 0 ? 4 : n % 3 == 0 ? 3 : 2;
}

bool has_part(CollectiveKind kind, std::int32_t member, std::int32_t block, std::int32_t n,
              std::int32_t blocks) {
  return kind != kAllGather || (block * n >= member * blocks && block * n < (member + 1) * blocks);
}

Copies play(const Rounds& r, CollectiveKind kind, std::int32_t n, std::int32_t root) {
  const auto members = static_cast<std::size_t>(n), blocks = static_cast<std::size_t>(r.blocks);
  Copies now(members, std::vector<Holders>(blocks, Holders(members)));
  for (std::int32_t m = 0; m < n; ++m) {
    for (std::int32_t b = 0; b < r.blocks; ++b) {
      if (has_part(kind, m, b, n, r.blocks) && (kind != kBroadcast || m == root))
        now[static_cast<std::size_t>(m)][static_cast<std::size_t>(b)][static_cast<std::size_t>(m)] = 1;
    }
  }
  for (const auto& round : r.rounds) {
    const Copies before = now;
    std::set<std::pair<std::int32_t, std::int32_t>> sent, received;
    for (const Transfer& t : round) {
      EXPECT_NE(t.from, t.to);
      for (std::int32_t b = t.first; b < t.first + t.blocks; ++b) {
        const auto block = static_cast<std::size_t>(b);
        sent.insert({t.from, b});
        const bool again = !received.insert({t.to, b}).second;
        EXPECT_TRUE(t.add || !again) << "a block is replaced twice in a round";
        Holders& to = now[static_cast<std::size_t>(t.to)][block];
        const Holders& from = before[static_cast<std::size_t>(t.from)][block];
        if (!t.add) to = from;
        for (std::size_t i = 0; t.add && i < members; ++i) to[i] += from[i];
      }
    }
    for (const auto& at : received) EXPECT_EQ(sent.count(at), 0U) << "sent and received in one round";
  }
  return now;
}

TEST(Collectives, EveryContributionArrivesOnce) {
  for (const Algorithm a : kAlgorithms) {
    for (const CollectiveKind kind : kKinds) {
      for (std::int32_t n = 1; n <= 19; ++n) {
        for (const std::int32_t root : {0, n - 1, n / 2}) {
          const Rounds r = rounds_of(a, kind, n, root, node_of(n));
          SCOPED_TRACE(std::string(name_of(kind)) + " " + std::to_string(static_cast<int>(a)) + " n " +
                       std::to_string(n) + " root " + std::to_string(root));
          const Copies end = play(r, kind, n, root);
          if (n == 1) {
            EXPECT_TRUE(r.rounds.empty());
            continue;
          }
          for (std::int32_t m = 0; m < n; ++m) {
            if (kind == kReduce && m != root) continue;
            for (std::int32_t b = 0; b < r.blocks; ++b) {
              if (kind == kReduceScatter && !has_part(kAllGather, m, b, n, r.blocks)) continue;
              Holders expected(static_cast<std::size_t>(n), kind == kBroadcast || kind == kAllGather ? 0 : 1);
              if (kind == kBroadcast) expected[static_cast<std::size_t>(root)] = 1;
              if (kind == kAllGather) expected[static_cast<std::size_t>(b * n / r.blocks)] = 1;
              ASSERT_EQ(end[static_cast<std::size_t>(m)][static_cast<std::size_t>(b)], expected)
                  << "member " << m << " block " << b;
            }
          }
        }
      }
    }
  }
}

// Shares of the tensor that a member sends; the most of any.
double sends(const Rounds& r, std::int32_t n) {
  std::vector<double> shares(static_cast<std::size_t>(n));
  for (const auto& round : r.rounds) {
    for (const Transfer& t : round)
      shares[static_cast<std::size_t>(t.from)] += static_cast<double>(t.blocks) / r.blocks;
  }
  return *std::max_element(shares.begin(), shares.end());
}

TEST(Collectives, RoundsAndVolumesAreTheTextbooks) {
  for (const std::int32_t n : {2, 4, 8, 16, 64}) {
    const Rounds ring = rounds_of(Algorithm::kRing, kAllReduce, n);
    EXPECT_EQ(ring.rounds.size(), 2U * (static_cast<std::size_t>(n) - 1));
    EXPECT_NEAR(sends(ring, n), 2.0 * (n - 1) / n, 1e-12);
    const Rounds halving = rounds_of(Algorithm::kHalvingDoubling, kAllReduce, n);
    EXPECT_EQ(halving.rounds.size(), 2U * (std::bit_width(static_cast<unsigned>(n)) - 1));
    EXPECT_NEAR(sends(halving, n), 2.0 * (n - 1) / n, 1e-12);
    EXPECT_NEAR(sends(rounds_of(Algorithm::kNaive, kAllReduce, n), n), n - 1, 1e-12);
    // Two trees: half a tensor up from every member, and down to two children from the inner ones of one
    // tree.
    const Rounds tree = rounds_of(Algorithm::kTree, kAllReduce, n);
    EXPECT_LE(sends(tree, n), 2.0);
    EXPECT_EQ(tree.rounds.size(), 2U * (std::bit_width(static_cast<unsigned>(n)) - 1) + 3);
    EXPECT_NEAR(sends(rounds_of(Algorithm::kRing, kReduceScatter, n), n), (n - 1.0) / n, 1e-12);
    EXPECT_NEAR(sends(rounds_of(Algorithm::kRing, kAllGather, n), n), (n - 1.0) / n, 1e-12);
  }
  const Rounds nodes = rounds_of(Algorithm::kHierarchical, kAllReduce, 32, 0, 8);
  EXPECT_EQ(nodes.rounds.size(), 2U * 7 + 2U * 3);
  // Between nodes only 1/8 of the tensor passes, 2 (4-1)/4 times.
  double between = 0;
  for (const auto& round : nodes.rounds) {
    for (const Transfer& t : round)
      between += t.from / 8 != t.to / 8 ? static_cast<double>(t.blocks) / nodes.blocks : 0;
  }
  EXPECT_NEAR(between / 32, 2.0 * 3 / 4 / 8, 1e-12);
}

TEST(Collectives, WhatAnAlgorithmCannotDoAnotherDoes) {
  EXPECT_EQ(rounds_of(Algorithm::kTree, kReduceScatter, 4).used, Algorithm::kRing);
  EXPECT_EQ(rounds_of(Algorithm::kHalvingDoubling, kAllGather, 6).used, Algorithm::kRing);
  EXPECT_EQ(rounds_of(Algorithm::kHalvingDoubling, kAllReduce, 6).used, Algorithm::kHalvingDoubling);
  EXPECT_EQ(rounds_of(Algorithm::kHierarchical, kAllReduce, 6, 0, 4).used, Algorithm::kRing);
  EXPECT_EQ(rounds_of(Algorithm::kHierarchical, kBroadcast, 8, 0, 4).used, Algorithm::kTree);
  EXPECT_EQ(rounds_of(Algorithm::kRing, kAllToAll, 8).used, Algorithm::kDirect);
}

// --- phases: what rounds put on a network -----------------------------------------------------------

TEST(Phases, AreTheRoundsOfTheAlgorithm) {
  using enum Algorithm;
  for (const Algorithm a : {kNaive, kRing, kTree, kHalvingDoubling, kHierarchical}) {
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
          CollectiveKind::kBroadcast, CollectiveKind::kReduce}) {
      for (const std::int32_t n : {1, 2, 3, 4, 6, 8, 12, 16, 17}) {
        const std::int32_t node = a != kTree && n % 4 == 0 ? 4 : 1;
        // Four chunks, as rounds_of() pipelines.
        const Phases ours = phases_of(a, kind, n, 4, n / 2, node);
        const Phases rounds = phases_of(rounds_of(a, kind, n, n / 2, node));
        ASSERT_EQ(ours.used, rounds.used);
        if (n == 1) continue;
        EXPECT_EQ(ours.parts, rounds.parts);
        ASSERT_EQ(ours.phases.size(), rounds.phases.size())
            << static_cast<int>(a) << " " << name_of(kind) << " " << n;
        for (std::size_t i = 0; i < ours.phases.size(); ++i) {
          EXPECT_EQ(ours.phases[i].sends, rounds.phases[i].sends);
          EXPECT_EQ(ours.phases[i].repeat, rounds.phases[i].repeat);
        }
      }
    }
  }
}

// Four nodes of four: each channel's sum reaches its roots and comes back to all, a quarter of the tensor
// each.
TEST(Phases, TreesOverNodesSpreadOverTheMembers) {
  constexpr std::int64_t kChunks = 16;
  const Phases p = phases_of(Algorithm::kTree, kAllReduce, 16, kChunks, 0, 4);
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> between;
  std::int64_t inside = 0, rounds = 0;
  for (const Phase& phase : p.phases) {
    rounds += phase.repeat;
    for (const Sends& s : phase.sends) {
      if (s.from / 4 == s.to / 4) {
        inside += s.parts * phase.repeat;
      } else {
        EXPECT_EQ(s.from % 4, s.to % 4) << "on the rail";
        between[{s.from % 4, s.from / 4}] += s.parts * phase.repeat;
      }
    }
  }
  EXPECT_EQ(p.parts, 2 * kChunks * 4);
  // Chains: 3 hops a channel, node and tree, up and down; trees: 3 edges, up and down.
  EXPECT_EQ(inside, 2 * 2 * 4 * 4 * 3 * kChunks);
  std::int64_t crossing = 0;
  for (const auto& [at, parts] : between) crossing += parts;
  EXPECT_EQ(crossing, 2 * 2 * 4 * 3 * kChunks);
  EXPECT_EQ(rounds, 2 * (3 + 2) + kChunks - 1);
}

TEST(Phases, DirectSendsEveryPartWhereItIsNeeded) {
  const Phases exchange = phases_of(Algorithm::kDirect, CollectiveKind::kAllToAll, 5, 1);
  ASSERT_EQ(exchange.phases.size(), 1u);
  EXPECT_EQ(exchange.phases[0].sends.size(), 20u);
  EXPECT_EQ(exchange.parts, 5);
  const Phases gather = phases_of(Algorithm::kDirect, CollectiveKind::kGather, 5, 1, 2);
  ASSERT_EQ(gather.phases.size(), 1u);
  for (const Sends& s : gather.phases[0].sends) EXPECT_EQ(s.to, 2);
  const Phases sum = phases_of(Algorithm::kDirect, CollectiveKind::kAllReduce, 5, 1);
  ASSERT_EQ(sum.phases.size(), 1u);
  EXPECT_EQ(sum.phases[0].repeat, 2);
}

TEST(Phases, AShiftIsOneRoundOfARing) {
  const Phases p = phases_of(Algorithm::kRing, CollectiveKind::kShift, 4, 1);
  ASSERT_EQ(p.phases.size(), 1u);
  EXPECT_EQ(p.phases[0].repeat, 1);
  EXPECT_EQ(p.phases[0].sends, (std::vector<Sends>{{0, 1, 1}, {1, 2, 1}, {2, 3, 1}, {3, 0, 1}}));
  EXPECT_EQ(p.parts, 1);
}

// Three nodes of two; member 4 is popular. Every member sends 1, 1, 1, 1, 5, 1 parts of ten.
TEST(Phases, AnExchangeInNodesBringsEveryPartToItsMember) {
  const std::vector<std::int64_t> weights{1, 1, 1, 1, 5, 1};
  const Phases p = exchange_of(weights, 2);
  EXPECT_EQ(p.used, Algorithm::kHierarchical);
  EXPECT_EQ(p.parts, 10);
  ASSERT_EQ(p.phases.size(), 2u);
  // Inside: what members of place 0 (0, 2 and 4: seven parts) and of place 1 (three) are to get.
  ASSERT_EQ(p.phases[0].sends.size(), 6u);
  for (const Sends& s : p.phases[0].sends) {
    EXPECT_EQ(s.from / 2, s.to / 2);
    EXPECT_EQ(s.parts, s.to % 2 == 0 ? 7 : 3);
  }
  // Between: of both members of a node at once, to the same place of each other node.
  ASSERT_EQ(p.phases[1].sends.size(), 12u);
  for (const Sends& s : p.phases[1].sends) {
    EXPECT_EQ(s.from % 2, s.to % 2);
    EXPECT_NE(s.from / 2, s.to / 2);
    EXPECT_EQ(s.parts, 2 * weights[static_cast<std::size_t>(s.to)]);
  }
  // As much crosses between nodes as directly.
  const Phases at_once = exchange_of(weights);
  ASSERT_EQ(at_once.phases.size(), 1u);
  std::int64_t crossing = 0, direct = 0;
  for (const Sends& s : p.phases[1].sends) crossing += s.parts;
  for (const Sends& s : at_once.phases[0].sends) direct += s.from / 2 != s.to / 2 ? s.parts : 0;
  EXPECT_EQ(crossing, direct);
  EXPECT_EQ(phases_of(Algorithm::kHierarchical, CollectiveKind::kAllToAll, 6, 1, 0, 2).phases.size(), 2u);
}

}  // namespace
}  // namespace orrery::program
