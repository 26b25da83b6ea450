// SPDX-License-Identifier: Apache-2.0
#include "core/mesh.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace orrery {
namespace {

using Ranks = std::vector<std::int64_t>;

Mesh three_axes() {
  Mesh m;
  m.add({.name = "tp", .size = 4});
  m.add({.name = "shard", .whole = "dp", .size = 2});
  m.add({.name = "replica", .whole = "dp", .size = 3});
  return m;
}

// rank = tp + 4 shard + 8 replica.
TEST(Mesh, CoordinatesAndMembersFollowFromStrides) {
  const Mesh m = three_axes();
  EXPECT_EQ(m.ranks(), 24);
  EXPECT_EQ(m.size("dp"), 6);
  EXPECT_EQ(m.rank({{"tp", 3}, {"shard", 1}, {"replica", 2}}), 3 + 4 * 1 + 8 * 2);
  EXPECT_EQ(m.coordinate(23, "tp"), 3);
  EXPECT_EQ(m.coordinate(23, "dp"), 1 + 2 * 2);
  EXPECT_EQ(m.members(m["shard"], 1), (Ranks{1, 5}));
  EXPECT_EQ(m.members(m["dp"], 6), (Ranks{2, 6, 10, 14, 18, 22}));
  EXPECT_EQ(coordinates_text(m, 23), "tp 3, dp 5");
}

// rank = shard + 2 replica + 6 tp.
TEST(Mesh, AnOrderNumbersRanksAnew) {
  Mesh m = three_axes();
  const AxisSet shard = m["shard"], tp = m["tp"];
  m.number("dp-tp");
  EXPECT_EQ(m.members(shard, 1), (Ranks{0, 1}));
  EXPECT_EQ(m.members(tp, 1), (Ranks{1, 7, 13, 19}));
  EXPECT_EQ(m.range("dp").stride, 1);
  EXPECT_EQ(coordinates_text(m, 23), "dp 5, tp 3");
  EXPECT_THROW(m.number("tp"), std::logic_error);
  EXPECT_THROW(m.number("tp-tp-dp"), std::logic_error);
  EXPECT_THROW(m.number("tp-ep"), std::logic_error);
}

TEST(Mesh, OnlyNeighbouringAxesAreARange) {
  Mesh m = three_axes();
  EXPECT_EQ(m.range("dp").size, 6);
  EXPECT_EQ(m.range("dp").stride, 4);
  AxisSet ends = m["tp"];
  ends |= m["replica"];
  EXPECT_THROW(static_cast<void>(m.range(ends)), std::logic_error);
  EXPECT_THROW(static_cast<void>(m["ep"]), std::logic_error);
}

// In any order: groups along an axis cover all ranks once, members differ in that axis alone, and all
// coordinates together give the rank back.
TEST(Mesh, GroupsOfRandomPlansPartTheRanks) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto pick = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(1, most)(random);
  };
  for (int i = 0; i < 50; ++i) {
    Plan p{.tp = pick(4), .pp = pick(4)};
    p.ulysses = pick(2);
    p.cp = p.ulysses * pick(3);
    const std::int64_t shards = pick(3);
    p.dp = shards * pick(3);
    p.zero = pick(4) - 1;
    p.shard_group = shards;
    p.rank_order = static_cast<RankOrder>(pick(4) - 1);
    // Experts on ranks that part tp and dp further, or join all of both.
    if (p.tp % 2 == 0 && pick(2) == 1) p.etp = p.tp / 2;
    if (pick(2) == 1) p.ep = p.tp * p.copies() / p.expert_tp();
    const Mesh m = mesh_of(p);
    ASSERT_EQ(m.ranks(), p.ranks()) << short_name(p);
    EXPECT_EQ(m.size("etp") * m.size("ep") * m.size("edp"), p.tp * p.copies()) << short_name(p);
    EXPECT_EQ(m.size("cp") * m.size("dp"), m.size("copies")) << short_name(p);
    EXPECT_EQ(m.size("shard") * m.size("replica"), m.size("copies")) << short_name(p);
    for (const char* name : {"tp", "cp", "ulysses", "ring", "dp", "copies", "shard", "replica", "pp", "etp",
                             "ep", "edp", "eshard", "ereplica"}) {
      const AxisSet axes = m[name], others = m.others(axes);
      std::vector<int> covered(static_cast<std::size_t>(m.ranks()));
      for (std::int64_t r = 0; r < m.ranks(); ++r) {
        if (m.coordinate(r, axes) != 0) continue;
        const Ranks members = m.members(axes, r);
        for (std::size_t at = 0; at < members.size(); ++at) {
          EXPECT_EQ(m.coordinate(members[at], axes), static_cast<std::int64_t>(at)) << short_name(p);
          EXPECT_EQ(m.coordinate(members[at], others), m.coordinate(r, others)) << short_name(p);
          ++covered[static_cast<std::size_t>(members[at])];
        }
      }
      EXPECT_EQ(covered, std::vector<int>(covered.size(), 1)) << name << " of " << short_name(p);
    }
    for (std::int64_t r = 0; r < m.ranks(); ++r) {
      EXPECT_EQ(m.rank({{"tp", m.coordinate(r, "tp")},
                        {"cp", m.coordinate(r, "cp")},
                        {"dp", m.coordinate(r, "dp")},
                        {"pp", m.coordinate(r, "pp")}}),
                r);
    }
  }
}

// tp 4 x dp 4 ranks of a stage: rank = tp + 4 dp. Experts with etp 2 and ep 4: of rank r, etp = r % 2, ep =
// r / 2 % 4 and edp = r / 8, so that ep has half of tp and half of dp.
TEST(Mesh, ExpertsLieOverTheSameRanksOnTheirOwn) {
  const Mesh m = mesh_of({.tp = 4, .pp = 2, .dp = 4, .ep = 4, .etp = 2, .sequence_parallel = true});
  EXPECT_EQ(m.members(m["tp"], 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(m.members(m["dp"], 5), (Ranks{1, 5, 9, 13}));
  EXPECT_EQ(m.members(m["etp"], 5), (Ranks{4, 5}));
  EXPECT_EQ(m.members(m["ep"], 5), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(m.members(m["edp"], 5), (Ranks{5, 13}));
  EXPECT_EQ(coordinates_text(m, 21), "tp 1, dp 1, pp 1");
  // With shards of 2 replicas, 8 ranks: the experts of 8 ranks have no shards, and 2 copies.
  const Mesh sharded =
      mesh_of({.tp = 4, .dp = 4, .ep = 4, .etp = 2, .sequence_parallel = true, .zero = 1, .shard_group = 2});
  EXPECT_EQ(sharded.size("eshard"), 1);
  EXPECT_EQ(sharded.members(sharded["ereplica"], 5), (Ranks{5, 13}));
  // Experts on 2 ranks: 4 shards among the 8, of tensor ranks and replicas, and 2 copies of them.
  const Mesh few =
      mesh_of({.tp = 4, .dp = 4, .ep = 2, .etp = 1, .sequence_parallel = true, .zero = 1, .shard_group = 2});
  EXPECT_EQ(few.members(few["eshard"], 5), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(few.members(few["ereplica"], 5), (Ranks{5, 13}));
}

// 2 replicas of 2 x 2 ranks that share sequences, on 2 tensor ranks each: rank = tp + 2 ulysses + 4 ring + 8
// dp.
TEST(Mesh, RanksThatShareSequencesStandBeforeReplicas) {
  const Mesh m = mesh_of({.tp = 2, .dp = 2, .cp = 4, .ulysses = 2, .zero = 1, .shard_group = 1});
  EXPECT_EQ(m.members(m["ulysses"], 1), (Ranks{1, 3}));
  EXPECT_EQ(m.members(m["ring"], 1), (Ranks{1, 5}));
  EXPECT_EQ(m.members(m["cp"], 9), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(m.members(m["dp"], 3), (Ranks{3, 11}));
  EXPECT_EQ(m.members(m["shard"], 1), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(m.members(m["replica"], 1), (Ranks{1, 9}));
  EXPECT_EQ(coordinates_text(m, 13), "tp 1, cp 2, dp 1, pp 0");
}

// A set of axes of one plan names the same axes in another of any order.
TEST(Mesh, AxisSetsOfPlansAgree) {
  const Mesh a = mesh_of({.tp = 2, .dp = 4, .zero = 1, .shard_group = 2});
  const Mesh b = mesh_of({.tp = 3, .pp = 2, .dp = 5, .rank_order = RankOrder::kPpTpDp});
  for (const char* name : {"tp", "dp", "shard", "replica", "pp"}) EXPECT_EQ(a[name], b[name]) << name;
}

}  // namespace
}  // namespace orrery
