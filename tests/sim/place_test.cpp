// SPDX-License-Identifier: Apache-2.0
//
// Ranks that act as one: what they have together is, to the picosecond, what each has alone.
#include "sim/place.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "core/scenario.h"
#include "program/schedule.h"
#include "sim/engine/rates.h"
#include "sim/network/equitable.h"
#include "tests/program/communication.h"

namespace orrery::sim {
namespace {

struct Case {
  Cluster cluster;
  Plan plan;
  Training training;
  Stack stack;
  std::vector<Device> devices;
  PlaceOptions options;
};

std::int64_t pick(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}
template <class T>
T one_of(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

Fabric random_fabric(std::mt19937_64& random, std::int64_t nodes) {
  Fabric f;
  f.routing = one_of(random, {Routing::kSpray, Routing::kMinimal, Routing::kEcmp});
  f.leaf_nodes = one_of<std::int64_t>(random, {1, 2, 4});
  f.oversubscription = one_of(random, {1.0, 2.0, 4.0});
  switch (pick(random, 0, 5)) {
    case 0:
      f.kind = FabricKind::kRailOptimized;
      f.routing = Routing::kSpray;
      break;
    case 1:
      f.levels = 3;
      f.pod_leaves = 2;
      f.pod_oversubscription = one_of(random, {1.0, 4.0});
      break;
    case 2:
      f.kind = FabricKind::kTorus;
      f.routing = Routing::kMinimal;
      f.dimensions =
          nodes % 2 == 0 ? std::vector<std::int64_t>{nodes / 2, 2} : std::vector<std::int64_t>{nodes};
      break;
    case 3:
      f.kind = FabricKind::kDragonfly;
      f.routing = one_of(random, {Routing::kMinimal, Routing::kAdaptive});
      f.router_nodes = 1;
      f.group_routers = 2;
      break;
    default:
      break;
  }
  return f;
}

Case random_case(std::mt19937_64& random) {
  Case c;
  Plan& p = c.plan;
  p.tp = one_of<std::int64_t>(random, {1, 2, 4});
  p.pp = one_of<std::int64_t>(random, {1, 2, 4});
  p.dp = one_of<std::int64_t>(random, {1, 2, 4, 8});
  p.sequence_parallel = p.tp > 1 && random() % 2 == 0;
  p.schedule = p.pp == 1
                   ? Schedule::k1F1B
                   : one_of(random, {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved,
                                     Schedule::kZeroBubbleH1, Schedule::kZeroBubbleV, Schedule::kDualPipeV});
  if (p.schedule == Schedule::kInterleaved || chunk_placement(p) == ChunkPlacement::kThereAndBack) p.vpp = 2;
  p.zero = p.dp > 1 ? pick(random, 0, program::splits_backward(p.schedule) ? 1 : 3) : 0;
  if (p.zero > 0 && p.dp > 2 && random() % 2 == 0) p.shard_group = 2;
  p.micro_batches = p.pp * pick(random, p.schedule == Schedule::kDualPipeV ? 2 : 1, 2);
  p.rank_order =
      one_of(random, {RankOrder::kTpDpPp, RankOrder::kTpPpDp, RankOrder::kDpTpPp, RankOrder::kPpTpDp});
  c.training = {.global_batch = p.global_batch(), .sequence = 128};
  c.stack.overlap_grad_reduce = random() % 4 != 0;
  c.stack.bucket = Bytes{200'000};
  static const Device kDevice = load_device("a100-80gb", {}, DataFolders());
  static const Cluster kCluster = load_cluster("dgx-a100", {}, {}, DataFolders());
  c.devices = {kDevice};
  if (random() % 4 == 0) c.devices[0].overlap_compute = c.devices[0].overlap_communication = 1;

  Cluster& k = c.cluster;
  k = kCluster;
  k.devices_per_node = one_of<std::int64_t>(random, {2, 4});
  k.nics = one_of<std::int64_t>(random, {1, 2, 4});
  k.nodes = std::max<std::int64_t>(2, (p.ranks() + k.devices_per_node - 1) / k.devices_per_node);
  k.nodes += k.nodes % 2 + (random() % 4 == 0 ? 2 : 0);
  k.nic_bandwidth = Bandwidth{pick(random, 1, 4) * 1'000'000'000};
  k.fabric = random_fabric(random, k.nodes);
  if (random() % 3 == 0) k.fabric.faults.push_back({"device0", "port0.0", one_of(random, {0.5, 0.9})});
  if (random() % 2 == 0) c.options.slow[pick(random, 0, p.ranks() - 1)] = 1.5;
  return c;
}

struct Played {
  Layout layout;
  SimulationResult result;
};
Played play(const Case& c, const Topology& topology, Fold fold) {
  Model model = preset_model("tiny-llama");
  model.layers = c.plan.pp * c.plan.vpp;
  const program::Program program = program::compile(model, c.plan, c.training, c.stack);
  const PlanLinks links = plan_links(topology, c.plan);
  const CostModel cost(c.devices, c.stack, c.cluster, links, c.training);
  PlaceOptions options = c.options;
  options.fold = fold;
  Played out;
  out.layout = place(topology, program, cost, options);
  out.result = simulate(program, out.layout, {.record = false});
  return out;
}

std::vector<std::int64_t> numbers(const PlaceReport& r) {
  std::vector<std::int64_t> out{r.forward.value, r.backward.value, r.recompute.value, r.optimizer.value};
  for (const Time t : r.busy) out.push_back(t.value);
  return out;
}

// Every rank, whatever the fabric, the order of ranks, failed links and slow ranks.
TEST(Fold, WhatARankHasWithOthersIsWhatItHasAlone) {
  constexpr std::uint64_t kSeed = 20261122;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  std::size_t ranks = 0, places = 0, shared = 0;
  int stages_differ = 0;
  constexpr int kCases = 10'000, kControls = 300;
  for (int i = 0; i < kCases; ++i) {
    const Case c = random_case(random);
    const Topology topology(c.cluster);
    const Played folded = play(c, topology, Fold::kClasses), single = play(c, topology, Fold::kRanks);
    const std::string what =
        fmt::format("case {}: {} on {}", i, short_name(c.plan), name_of(c.cluster.fabric.kind));
    ASSERT_EQ(folded.result.step.value, single.result.step.value) << what;
    ASSERT_EQ(single.result.places.size(), static_cast<std::size_t>(c.plan.ranks()));
    for (std::size_t r = 0; r < single.layout.place_of.size(); ++r) {
      const auto& alone = single.result.places[static_cast<std::size_t>(single.layout.place_of[r])];
      const auto& together = folded.result.places[static_cast<std::size_t>(folded.layout.place_of[r])];
      ASSERT_EQ(alone.first_rank, static_cast<std::int64_t>(r));
      ASSERT_EQ(alone.stage, together.stage);
      ASSERT_EQ(numbers(alone), numbers(together)) << what << ", rank " << r;
    }
    ASSERT_EQ(folded.result.links.size(), single.result.links.size()) << what;
    Time lost{0}, lost_alone{0};
    for (const LinkReport& l : folded.result.links) lost += l.lost;
    for (const LinkReport& l : single.result.links) lost_alone += l.lost;
    const double rounded = static_cast<double>(folded.result.links.size());  // a picosecond each
    ASSERT_NEAR(static_cast<double>(lost.value), static_cast<double>(lost_alone.value), 1 + rounded) << what;
    ranks += single.layout.places.size();
    places += folded.layout.places.size();
    shared += folded.layout.links.size();
    if (i < kControls) stages_differ += play(c, topology, Fold::kStages).result.step != single.result.step;
  }
  std::printf("%zu ranks in %zu places, %zu shared links\n", ranks, places, shared);
  EXPECT_LT(places, ranks * 3 / 4);
  EXPECT_GT(shared, static_cast<std::size_t>(kCases));
  // The control: putting ranks of a stage together where they differ is seen.
  EXPECT_GT(stages_differ, kControls / 10);
}

Case regular(const Plan& plan) {
  Case c;
  c.plan = plan;
  c.training = {.global_batch = plan.global_batch(), .sequence = 128};
  c.cluster = load_cluster("dgx-a100", {}, {}, DataFolders());
  c.cluster.nodes = plan.ranks() / 8;
  c.devices = {load_device("a100-80gb", {}, DataFolders())};
  return c;
}

TEST(Fold, ARegularClusterHasAPlaceForEachStage) {
  const Case c = regular({.tp = 8, .pp = 4, .dp = 4, .zero = 1, .micro_batches = 8});
  const Played r = play(c, Topology(c.cluster), Fold::kClasses);
  EXPECT_EQ(r.layout.places.size(), 4U);
  for (const Place& p : r.layout.places) EXPECT_EQ(p.ranks, 32);
}

// A slow rank is one of its own; so are, on its stage, the others of its tensor group, the others of its data
// group, and all others. On the other stages the same four: with its coordinates, with one of them, with
// none.
TEST(Fold, ASlowRankPutsApartOnlyWhatItMust) {
  Case c = regular({.tp = 8, .pp = 4, .dp = 4, .zero = 1, .micro_batches = 8});
  const Topology topology(c.cluster);
  const Time before = play(c, topology, Fold::kClasses).result.step;
  const std::int64_t rank = mesh_of(c.plan).rank({{"tp", 3}, {"dp", 2}, {"pp", 1}});
  c.options.slow[rank] = 2;
  const Played r = play(c, topology, Fold::kClasses);
  ASSERT_EQ(r.layout.places.size(), 16U);
  std::vector<std::int64_t> sizes;
  for (const Place& p : r.layout.places) sizes.push_back(p.ranks);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 1), 4);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 7), 4);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 3), 4);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 21), 4);
  EXPECT_GT(r.result.step, before);
  EXPECT_EQ(r.result.step, play(c, topology, Fold::kRanks).result.step);
  // All wait for it: as slow as if the whole stage were.
  EXPECT_LE(r.result.step, play(c, topology, Fold::kStages).result.step);
  const auto& own =
      r.result.places[static_cast<std::size_t>(r.layout.place_of[static_cast<std::size_t>(rank)])];
  const auto& mate =
      r.result.places[static_cast<std::size_t>(r.layout.place_of[static_cast<std::size_t>(rank) + 1])];
  EXPECT_NEAR(ratio(own.forward, mate.forward), 2, 0.01);
  EXPECT_LT(own.exposed[program::kTpStream], mate.exposed[program::kTpStream]);
}

// A port at half its speed slows the rings that pass it; the other groups keep theirs.
TEST(Fold, ASlowLinkSlowsWhoUsesIt) {
  Case c = regular({.tp = 8, .dp = 16, .micro_batches = 2});
  const Topology healthy(c.cluster);
  const Played before = play(c, healthy, Fold::kClasses);
  EXPECT_EQ(before.layout.places.size(), 1U);
  c.cluster.fabric.faults = {{"device11", "port1.3", 0.5}};
  const Topology broken(c.cluster);
  const Played after = play(c, broken, Fold::kClasses);
  ASSERT_EQ(after.layout.places.size(), 2U);
  EXPECT_EQ(after.layout.places[1].ranks, 16);  // the ring of tensor rank 3
  EXPECT_EQ(after.layout.places[1].first_rank, 3);
  EXPECT_EQ(after.result.step, play(c, broken, Fold::kRanks).result.step);
  EXPECT_GT(after.result.places[1].busy[program::kDpStream],
            before.result.places[0].busy[program::kDpStream]);
  EXPECT_EQ(after.result.places[0].busy[program::kDpStream],
            before.result.places[0].busy[program::kDpStream]);
}

// Two of three users share thing 0 in the same way; the third has a thing of its own.
TEST(Equitable, TellsApartWhatDiffers) {
  Uses u;
  for (const auto& things : std::vector<std::vector<std::uint32_t>>{{0, 1}, {0, 2}, {3}}) {
    u.things.insert(u.things.end(), things.begin(), things.end());
    u.end_user();
  }
  const Partition p = equitable(u, {0, 0, 0}, {0, 0, 0, 0});
  EXPECT_EQ(p.users, (std::vector<std::uint32_t>{0, 0, 1}));
  EXPECT_EQ(p.things, (std::vector<std::uint32_t>{0, 1, 1, 2}));
  // A colour on thing 2 tells its user apart too, and so does a label.
  EXPECT_EQ(equitable(u, {0, 0, 0}, {0, 0, 1, 0}).user_classes, 3U);
  u.labels = {1, 1, 2, 1, 1};
  EXPECT_EQ(equitable(u, {0, 0, 0}, {0, 0, 0, 0}).user_classes, 3U);
}

// On random structures: users of a class use equally many things of each class, and the other way round.
TEST(Equitable, ClassesAreEquitable) {
  constexpr unsigned kSeed = 7;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 300; ++i) {
    const std::size_t users = 1 + random() % 12, things = 1 + random() % 8;
    Uses u;
    for (std::size_t k = 0; k < users; ++k) {
      for (std::uint32_t t = 0; t < things; ++t) {
        if (random() % 3 == 0) u.things.push_back(t);
      }
      u.end_user();
    }
    const Partition p = equitable(u, std::vector<std::uint64_t>(users), std::vector<std::uint64_t>(things));
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::map<std::size_t, std::int64_t>> use, used;
    for (std::size_t k = 0; k < users; ++k) {
      for (std::uint32_t t = 0; t < things; ++t) {
        const bool uses = std::find(u.things.begin() + static_cast<std::ptrdiff_t>(u.first[k]),
                                    u.things.begin() + static_cast<std::ptrdiff_t>(u.first[k + 1]),
                                    t) != u.things.begin() + static_cast<std::ptrdiff_t>(u.first[k + 1]);
        use[{p.users[k], p.things[t]}][k] += uses;
        used[{p.users[k], p.things[t]}][t] += uses;
      }
    }
    for (const auto& side : {use, used}) {
      for (const auto& [classes, counts] : side) {
        for (const auto& [one, count] : counts) ASSERT_EQ(count, counts.begin()->second) << "case " << i;
      }
    }
  }
}

// Solving what changed gives what solving everything gives.
TEST(Rates, AComponentHasTheRatesOfTheWhole) {
  constexpr unsigned kSeed = 11;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  std::size_t told = 0, flowing = 0;
  for (int i = 0; i < 200; ++i) {
    const std::size_t links = 1 + random() % 12, activities = 1 + random() % 16;
    std::vector<std::int64_t> capacity;
    for (std::size_t l = 0; l < links; ++l) capacity.push_back(1000 + random() % 100'000);
    FairShares all(capacity);
    for (std::size_t a = 0; a < activities; ++a) {
      std::vector<FairShares::Use> uses;
      for (std::size_t l = 0; l < links; ++l) {
        if (random() % 5 == 0)
          uses.push_back({static_cast<std::int32_t>(l), 1 + static_cast<std::int64_t>(random() % 3)});
      }
      if (uses.empty()) uses.push_back({0, 1});
      all.add(uses);
    }
    Rates rates(all);
    std::map<std::int32_t, std::int64_t> limits;  // of what flows
    std::vector<std::int64_t> rate(activities);
    for (int step = 0; step < 40; ++step) {
      for (std::size_t n = 1 + random() % 3; n > 0; --n) {
        const auto a = static_cast<std::int32_t>(random() % activities);
        if (limits.contains(a) && random() % 2 == 0) {
          rates.stop(a);
          limits.erase(a);
        } else {
          limits[a] = 1 + static_cast<std::int64_t>(random() % 50'000);
          rates.start(a, limits[a]);
        }
      }
      for (const Rates::Rate& r : rates.update()) rate[static_cast<std::size_t>(r.activity)] = r.rate;
      EXPECT_FALSE(rates.stale());
      told += rates.update().size();
      flowing += limits.size();
      std::vector<std::int32_t> active;
      std::vector<std::int64_t> most;
      for (const auto& [a, limit] : limits) {
        active.push_back(a);
        most.push_back(limit);
      }
      const auto expected = all.solve(active, most);
      for (std::size_t k = 0; k < active.size(); ++k)
        ASSERT_EQ(rate[static_cast<std::size_t>(active[k])], expected[k]) << "case " << i << " step " << step;
    }
  }
  EXPECT_EQ(told, 0U);  // nothing changed since
  EXPECT_GT(flowing, 0U);
}

}  // namespace
}  // namespace orrery::sim
