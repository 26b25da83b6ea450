// SPDX-License-Identifier: Apache-2.0
//
// Training through parameter servers: closed forms of throughput, staleness and waits.
#include <gtest/gtest.h>

#include <numeric>

#include "core/inputs.h"
#include "core/scenario.h"
#include "sim/parameter_server/parameter_server.h"
#include "sim/topology/topology.h"

namespace orrery::sim {
namespace {

constexpr std::int64_t kInNode = 8;

// Servers on the first nodes, workers on the others, one a node as long as there are nodes.
struct ServersOnACluster {
  explicit ServersOnACluster(std::int64_t servers, std::int64_t workers)
      : cluster(load_cluster("laptop-cpu", {}, {}, DataFolders())) {
    cluster.nodes = servers + workers;
    cluster.nic_bandwidth = Bandwidth{1'000'000'000};
    cluster.nic_efficiency = 1;
    for (std::int64_t s = 0; s < servers; ++s) work.servers.push_back(s * kInNode);
    for (std::int64_t w = 0; w < workers; ++w) work.workers.push_back((servers + w) * kInNode);
    rules.workers = workers;
    work.compute = from_seconds(0.1);
    work.pulled = work.pushed = Bytes{1'000'000};  // a millisecond of a link of 1 GB/s
    work.updates = 400;
  }
  ServedTraining run() const { return simulate_servers(Topology(cluster).network(), rules, work); }

  Cluster cluster;
  ServerRules rules;
  ServerWork work;
};

// Eight alike workers that hardly wait for links: as many gradients as eight compute, and each joins after
// the seven others.
TEST(ParameterServer, AlikeWorkersAreAsStaleAsThereAreOthers) {
  ServersOnACluster c(1, 8);
  c.work.pulled = c.work.pushed = Bytes{1000};
  const ServedTraining r = c.run();
  EXPECT_NEAR(r.updates_per_s(), 8 / 0.1, 0.8);
  EXPECT_EQ(r.staleness_at(0.9), 7);
  EXPECT_EQ(r.staleness.size(), 8U);
  EXPECT_NEAR(r.mean_staleness(), 7, 0.1);  // the first eight have less
  EXPECT_EQ(r.dropped, 0);
  EXPECT_NEAR(seconds(r.mean.computing) / seconds(r.total), 1, 0.02);
}

// 100 MB each way over the server's link of 1 GB/s. Alike workers stay together: n pull at once, 0.1 n s,
// compute for 0.1 s, and push at once, so that n updates take 2 x 0.1 n + 0.1 s, and each direction of the
// link is in use for half of the time. With more servers, as many times faster.
TEST(ParameterServer, TheServersLinkIsTheBottleneck) {
  for (const std::int64_t servers : {1, 2, 4}) {
    for (const std::int64_t workers : {16, 64}) {
      ServersOnACluster c(servers, workers);
      c.work.pulled = c.work.pushed = Bytes{100'000'000};
      c.work.updates = 20 * workers;
      const ServedTraining r = c.run();
      const double n = static_cast<double>(workers), s = static_cast<double>(servers);
      const double expected = n / (2 * 0.1 * n / s + 0.1);
      EXPECT_NEAR(r.updates_per_s(), expected, 0.02 * expected) << servers << " " << workers;
      EXPECT_NEAR(r.links.front().busy, expected * 0.1 / s, 0.03) << servers << " " << workers;
      EXPECT_NE(r.links.front().name.find("port0.0"), std::string::npos) << r.links.front().name;
    }
  }
  // A worker alone has 1 / (0.1 + 0.1 + 0.1 s).
  ServersOnACluster alone(1, 1);
  alone.work.pulled = alone.work.pushed = Bytes{100'000'000};
  EXPECT_NEAR(alone.run().updates_per_s(), 1 / 0.3, 0.02);
}

// Workers whose times vary come apart, and both directions of the link are in use at once: no more than ten
// gradients of 100 MB a second, and more than alike workers have.
TEST(ParameterServer, WorkersThatVaryShareTheLinkBetter) {
  ServersOnACluster c(1, 16);
  c.work.pulled = c.work.pushed = Bytes{100'000'000};
  c.work.compute = from_seconds(1);
  const double together = c.run().updates_per_s();
  EXPECT_NEAR(together, 16 / (2 * 1.6 + 1), 0.1);
  c.work.variation = 1;
  const ServedTraining apart = c.run();
  EXPECT_GT(apart.updates_per_s(), 1.3 * together);
  EXPECT_LE(apart.updates_per_s(), 10);
  EXPECT_LE(apart.links.front().busy, 1 + 1e-9);
}

// Synchronously all n pull at once, compute, push at once: n 0.01 s each way at 1 GB/s for 10 MB, 0.1 s
// between, and 0.05 s for the update.
TEST(ParameterServer, AStepThatWaitsForAllHasAClosedForm) {
  for (const std::int64_t n : {1, 4, 16}) {
    ServersOnACluster c(1, n);
    c.rules.mode = ServerMode::kSynchronous;
    c.rules.wait_for = n;
    c.work.pulled = c.work.pushed = Bytes{10'000'000};
    c.work.update = from_seconds(0.05);
    c.work.updates = 50;
    const ServedTraining r = c.run();
    const double step = 2 * 0.01 * static_cast<double>(n) + 0.1 + 0.05;
    EXPECT_NEAR(seconds(r.total) / 50, step, 0.01 * step) << n;
    EXPECT_EQ(r.gradients, 50 * n);
    EXPECT_EQ(r.staleness, std::vector<std::int64_t>{50 * n});
  }
}

// A worker ten times slower sets the pace of those that wait for all; without waiting for it the step is that
// of the others, and what it computes is dropped: it comes once in ten steps.
TEST(ParameterServer, BackupWorkersDropTheSlowest) {
  ServersOnACluster c(1, 20);
  c.rules.mode = ServerMode::kSynchronous;
  c.rules.wait_for = 20;
  c.work.pulled = c.work.pushed = Bytes{10'000};
  c.work.slow = {{3, 10.0}};
  c.work.updates = 100;
  const ServedTraining all = c.run();
  EXPECT_NEAR(all.updates_per_s(), 1 / 1.0, 0.02);
  EXPECT_EQ(all.dropped, 0);
  c.rules.wait_for = 19;
  const ServedTraining most = c.run();
  EXPECT_NEAR(most.updates_per_s(), 1 / 0.1, 0.2);
  EXPECT_NEAR(static_cast<double>(most.dropped), 10, 1);
  EXPECT_EQ(most.staleness.size(), 1U);
}

// Of workers whose times vary, the slowest of many decides: to wait for 95 % of them is faster.
TEST(ParameterServer, WaitsForTheSlowestOfMany) {
  ServersOnACluster c(1, 40);
  c.rules.mode = ServerMode::kSynchronous;
  c.work.pulled = c.work.pushed = Bytes{10'000};
  c.work.variation = 0.5;
  c.work.updates = 200;
  c.rules.wait_for = 40;
  const double all = c.run().updates_per_s();
  c.rules.wait_for = 38;
  const ServedTraining most = c.run();
  EXPECT_GT(most.updates_per_s(), 1.2 * all);
  EXPECT_GT(most.dropped, 200);
  EXPECT_LT(all, 1 / 0.1 / 2);  // the largest of 40 log-normal times is above twice the mean
}

// Asynchronously a slow worker holds nobody back, and its gradients are stale; with a bound the others wait.
TEST(ParameterServer, ABoundOnStalenessHoldsTheFastOnesBack) {
  ServersOnACluster c(1, 4);
  c.work.pulled = c.work.pushed = Bytes{10'000};
  c.work.slow = {{0, 10.0}};
  const ServedTraining free = c.run();
  EXPECT_NEAR(free.updates_per_s(), 3 / 0.1 + 1, 0.5);
  EXPECT_GE(std::ssize(free.staleness), 30);  // three others, ten times each
  c.rules.bound = 2;
  const ServedTraining bound = c.run();
  EXPECT_NEAR(bound.updates_per_s(), 4 / 1.0, 0.2);
  EXPECT_LE(std::ssize(bound.staleness), 3 * 3 + 1 + 3);
  EXPECT_GT(seconds(bound.mean.waiting), 0.5 * seconds(bound.total));
}

// Where a picosecond is less than numbers of seconds tell apart, flows still end.
TEST(ParameterServer, RunsForDays) {
  ServersOnACluster c(1, 4);
  c.work.pulled = c.work.pushed = Bytes{1'234'567};
  c.work.compute = from_seconds(1000);
  c.work.updates = 2000;
  const ServedTraining r = c.run();
  EXPECT_EQ(r.updates, 2000);
  EXPECT_NEAR(seconds(r.total), 2000 / 4 * 1000, 1000);
}

TEST(ParameterServer, EqualSeedsAreEqualRuns) {
  ServersOnACluster c(2, 8);
  c.work.variation = 0.3;
  const ServedTraining a = c.run(), b = c.run();
  EXPECT_EQ(a.total, b.total);
  EXPECT_EQ(a.staleness, b.staleness);
  c.work.seed = 2;
  EXPECT_NE(c.run().total, a.total);
}

TEST(ParameterServer, RulesThatNobodyCanFollow) {
  EXPECT_EQ(server_problem({.workers = 4, .wait_for = 4}), "");
  EXPECT_NE(server_problem({.workers = 4, .wait_for = 5}), "");
  EXPECT_NE(server_problem({.workers = 4, .mode = ServerMode::kSynchronous, .bound = 1}), "");
  EXPECT_NE(server_problem({.workers = 4, .wait_for = 2, .bound = 1}), "");
}

}  // namespace
}  // namespace orrery::sim
