// SPDX-License-Identifier: Apache-2.0
//
// Simulated runs against closed forms, and what holds of every run.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "sim/reliability/advice.h"
#include "sim/reliability/random.h"

namespace orrery::sim {
namespace {

constexpr double kDay = kSecondsPerDay;

// 1000 s of work in intervals of 100 s with checkpoints of 5 s, and nothing that happens.
RunModel quiet() {
  RunModel m;
  m.nodes = 10;
  m.work = ticks(1000.0);
  m.interval = ticks(100.0);
  m.stall = ticks(5.0);
  m.restart_software = m.restart_spare = m.restart_waited = m.restart_planned = ticks(20.0);
  return m;
}
// Means over runs, in seconds.
struct Means {
  double total = 0, error = 0, lost = 0, slow = 0, wait = 0, events = 0;
};
Means means(const RunModel& m, Process counted, std::int64_t runs = 2000, std::uint64_t seed = 11) {
  Means out;
  std::vector<double> totals;
  const auto n = static_cast<double>(runs);
  for (const RunOutcome& r : simulate_runs(m, {.seed = seed, .runs = runs, .threads = 2})) {
    EXPECT_TRUE(is_conserved(r, m));
    totals.push_back(seconds(r.total));
    out.lost += seconds(r.lost) / n;
    out.slow += seconds(r.slow) / n;
    out.wait += seconds(r.wait) / n;
    out.events += static_cast<double>(r.of(counted)) / n;
  }
  const Spread s = spread_of(std::move(totals));
  out.total = s.mean;
  out.error = s.error;
  return out;
}

TEST(Run, WithoutEventsIsArithmetic) {
  RunModel m = quiet();
  RunOutcome r = simulate_run(m, 1, 0, 100);
  EXPECT_EQ(r.total, ticks(1050.0));  // 10 checkpoints of 5 s, the last one at the end
  EXPECT_EQ(r.checkpoints, 10);
  m.work = ticks(1030.0);  // a rest of 30 s has a checkpoint too
  EXPECT_EQ(simulate_run(m, 1, 0, 100).total, ticks(1030.0 + 11 * 5));
  m.settle = ticks(40.0);  // the last one must be in storage
  EXPECT_EQ(simulate_run(m, 1, 0, 100).total, ticks(1030.0 + 11 * 5 + 40));
  m = quiet();
  m.memory_interval = ticks(10.0);  // 100 copies of half a second, no stall for storage
  m.memory_stall = ticks(0.5);
  m.stall = ticks(0.0);
  EXPECT_EQ(simulate_run(m, 1, 0, 100).total, ticks(1050.0));
  m = quiet();  // a stop behind 300, 300 and 300 s: a checkpoint, 7 s, a restart
  m.maintenance_every = ticks(300.0);
  m.maintenance_lasts = ticks(7.0);
  m.load_storage = ticks(1.0);
  r = simulate_run(m, 1, 0, 100);
  EXPECT_EQ(r.maintenance, ticks(7.0) * r.planned);
  EXPECT_EQ(r.restart, ticks(21.0) * r.planned);
  EXPECT_EQ(r.lost, Ticks{0});
  EXPECT_TRUE(is_conserved(r, m));
  EXPECT_EQ(r.planned, 3);
}

// The exact expectation (closed_forms.h) against 400 runs, in 200 regimes drawn at random: means must lie
// within 4.5 standard errors, and 2 standard errors may be exceeded as often as chance does (4.6 %).
TEST(Run, EqualsTheExactFormulaInRandomRegimes) {
  constexpr std::uint64_t kSeed = 20261127;
  constexpr int kRegimes = 200;
  RandomStream random(kSeed, 0, 0);
  const auto between = [&](double low, double high) { return low * std::pow(high / low, random.uniform()); };
  int beyond_two = 0, seen = 0;
  for (int i = 0; seen < kRegimes; ++i) {
    ASSERT_LT(i, 10 * kRegimes);
    RunModel m = quiet();
    m.nodes = static_cast<std::int64_t>(between(1, 4000));
    const double interval = between(60, 7200), stall = between(0.1, 120), mtbf = between(600, 100'000);
    const double work = interval * between(1, 200), hardware = between(10, 900), software = between(10, 900);
    const double detection = between(1, 300), share = random.uniform();
    m.interval = ticks(interval);
    m.stall = ticks(stall);
    m.work = ticks(work);
    m.detection = ticks(detection);
    m.restart_spare = ticks(hardware);
    m.restart_software = ticks(software);
    m.rate(Process::kHardware).per_node_s = share / mtbf / static_cast<double>(m.nodes);
    m.rate(Process::kSoftware).per_job_s = (1 - share) / mtbf;
    const double expected =
        expected_run_s(work, interval, stall,
                       {{share / mtbf, detection + hardware}, {(1 - share) / mtbf, detection + software}});
    if (work / mtbf < 0.3 || expected > 50 * work) continue;  // too few failures for a mean, or too many
    ++seen;
    const Means got = means(m, Process::kHardware, 400, kSeed + static_cast<std::uint64_t>(i));
    const double off = std::abs(got.total - expected) / got.error;
    EXPECT_LT(off, 4.5) << "seed " << kSeed << ", regime " << i << ": " << got.total << " +- " << got.error
                        << ", expected " << expected;
    beyond_two += off > 2 ? 1 : 0;
  }
  EXPECT_LT(beyond_two, 25) << "of " << kRegimes << ", seed " << kSeed;
  // Control: a formula without failures in the restart, 1 / r for the recovery, is told apart.
  RunModel m = quiet();
  m.rate(Process::kSoftware).per_job_s = 1.0 / 300;
  m.restart_software = ticks(200.0);
  const Means got = means(m, Process::kSoftware, 2000);
  const double naive = 10 * (300 + 200.0) * std::expm1(105.0 / 300);
  EXPECT_GT(std::abs(got.total - naive), 10 * got.error);
  EXPECT_LT(std::abs(got.total - expected_run_s(1000, 100, 5, {{1.0 / 300, 200}})), 4.5 * got.error);
}

TEST(ClosedForms, FirstOrderMeetsTheExactOne) {
  // w = 10, dt = 1000, R = 600. The exact form charges half of L = dt + w for a failure where the first order
  // charges half of dt: they differ by r w / 2 and by the second order, (r (R + L / 2))^2.
  for (const double rate : {1e-5, 1e-6, 1e-7}) {
    const double exact = 1e6 / expected_run_s(1e6, 1000, 10, {{rate, 600}});
    const double second = rate * (600 + 505.0);
    EXPECT_LE(std::abs(exact - expected_ettr({rate, 600, 1000, 10})), rate * 5 + 1.1 * second * second)
        << rate;
  }
  // Control: half the restart is far outside.
  EXPECT_GT(
      std::abs(1e6 / expected_run_s(1e6, 1000, 10, {{1e-6, 600}}) - expected_ettr({1e-6, 300, 1000, 10})),
      10 * (1e-6 * 5));
  EXPECT_EQ(expected_run_s(1000, 100, 5, {}), 1050);
  EXPECT_EQ(expected_run_s(1030, 100, 5, {{0, 60}}), 1085);
  EXPECT_TRUE(std::isinf(expected_run_s(1e6, 1000, 10, {{100, 1000}})));
  EXPECT_TRUE(std::isinf(young_daly_interval(10, seconds_between(0))));
  // One kind: Daly's e^(r R) (e^(r L) - 1) / r.
  EXPECT_NEAR(expected_run_s(100, 100, 10, {{1e-3, 500}}), std::exp(0.5) * std::expm1(0.11) * 1000, 1e-9);
}

TEST(ClosedForms, BestInterval) {
  // sqrt(2 * 10 * 1e6) = 4472 s where failures are rare; e^(r L) moves it by little.
  const std::vector<FailureKind> rare{{1e-6, 600}};
  const double best = best_interval_s(1e8, 10, 1, rare);
  EXPECT_NEAR(best / young_daly_interval(10, 1e6), 1, 0.01);
  const auto time = [&](double x) { return expected_run_s(1e8, x, 10, rare); };
  EXPECT_LT(time(best), time(1.3 * best));
  EXPECT_LT(time(best), time(best / 1.3));
}

// A model in which everything happens.
RunModel busy() {
  RunModel m = quiet();
  m.nodes = 64;
  m.work = ticks(20 * kDay);
  m.interval = ticks(3600.0);
  m.memory_interval = ticks(60.0);
  m.memory_stall = ticks(0.2);
  m.settle = ticks(300.0);
  m.replicas = 2;
  m.kept = 3;
  m.detection = ticks(30.0);
  m.load_storage = ticks(100.0);
  m.load_memory = ticks(3.0);
  m.restart_waited = ticks(500.0);
  m.spares = 1;
  m.repair = ticks(kDay);
  m.refill = ticks(1800.0);
  m.notice = ticks(120.0);
  m.silent_detection = ticks(7200.0);
  m.slow_low = 1.1, m.slow_high = 1.5;
  m.slow_lasts = ticks(7200.0);
  m.evicts_slow = true;
  m.maintenance_every = ticks(3 * kDay);
  m.maintenance_lasts = ticks(3600.0);
  m.replica_nodes = 8;
  m.shrunk = {1, 8.0 / 7};
  m.rate(Process::kHardware).per_node_s = 0.03 / kDay;
  m.rate(Process::kSoftware) = {0.005 / kDay, 0.3 / kDay};
  m.rate(Process::kSilent).per_node_s = 0.002 / kDay;
  m.rate(Process::kSlow).per_node_s = 0.003 / kDay;
  m.rate(Process::kPreempt).per_node_s = 0.01 / kDay;
  return m;
}

TEST(Run, IsConservedToTheTick) {
  const RunModel m = busy();
  RunOutcome sum;
  for (const RunOutcome& r : simulate_runs(m, {.seed = 3, .runs = 10'000, .threads = 2})) {
    ASSERT_TRUE(is_conserved(r, m));
    for (const Ticks part :
         {r.work, r.lost, r.slow, r.checkpoint, r.detection, r.restart, r.wait, r.maintenance})
      ASSERT_GE(part, Ticks{0});
    ASSERT_GE(r.total, m.work);
    for (std::size_t p = 0; p < kProcesses; ++p) sum.events[p] += r.events[p];
    sum.evictions += r.evictions, sum.planned += r.planned, sum.old_rollbacks += r.old_rollbacks;
    sum.wait += r.wait, sum.slow += r.slow;
  }
  // Everything did happen.
  for (const std::int64_t n : sum.events) EXPECT_GT(n, 1000);
  EXPECT_GT(sum.evictions, 1000);
  EXPECT_GT(sum.planned, 1000);
  EXPECT_GT(sum.old_rollbacks, 100);
  EXPECT_TRUE(sum.wait > Ticks{0});
  EXPECT_TRUE(sum.slow > Ticks{0});
  // Control: a tick that is not accounted for is seen.
  RunOutcome wrong = simulate_run(m, 3, 0, 1'000'000);
  wrong.restart += Ticks{1};
  EXPECT_FALSE(is_conserved(wrong, m));
}

TEST(Run, IsAFunctionOfSeedAndModel) {
  const RunModel m = busy();
  const auto one = simulate_runs(m, {.seed = 3, .runs = 500, .threads = 1});
  EXPECT_EQ(one, simulate_runs(m, {.seed = 3, .runs = 500, .threads = 3}));
  EXPECT_EQ(one, simulate_runs(m, {.seed = 3, .runs = 500, .threads = 8}));
  EXPECT_NE(one, simulate_runs(m, {.seed = 4, .runs = 500, .threads = 1}));
  EXPECT_NE(one[0], one[1]);
  EXPECT_EQ(one[77], simulate_run(m, 3, 77, 1'000'000));
}

TEST(Run, SilentFailuresCostTheirDetectionAndHalfAnInterval) {
  RunModel m = quiet();
  m.work = ticks(1e6);
  m.stall = Ticks{0};
  m.kept = 1'000'000;
  m.silent_detection = ticks(500.0);
  m.rate(Process::kSilent).per_job_s = 1e-5;
  const Means got = means(m, Process::kSilent);
  // From the checkpoint before it, 50 s earlier in the mean, until it is noticed after 500 s.
  EXPECT_NEAR(got.lost / got.events, 550, 10);
  // Storage that keeps one newest has it where it was noticed at once, and else the hour's: half an hour
  // more.
  m.kept = 1;
  const Means old = means(m, Process::kSilent);
  EXPECT_NEAR(old.lost / old.events, 550 + std::exp(-0.1) * 1800, 150);
  // And the day's where that is not from the last day.
  m.silent_detection = ticks(30 * 3600.0);
  m.work = ticks(4e6);
  const Means older = means(m, Process::kSilent);
  EXPECT_NEAR(older.lost / older.events, 30 * 3600 + std::exp(-24 / 30.0) * 43'200, 12'000);
}

TEST(Run, WaitsForTheRepairWhereThereIsNoSpare) {
  RunModel m = quiet();
  m.work = ticks(1e6);
  m.spares = 0;
  m.repair = ticks(3000.0);
  m.rate(Process::kHardware).per_node_s = 1e-6;  // ten nodes: once in 1e5 s
  const Means none = means(m, Process::kHardware);
  EXPECT_NEAR(none.wait / none.events, 3000, 100);
  m.spares = 3;
  const Means some = means(m, Process::kHardware);
  EXPECT_LT(some.wait, 0.001 * none.wait + 1);
  m.spares.reset();  // a cluster with free nodes
  EXPECT_EQ(means(m, Process::kHardware).wait, 0);
}

TEST(Run, GoesOnWithFewerReplicas) {
  RunModel m = quiet();
  m.work = ticks(1e6);
  m.spares = 0;
  m.repair = ticks(3000.0);
  m.rate(Process::kHardware).per_node_s = 1e-6;
  m.replica_nodes = 2;
  m.shrunk = {1, 1.25};  // four of five replicas
  const Means got = means(m, Process::kHardware);
  // Of the 3000 s of a repair a fifth is lost, not all; waiting is left for a second failure in that time.
  EXPECT_NEAR(got.slow / got.events, 3000 * (1 - 1 / 1.25), 60);
  EXPECT_LT(got.wait / got.events, 200);
}

TEST(Run, AnnouncedPreemptionsLoseNothing) {
  RunModel m = quiet();
  m.work = ticks(1e6);
  m.rate(Process::kPreempt).per_node_s = 1e-6;
  m.notice = ticks(5.0);  // as long as a checkpoint
  EXPECT_EQ(means(m, Process::kPreempt).lost, 0);
  m.notice = ticks(4.9);
  const Means late = means(m, Process::kPreempt);
  EXPECT_NEAR(late.lost / late.events, 100 * 100 / 105.0 / 2 + 100 * 5 / 105.0,
              3);  // and in a checkpoint, all
}

TEST(Run, SpotCapacityComesBackLater) {
  RunModel m = quiet();  // on demand there is always a free node
  m.work = ticks(1e6);
  m.rate(Process::kPreempt).per_node_s = 1e-6;
  m.refill = ticks(1800.0);
  const Means got = means(m, Process::kPreempt);
  EXPECT_NEAR(got.wait / got.events, 1800, 60);
  m.rate(Process::kHardware) = m.rate(Process::kPreempt);
  m.rate(Process::kPreempt) = {};
  EXPECT_EQ(means(m, Process::kHardware).wait, 0);
}

TEST(Run, SlowNodesSlowTheStep) {
  RunModel m = quiet();
  m.work = ticks(1e6);
  m.stall = Ticks{0};
  m.slow_low = m.slow_high = 1.25;
  m.slow_lasts = ticks(2000.0);
  m.rate(Process::kSlow).per_job_s = 1e-5;
  const Means got = means(m, Process::kSlow);
  EXPECT_NEAR(got.slow / got.events, 2000 * (1 - 1 / 1.25), 10);  // less where two overlap: 2 %
}

TEST(Run, MemoryIsLostWithTheNodesThatHoldAPart) {
  RunModel m = quiet();
  m.work = ticks(1e6);
  m.interval = ticks(10'000.0);
  m.stall = Ticks{0};
  m.memory_interval = ticks(10.0);
  m.rate(Process::kHardware).per_node_s = 1e-6;
  m.replicas = 2;
  const Means two = means(m, Process::kHardware);
  EXPECT_LT(two.lost / two.events, 10);  // half a memory interval, and rarely both nodes
  m.replicas = 1;
  const Means one = means(m, Process::kHardware);
  EXPECT_NEAR(one.lost / one.events, 5000, 250);  // half an interval of storage
  m.rate(Process::kHardware) = {};
  m.rate(Process::kSoftware).per_job_s = 1e-5;
  const Means software = means(m, Process::kSoftware);
  EXPECT_NEAR(software.lost / software.events, 5, 0.5);  // processes die, memory stays
}

TEST(Run, SaysWhenItDoesNotEnd) {
  RunModel m = quiet();
  m.rate(Process::kHardware).per_node_s = 1;  // every 0.1 s, a restart takes 20
  EXPECT_THROW(simulate_run(m, 1, 0, 10'000), Error);
  EXPECT_THROW(simulate_runs(m, {.seed = 1, .runs = 1000, .threads = 2}), Error);
  m.rate(Process::kHardware).per_node_s = 0.01;  // ten in a segment: it starts again and again
  EXPECT_THROW(simulate_run(m, 1, 0, 10'000), Error);
  m = quiet();
  m.spares = 0;
  m.repair = ticks(1e9);
  m.rate(Process::kHardware).per_node_s = 1e-3;  // 32 years a repair
  EXPECT_THROW(simulate_run(m, 1, 0, 10'000), Error);
}

TEST(Random, StreamsAreOfTheirDistributions) {
  for (const double x : {1e-300, 1e-16, 0.3, 0.70710678, 1.0, 1.5, 3.0, 1e17})
    EXPECT_NEAR(natural_log(x), std::log(x), 3e-16 * std::max(1.0, std::abs(std::log(x)))) << x;
  RandomStream random(5, 6, 7), same(5, 6, 7), other(5, 7, 7);
  double sum = 0, squares = 0;
  constexpr int kDraws = 200'000;
  for (int i = 0; i < kDraws; ++i) {
    const double e = random.exponential();
    sum += e / kDraws, squares += e * e / kDraws;
  }
  EXPECT_NEAR(sum, 1, 5 / std::sqrt(kDraws));             // standard deviation 1
  EXPECT_NEAR(squares, 2, 5 * std::sqrt(20.0 / kDraws));  // of e^2: variance 24 - 4
  EXPECT_NE(same.uniform(), other.uniform());
}

TEST(Stragglers, LargestOfNormals) {
  EXPECT_NEAR(mean_of_largest(1), 0, 1e-5);
  EXPECT_NEAR(mean_of_largest(2), 1 / std::sqrt(M_PI), 1e-5);
  EXPECT_NEAR(mean_of_largest(3), 1.5 / std::sqrt(M_PI), 1e-5);
  // Of one, e^(s z) has mean e^(s^2 / 2).
  EXPECT_NEAR(step_spread(0.1, 1).mean, std::exp(0.005), 1e-5);
  EXPECT_NEAR(step_spread(0.1, 1).p95, std::exp(0.1 * 1.644854), 1e-6);
  EXPECT_NEAR(quantile_of_largest(0.5, 1), 0, 1e-12);
  EXPECT_NEAR(quantile_of_largest(0.25, 2), 0, 1e-12);             // both below the median
  EXPECT_NEAR(quantile_of_largest(0.5, 1'000'000), 4.827, 0.001);  // 1 - F = 6.93e-7
  EXPECT_EQ(step_spread(0, 1000).mean, 1);
}

// --- dollars ----------------------------------------------------------------------------------------
TEST(Money, AddsUp) {
  RunModel m = quiet();
  m.work = ticks(8 * kDay);
  RunOutcome r;
  r.total = ticks(10 * kDay);
  r.work = ticks(8 * kDay);
  r.restart = ticks(2 * kDay);
  Tariff t{
      .payment = Payment::kOnDemand, .node_hour = 30, .storage_gb_month = 0.1, .stored_gb = 1000, .kept = 2};
  t.busy_watts = 10'000, t.idle_watts = 4'000, t.spares = 2;
  RunCost c = cost_of(r, m, t);
  EXPECT_NEAR(c.nodes, 12 * 240 * 30, 1e-6);                            // ten nodes and two spares, 240 h
  EXPECT_NEAR(c.storage, 0.1 * 1000 * (2 + 24 + 4) * 10 / 30.0, 1e-9);  // of eight days, four in the mean
  EXPECT_NEAR(c.kwh, 10 * (8 * 24 * 10 + 2 * 24 * 4) + 2 * 240 * 4, 1e-6);
  EXPECT_EQ(c.energy, 0);  // part of the price
  t.kwh = 0.08, t.carbon_g_per_kwh = 400;
  c = cost_of(r, m, t);
  EXPECT_NEAR(c.energy, 0.08 * c.kwh, 1e-9);
  EXPECT_NEAR(c.carbon_kg, 0.4 * c.kwh, 1e-9);
  t.payment = Payment::kReserved, t.term_s = 30 * kDay;
  EXPECT_NEAR(cost_of(r, m, t).nodes, 12 * 720 * 30, 1e-6);
  t.payment = Payment::kSpot, t.term_s = 0, r.away = ticks(24 * 3600.0);
  EXPECT_NEAR(cost_of(r, m, t).nodes, (12 * 240 - 24) * 30, 1e-6);
}

TEST(Summary, PercentilesAndDeadlines) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Spread s = spread_of(values);
  EXPECT_EQ(s.p5, 5);
  EXPECT_EQ(s.p50, 50);
  EXPECT_EQ(s.p95, 95);
  EXPECT_NEAR(s.mean, 50.5, 1e-9);
  RunModel m = quiet();
  std::vector<RunOutcome> runs(4);
  for (int i = 0; i < 4; ++i) runs[static_cast<std::size_t>(i)].total = ticks((i + 1) * kDay);
  const Summary sum = summary_of(m, {}, runs);
  EXPECT_EQ(sum.share_within(2.0), 0.5);
  EXPECT_EQ(sum.share_within(0.5), 0);
  // A step between 0.9 and 1.2 of what is predicted, 80 % of the time.
  std::vector<RunOutcome> many(4000, runs[0]);
  const Summary wide = summary_of(m, {}, many, {0.9, 1.2, 1});
  EXPECT_NEAR(wide.share_within(0.9), 0.1, 0.02);
  EXPECT_NEAR(wide.share_within(1.2), 0.9, 0.02);
}

// --- advice -----------------------------------------------------------------------------------------
Operation small_operation() {
  Operation o;
  ReliabilityAssumptions& a = o.assumed;
  a.failures = {.hardware_per_node_day = 0.02,
                .software_per_node_day = 0.01,
                .software_per_job_day = 0,
                .detection = RunTime{60},
                .repair = RunTime{kDay}};
  a.silent = {.per_node_day = 0, .detection = RunTime{3600}};
  a.restart = {.hardware = RestartKind::kRequeue,
               .software = RestartKind::kRequeue,
               .requeue = RunTime{600},
               .requeue_per_device = RunTime{0}};
  a.checkpoint = {.kind = CheckpointKind::kSync,
                  .writer_bandwidth = Bandwidth{100'000'000},
                  .device_bandwidth = Bandwidth{30'000'000'000},
                  .writers = Writers::kAll};
  a.stragglers = {.slow_low = 1.0, .slow_high = 1.0};
  o.job = {.nodes = 100,
           .devices_per_node = 8,
           .ranks = 800,
           .replicas = 100,
           .step_s = 10,
           .steps = 400'000,
           .checkpoint_bytes = 1e12,
           .node_bandwidth = 50e9};
  o.prices.on_demand_node_hour = 20;
  return o;
}

TEST(Advice, IntervalOfTheFormulaIsTheSimulatedOne) {
  // 1e12 / (800 * 1e8) = 12.5 s a checkpoint, 3 stops a day: sqrt(2 * 12.5 * 28,800) = 849 s.
  const IntervalAdvice a = best_interval(small_operation(), {.seed = 2, .runs = 300, .threads = 2});
  EXPECT_NEAR(a.young_daly_s, 848.5, 0.1);
  EXPECT_NEAR(a.exact_s / a.young_daly_s, 1, 0.03);
  EXPECT_LE(a.shortest_s, a.exact_s * 1.02);
  EXPECT_GE(a.longest_s, a.exact_s * 0.98);
  EXPECT_LT(a.longest_s, 4 * a.exact_s);
  // The time of the ends is longer than that of the best.
  EXPECT_GT(a.tried.front().second, a.days);
  EXPECT_GT(a.tried.back().second, a.days);
}

TEST(Advice, SparesEndTheWaiting) {
  const std::vector<SpareNodes> spares =
      spares_to_buy(small_operation(), {.seed = 2, .runs = 200, .threads = 2});
  // Two nodes fail a day and are away for a day: two are away in the mean, and seven suffice.
  ASSERT_GE(spares.size(), 3U);
  EXPECT_LE(spares.front().nodes, 1);
  EXPECT_GT(spares.front().wait_share, 0.05);
  EXPECT_LT(spares.back().wait_share, 0.001);
  EXPECT_LE(spares.back().nodes, 9);
  for (std::size_t i = 1; i < spares.size(); ++i) EXPECT_LT(spares[i].wait_share, spares[i - 1].wait_share);
}

TEST(Advice, AnHourOfMtbfIsWorthWhatTheFormulaSays) {
  const Operation o = small_operation();
  const Change c = worth_of_an_hour(o, {.seed = 2, .runs = 2000, .threads = 2});
  const auto days_at = [&](double mtbf_s) {
    const double w = 12.5, interval = 10 * std::round(std::sqrt(2 * w * mtbf_s) / 10);
    return expected_run_s(4e6, interval, w, {{1 / mtbf_s, 60 + 600 + w}}) / kDay;
  };
  const double expected = days_at(28'800 + 3600) - days_at(28'800);
  EXPECT_LT(expected, -0.1);
  EXPECT_NEAR(c.days, expected, 5 * c.days_error + 0.01);
  EXPECT_NEAR(c.dollars, c.days * 24 * 100 * 20, 1);
}

TEST(Advice, SensitivitiesHaveTheRightSigns) {
  const std::vector<Sensitivity> all =
      sensitivities(small_operation(), {.seed = 2, .runs = 100, .threads = 2});
  const auto of = [&](const std::string& field) -> const Sensitivity* {
    for (const Sensitivity& s : all)
      if (s.field == field) return &s;
    return nullptr;
  };
  ASSERT_NE(of("failures/hardware_per_node_day"), nullptr);
  ASSERT_NE(of("restart/requeue"), nullptr);
  EXPECT_GT(of("restart/requeue")->twice.days, 0);
  EXPECT_LT(of("restart/requeue")->half.days, 0);
  EXPECT_LT(of("checkpoint/writer_bandwidth")->twice.days, 0);
  EXPECT_EQ(of("failures/repair"), nullptr);  // without spares to wait for it changes nothing
  EXPECT_EQ(of("silent/detection"), nullptr);
  // 3 * 46 stops: doubling 600 s of each is a day.
  EXPECT_NEAR(of("restart/requeue")->twice.days, 1.0, 0.15);
}

}  // namespace
}  // namespace orrery::sim
