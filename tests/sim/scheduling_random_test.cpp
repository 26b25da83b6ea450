// SPDX-License-Identifier: Apache-2.0
//
// What holds of every schedule, on random queues under every policy; a second scheduler that looks at every
// second and knows no events; and what fails where a rule is broken (negative controls).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/random.h"
#include "sim/scheduling/report.h"

namespace orrery::sim {
namespace {

struct Case {
  JobQueue queue;
  SchedulingPolicy policy;
  ClusterNodes nodes;
};

std::int64_t below(RandomStream& r, std::int64_t n) {
  return static_cast<std::int64_t>(r.uniform() * static_cast<double>(n));
}

Case random_case(std::uint64_t seed, std::uint64_t number) {
  RandomStream r(seed, number, 0);
  Case c;
  c.nodes = plain_nodes(1 + below(r, 20), 1 + below(r, 8), 1 + below(r, 6));
  for (double& u : c.nodes.uplink) u /= static_cast<double>(1 + below(r, 4));
  c.policy.order = static_cast<QueueOrder>(below(r, 3));
  c.policy.backfill = static_cast<Backfill>(below(r, 2));
  c.policy.backfill_depth = 1 + below(r, 50);
  c.policy.placement = static_cast<NodeChoice>(below(r, 3));
  c.policy.half_life = RunTime{r.uniform() < 0.3 ? 0 : 100 * r.uniform()};
  if (c.policy.order != QueueOrder::kFifo && r.uniform() < 0.5)
    c.policy.preemption = PreemptionRule::kLowerPriority;
  const std::int64_t tenants = 1 + below(r, 4);
  for (std::int64_t t = 0; t < tenants; ++t) {
    ClusterTenant tenant{fmt::format("tenant {}", t), 1 + static_cast<double>(below(r, 3)), {}};
    if (r.uniform() < 0.3) tenant.quota = 1 + below(r, c.nodes.devices());
    c.queue.tenants.push_back(std::move(tenant));
  }
  const std::int64_t jobs = 1 + below(r, 60);
  for (std::int64_t i = 0; i < jobs; ++i) {
    ClusterJob j;
    j.name = fmt::format("job {}", i);
    j.tenant = static_cast<std::int32_t>(below(r, tenants));
    j.submit = ticks(static_cast<double>(below(r, 100)));
    j.devices = 1 + below(r, r.uniform() < 0.5 ? c.nodes.devices_per_node : c.nodes.devices());
    j.work = ticks(static_cast<double>(1 + below(r, 50)));
    if (r.uniform() < 0.4) j.requested = ticks(static_cast<double>(1 + below(r, 80)));
    j.priority = below(r, 4);
    if (r.uniform() < 0.6) {
      j.checkpoint_every = ticks(static_cast<double>(1 + below(r, 10)));
      j.checkpoint_cost = ticks(r.uniform());
    }
    j.restart = ticks(3 * r.uniform());
    if (r.uniform() < 0.3) j.network = r.uniform();
    const std::int64_t held =
        (j.devices + c.nodes.devices_per_node - 1) / c.nodes.devices_per_node * c.nodes.devices_per_node;
    const auto& quota = c.queue.tenants[static_cast<std::size_t>(j.tenant)].quota;
    if (quota && (j.devices < c.nodes.devices_per_node ? j.devices : held) > *quota) continue;
    c.queue.jobs.push_back(std::move(j));
  }
  return c;
}

std::int64_t held(const Case& c, const ClusterJob& j) {
  const std::int64_t per = c.nodes.devices_per_node;
  return j.devices < per ? j.devices : (j.devices + per - 1) / per * per;
}

// The most devices that a tenant holds at once.
std::int64_t most_held(const Case& c, const ScheduleOutcome& o, std::int32_t tenant) {
  std::vector<std::pair<Ticks, std::int64_t>> changes;
  for (const Attempt& a : o.attempts) {
    const ClusterJob& j = c.queue.jobs[static_cast<std::size_t>(a.job)];
    if (j.tenant != tenant || a.start == a.end) continue;
    changes.emplace_back(a.start, held(c, j));
    changes.emplace_back(a.end, -held(c, j));
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t now = 0, most = 0;
  for (const auto& [at, by] : changes) most = std::max(most, now += by);
  return most;
}

TEST(RandomSchedules, KeepEveryInvariant) {
  constexpr std::uint64_t kSeed = 20261128;
  std::int64_t preemptions = 0, backfilled = 0, slowed = 0;
  for (std::uint64_t n = 0; n < 3000; ++n) {
    SCOPED_TRACE(fmt::format("seed {}, case {}", kSeed, n));
    const Case c = random_case(kSeed, n);
    const ScheduleOutcome o = run_schedule(c.queue, c.policy, c.nodes);
    ASSERT_TRUE(is_conserved(c.queue, o));
    for (std::size_t i = 0; i < c.queue.jobs.size(); ++i) {
      ASSERT_GE(o.jobs[i].start, c.queue.jobs[i].submit);
      ASSERT_GE(o.jobs[i].end, o.jobs[i].start + c.queue.jobs[i].work);
      preemptions += o.jobs[i].preemptions;
      backfilled += o.jobs[i].backfilled;
      slowed += o.jobs[i].slow > Ticks{0};
    }
    for (const Attempt& a : o.attempts) {  // all nodes at once, and each once
      const auto nodes = o.nodes_of(a);
      ASSERT_EQ(std::set<std::int32_t>(nodes.begin(), nodes.end()).size(), a.count);
    }
    for (std::size_t t = 0; t < c.queue.tenants.size(); ++t) {
      const auto quota = c.queue.tenants[t].quota;
      if (!quota) continue;
      ASSERT_LE(most_held(c, o, static_cast<std::int32_t>(t)), *quota);
    }
    if (c.queue.jobs.empty()) continue;
    const ScheduleReport r = report_of(c.queue, c.nodes, o);
    ASSERT_NEAR(r.useful + r.slow + r.lost + r.checkpoint + r.restart + r.unasked + r.free, 1, 1e-9);
    ASSERT_LE(r.fragmentation, r.wanted + 1e-12);
    ASSERT_LE(r.wanted, r.free + 1e-12);
    ASSERT_GE(r.spread, 1);
    double in_buckets = 0;
    for (const LoadBucket& b : r.load) in_buckets += b.held / kLoadBuckets;
    ASSERT_NEAR(in_buckets, r.held, 1e-9);
    ASSERT_EQ(run_schedule(c.queue, c.policy, c.nodes).attempts.size(), o.attempts.size());
  }
  EXPECT_GT(preemptions, 1000);  // the cases are about something
  EXPECT_GT(backfilled, 1000);
  EXPECT_GT(slowed, 1000);
}

TEST(RandomSchedules, FifoWithoutBackfillStartsInOrder) {
  for (std::uint64_t n = 0; n < 500; ++n) {
    SCOPED_TRACE(n);
    Case c = random_case(7, n);
    c.policy = {.order = QueueOrder::kFifo, .backfill = Backfill::kNone};
    for (ClusterTenant& t : c.queue.tenants) t.quota.reset();
    std::vector<std::size_t> order(c.queue.jobs.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return c.queue.jobs[a].submit < c.queue.jobs[b].submit;
    });
    const ScheduleOutcome o = run_schedule(c.queue, c.policy, c.nodes);
    for (std::size_t i = 1; i < order.size(); ++i)
      ASSERT_LE(o.jobs[order[i - 1]].start, o.jobs[order[i]].start);
  }
}

// A second implementation: it looks at every second, keeps a list of who holds what, and knows whole nodes
// under one switch only. FIFO and EASY, with counts of nodes in place of nodes.
std::vector<std::int64_t> starts_by_the_second(const std::vector<ClusterJob>& jobs, std::int64_t nodes,
                                               bool backfill) {
  std::vector<std::int64_t> start(jobs.size(), -1);
  const auto work = [&](std::size_t i) { return jobs[i].work.value / 1'000'000'000; };
  const auto size = [&](std::size_t i) { return jobs[i].devices; };  // nodes of one device
  for (std::int64_t t = 0; std::count(start.begin(), start.end(), -1) > 0; ++t) {
    const auto free_at = [&](std::int64_t when) {
      std::int64_t free = nodes;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (start[i] >= 0 && start[i] + work(i) > when) free -= size(i);
      }
      return free;
    };
    std::int64_t reserved_at = -1, spare = 0;  // of the head, and what is left beside it then
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (start[i] >= 0 || jobs[i].submit.value / 1'000'000'000 > t) continue;
      const bool fits = size(i) <= free_at(t);
      if (reserved_at < 0) {
        if (fits) {
          start[i] = t;
          continue;
        }
        if (!backfill) break;
        for (reserved_at = t; free_at(reserved_at) < size(i);) ++reserved_at;
        spare = free_at(reserved_at) - size(i);
      } else if (fits && (t + work(i) <= reserved_at || size(i) <= spare)) {
        if (t + work(i) > reserved_at) spare -= size(i);
        start[i] = t;
      }
    }
  }
  return start;
}

TEST(RandomSchedules, EqualAnotherScheduler) {
  std::int64_t passed = 0;
  for (std::uint64_t n = 0; n < 400; ++n) {
    SCOPED_TRACE(n);
    RandomStream r(99, n, 0);
    JobQueue queue{{}, {{"a", 1, {}}}};
    const std::int64_t nodes = 2 + below(r, 10);
    std::int64_t submit = 0;
    for (int i = 0; i < 25; ++i) {
      ClusterJob j;
      j.submit = ticks(static_cast<double>(submit += below(r, 6)));
      j.devices = 1 + below(r, nodes);
      j.work = ticks(static_cast<double>(1 + below(r, 20)));
      queue.jobs.push_back(j);
    }
    for (const bool backfill : {false, true}) {
      SchedulingPolicy policy;
      policy.backfill = backfill ? Backfill::kEasy : Backfill::kNone;
      const ScheduleOutcome o = run_schedule(queue, policy, plain_nodes(nodes, 1, nodes));
      const std::vector<std::int64_t> expected = starts_by_the_second(queue.jobs, nodes, backfill);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(o.jobs[i].start.value, expected[i] * 1'000'000'000) << "job " << i;
        passed += o.jobs[i].backfilled;
      }
    }
  }
  EXPECT_GT(passed, 500);
}

// Tenants that always have jobs to run get device time by their shares.
TEST(RandomSchedules, SharesConverge) {
  RandomStream r(5, 0, 0);
  Case c;
  c.nodes = plain_nodes(16, 8, 16);
  c.policy.order = QueueOrder::kFairShare;
  c.policy.half_life = RunTime{0};
  c.queue.tenants = {{"a", 1, {}}, {"b", 2, {}}, {"c", 4, {}}};
  for (int i = 0; i < 3000; ++i) {
    ClusterJob j;
    j.tenant = i % 3;
    j.devices = 1 + below(r, 32);
    j.work = ticks(static_cast<double>(1 + below(r, 100)));
    c.queue.jobs.push_back(j);
  }
  const ScheduleOutcome o = run_schedule(c.queue, c.policy, c.nodes);
  // Until the first tenant, c, has nothing left.
  Ticks until{0};
  for (std::size_t i = 2; i < c.queue.jobs.size(); i += 3) until = std::max(until, o.jobs[i].start);
  std::array<double, 3> used{};
  for (const Attempt& a : o.attempts) {
    const ClusterJob& j = c.queue.jobs[static_cast<std::size_t>(a.job)];
    if (a.start < until)
      used[static_cast<std::size_t>(j.tenant)] +=
          static_cast<double>(held(c, j)) * seconds(std::min(a.end, until) - a.start);
  }
  const double all = used[0] + used[1] + used[2];
  EXPECT_NEAR(used[0] / all, 1.0 / 7, 0.01);
  EXPECT_NEAR(used[1] / all, 2.0 / 7, 0.01);
  EXPECT_NEAR(used[2] / all, 4.0 / 7, 0.01);
}

TEST(RandomSchedules, AWrongOutcomeIsNoticed) {
  const Case c = random_case(20261128, 3);
  const ScheduleOutcome right = run_schedule(c.queue, c.policy, c.nodes);
  ASSERT_GT(right.attempts.size(), 2U);
  ASSERT_TRUE(is_conserved(c.queue, right));
  ScheduleOutcome wrong = right;
  wrong.jobs[0].useful -= Ticks{1};
  EXPECT_FALSE(is_conserved(c.queue, wrong));
  wrong = right;
  wrong.attempts[0].end += Ticks{1};
  EXPECT_FALSE(is_conserved(c.queue, wrong));
  // Two jobs of a node each, on one node at once.
  JobQueue two{{}, {{"a", 1, {}}}};
  for (int i = 0; i < 2; ++i) {
    two.jobs.emplace_back();
    two.jobs.back().devices = 8;
    two.jobs.back().work = ticks(10.0);
  }
  ScheduleOutcome both = run_schedule(two, {}, plain_nodes(2, 8, 2));
  ASSERT_TRUE(is_conserved(two, both));
  both.nodes[1] = both.nodes[0];
  EXPECT_FALSE(is_conserved(two, both));
}

// --- placement ------------------------------------------------------------------------------------------

TEST(Placement, TakesAsFewSwitchesAsPossible) {
  const ClusterNodes nodes = plain_nodes(12, 8, 4);  // three switches of four
  FreeNodes free(nodes);
  std::vector<std::int32_t> got;
  const auto take = [&](std::vector<std::int32_t> taken) { free.take(taken, 8); };
  take({0, 4, 5});  // 3, 2 and 4 nodes are free
  ASSERT_TRUE(free.choose(16, NodeChoice::kTopology, got));
  EXPECT_EQ(got, (std::vector<std::int32_t>{6, 7}));  // the switch with two
  ASSERT_TRUE(free.choose(24, NodeChoice::kTopology, got));
  EXPECT_EQ(got, (std::vector<std::int32_t>{1, 2, 3}));
  ASSERT_TRUE(free.choose(40, NodeChoice::kTopology, got));  // four, and for one the switch with the fewest
  EXPECT_EQ(got, (std::vector<std::int32_t>{8, 9, 10, 11, 6}));
  ASSERT_TRUE(free.choose(24, NodeChoice::kFirst, got));
  EXPECT_EQ(got, (std::vector<std::int32_t>{1, 2, 3}));
  ASSERT_TRUE(free.choose(24, NodeChoice::kSpread, got));
  EXPECT_EQ(got, (std::vector<std::int32_t>{8, 1, 6}));
  EXPECT_FALSE(free.choose(80, NodeChoice::kTopology, got));
  EXPECT_TRUE(got.empty());
}

TEST(Placement, FillsNodesThatAreInUse) {
  const ClusterNodes nodes = plain_nodes(3, 8, 3);
  FreeNodes free(nodes);
  std::vector<std::int32_t> got;
  free.take(std::vector<std::int32_t>{1}, 5);
  free.take(std::vector<std::int32_t>{2}, 3);
  free.choose(3, NodeChoice::kTopology, got);
  EXPECT_EQ(got.front(), 1);  // three are left there
  free.choose(3, NodeChoice::kSpread, got);
  EXPECT_EQ(got.front(), 0);
  free.choose(4, NodeChoice::kTopology, got);
  EXPECT_EQ(got.front(), 2);
  EXPECT_FALSE(free.fits(9));  // one whole node is free
}

TEST(Placement, ChoicesAreOfFreeNodes) {
  for (std::uint64_t n = 0; n < 300; ++n) {
    RandomStream r(11, n, 0);
    const ClusterNodes nodes = plain_nodes(1 + below(r, 200), 1 + below(r, 8), 1 + below(r, 20));
    FreeNodes free(nodes);
    std::vector<std::pair<std::vector<std::int32_t>, std::int64_t>> taken;
    for (int step = 0; step < 100; ++step) {
      if (!taken.empty() && r.uniform() < 0.4) {
        const auto i = static_cast<std::size_t>(below(r, std::ssize(taken)));
        free.give(taken[i].first, taken[i].second);
        taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      const std::int64_t devices = 1 + below(r, std::max<std::int64_t>(1, nodes.devices() / 3));
      std::vector<std::int32_t> got;
      const bool fits = free.choose(devices, static_cast<NodeChoice>(below(r, 3)), got);
      ASSERT_EQ(fits, free.fits(devices));
      if (!fits) continue;
      ASSERT_EQ(std::ssize(got), free.nodes_of(devices));
      for (const std::int32_t node : got) ASSERT_GE(free.free_on(node), free.held(devices));
      free.take(got, free.held(devices));
      taken.emplace_back(got, free.held(devices));
    }
    std::int64_t sum = 0;
    for (std::int32_t node = 0; node < nodes.nodes(); ++node) sum += free.free_on(node);
    ASSERT_EQ(sum, free.free_devices());
  }
}

// --- contention -------------------------------------------------------------------------------------------

// Two switches of 4 nodes, whose uplinks carry what two nodes send. A job of 4 nodes, half of whose time is
// exchange, lies over both, 2 and 2: demand min(2, 2) / 2 = 1, so alone it is not slower. Two such jobs, each
// using 0.5 of the uplinks on average: pace 1 + 0.5 (1 / (1 - 0.5) - 1) = 1.5.
TEST(Contention, JobsShareUplinks) {
  ClusterNodes nodes = plain_nodes(8, 8, 4);
  nodes.uplink = {2, 2};
  JobQueue queue{{}, {{"a", 1, {}}}};
  for (int i = 0; i < 2; ++i) {
    ClusterJob j;
    j.devices = 32;
    j.work = ticks(3600.0);
    j.network = 0.5;
    queue.jobs.push_back(j);
  }
  SchedulingPolicy policy;
  policy.placement = NodeChoice::kSpread;
  const ScheduleOutcome both = run_schedule(queue, policy, nodes);
  EXPECT_DOUBLE_EQ(seconds(both.jobs[0].end), 1.5 * 3600);
  EXPECT_TRUE(is_conserved(queue, both));
  policy.placement = NodeChoice::kTopology;  // a switch each
  EXPECT_DOUBLE_EQ(seconds(run_schedule(queue, policy, nodes).jobs[1].end), 3600);
  // The second starts half an hour later: the first is slow from then on. 0.5 h of work in 0.75 h,
  // until 1.25. The second has then done 0.5 h too, and ends its other half alone at 1.75 h.
  policy.placement = NodeChoice::kSpread;
  queue.jobs[1].submit = ticks(1800.0);
  const ScheduleOutcome later = run_schedule(queue, policy, nodes);
  EXPECT_DOUBLE_EQ(seconds(later.jobs[0].end), 1.25 * 3600);
  EXPECT_DOUBLE_EQ(seconds(later.jobs[1].end), 1.75 * 3600);
  // Narrower uplinks make it slower alone: demand 2 / 1, pace 1 + 0.5 (2 - 1).
  nodes.uplink = {1, 1};
  queue.jobs.pop_back();
  EXPECT_DOUBLE_EQ(seconds(run_schedule(queue, policy, nodes).jobs[0].end), 1.5 * 3600);
}

TEST(Contention, AsksForEachShapeOnce) {
  const ClusterNodes nodes = plain_nodes(16, 8, 4);
  JobQueue queue{{}, {{"a", 1, {}}}};
  for (int i = 0; i < 12; ++i) {
    ClusterJob j;
    j.devices = 16;
    j.work = ticks(100.0);
    j.plan = i % 2;
    queue.jobs.push_back(j);
  }
  int asked = 0;
  const PlanCost cost = [&](std::int32_t plan, std::span<const std::int32_t>) {
    ++asked;
    return ShapeCost{1 + static_cast<double>(plan), 0};
  };
  const ScheduleOutcome o = run_schedule(queue, {}, nodes, cost);
  EXPECT_EQ(asked, 2);  // two plans, one shape
  EXPECT_EQ(o.shapes, 2);
  EXPECT_DOUBLE_EQ(seconds(o.jobs[1].end - o.jobs[1].start), 200);  // twice as slow on its nodes
}

}  // namespace
}  // namespace orrery::sim
