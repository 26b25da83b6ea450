// SPDX-License-Identifier: Apache-2.0
//
// Simulated runs against closed forms, and what holds of every run.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "sim/reliability/closed_forms.h"
#include "sim/reliability/stragglers.h"
#include "sim/reliability/summary.h"

namespace orrery::sim {
namespace {

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
  m.work = ticks(20 * kSecondsPerDay);
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
  m.repair = ticks(kSecondsPerDay);
  m.refill = ticks(1800.0);
  m.notice = ticks(120.0);
  m.silent_detection = ticks(7200.0);
  m.slow_low = 1.1, m.slow_high = 1.5;
  m.slow_lasts = ticks(7200.0);
  m.evicts_slow = true;
  m.maintenance_every = ticks(3 * kSecondsPerDay);
  m.maintenance_lasts = ticks(3600.0);
  m.replica_nodes = 8;
  m.shrunk = {1, 8.0 / 7};
  m.rate(Process::kHardware).per_node_s = 0.03 / kSecondsPerDay;
  m.rate(Process::kSoftware) = {0.005 / kSecondsPerDay, 0.3 / kSecondsPerDay};
  m.rate(Process::kSilent).per_node_s = 0.002 / kSecondsPerDay;
  m.rate(Process::kSlow).per_node_s = 0.003 / kSecondsPerDay;
  m.rate(Process::kPreempt).per_node_s = 0.01 / kSecondsPerDay;
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

// Work from 0 to 300 s in cycles of 100 s, each with 5 s of a checkpoint behind it. Software fails at 250 s
// of work, which is 2 * 105 + 50 = 260 s after the start, is noticed 3 s later and starts again in 20 s from
// the checkpoint at 200 s.
TEST(Diary, OfAFailureByHand) {
  RunModel m = quiet();
  m.work = ticks(300.0);
  m.injected = {{ticks(250.0), ticks(3.0)}};
  Diary diary;
  const RunOutcome out = simulate_run(m, 1, 0, 100, &diary);
  const auto period = [](Doing doing, double begin, double end, double from, double to) {
    return Period{doing, ticks(begin), ticks(end), ticks(from), ticks(to)};
  };
  const std::vector<Period> expected{
      period(Doing::kWork, 0, 100, 0, 100),          period(Doing::kCheckpoint, 100, 105, 100, 100),
      period(Doing::kWork, 105, 205, 100, 200),      period(Doing::kCheckpoint, 205, 210, 200, 200),
      period(Doing::kLost, 210, 260, 200, 250),      period(Doing::kDetection, 260, 263, 200, 200),
      period(Doing::kRestart, 263, 283, 200, 200),   period(Doing::kWork, 283, 383, 200, 300),
      period(Doing::kCheckpoint, 383, 388, 300, 300)};
  EXPECT_EQ(diary.periods(), expected);
  ASSERT_EQ(diary.outages().size(), 1U);
  EXPECT_EQ(diary.outages()[0].stop, Stop::kSoftware);
  EXPECT_EQ(diary.outages()[0].begin, ticks(260.0));
  EXPECT_EQ(diary.outages()[0].end, ticks(283.0));
  EXPECT_EQ(diary.outages()[0].lost, ticks(50.0));
  EXPECT_EQ(out.total, ticks(388.0));

  const Timeline t = life_timeline(diary);
  EXPECT_EQ(t.source, "predicted: life of a run");
  ASSERT_EQ(t.slices.size(), 10U);
  EXPECT_EQ(t.names[static_cast<std::size_t>(t.slices[4].name)], "lost work");
  EXPECT_EQ(t.slices[4].start, Time{210'000'000'000'000});  // ps
  EXPECT_EQ(t.names[static_cast<std::size_t>(t.slices[9].name)], "software failed");
  EXPECT_EQ(t.slices[9].stream, 1);
}

TEST(Diary, ChangesNothingAndAddsUp) {
  RunModel m = busy();
  std::size_t outages = 0;
  for (std::uint64_t run = 0; run < 200; ++run) {
    if (run == 100) m.memory_interval = Ticks{0};  // in storage alone
    Diary diary;
    const RunOutcome out = simulate_run(m, 3, run, 1'000'000, &diary);
    ASSERT_EQ(out, simulate_run(m, 3, run, 1'000'000)) << run;
    std::array<Ticks, kDoings> time{}, work{};
    Ticks now{0};
    for (const Period& p : diary.periods()) {
      ASSERT_EQ(p.begin, now);
      ASSERT_GT(p.end, p.begin);
      now = p.end;
      time[static_cast<std::size_t>(p.doing)] += p.end - p.begin;
      work[static_cast<std::size_t>(p.doing)] += p.to - p.from;
    }
    const auto of = [](const std::array<Ticks, kDoings>& a, Doing d) {
      return a[static_cast<std::size_t>(d)];
    };
    EXPECT_EQ(now, out.total);
    EXPECT_EQ(of(time, Doing::kWork) + of(time, Doing::kSlowWork) + of(time, Doing::kLost),
              out.work + out.slow);
    EXPECT_EQ(of(work, Doing::kWork) + of(work, Doing::kSlowWork), m.work);
    EXPECT_EQ(of(work, Doing::kLost), out.lost);
    EXPECT_EQ(of(time, Doing::kCheckpoint), out.checkpoint);
    EXPECT_EQ(of(time, Doing::kDetection), out.detection);
    EXPECT_EQ(of(time, Doing::kRestart), out.restart);
    EXPECT_EQ(of(time, Doing::kWait), out.wait);
    EXPECT_EQ(of(time, Doing::kMaintenance), out.maintenance);
    Ticks lost{0}, down{0}, until{0};
    for (const Outage& o : diary.outages()) {
      EXPECT_GE(o.begin, until);
      EXPECT_GE(o.end, o.begin);
      until = o.end;
      lost += o.lost;
      down += o.end - o.begin;
    }
    EXPECT_EQ(lost, out.lost);
    EXPECT_EQ(down, out.detection + out.restart + out.wait + out.maintenance);
    outages += diary.outages().size();
  }
  EXPECT_GT(outages, 200U * 20);
}

TEST(Diary, IsDrawnSmallerWhereARunIsLong) {
  RunModel m = quiet();
  m.work = ticks(30 * kSecondsPerDay);
  m.interval = ticks(kSecondsPerDay);
  Diary diary;
  const RunOutcome out = simulate_run(m, 1, 0, 100, &diary);
  const Timeline t = life_timeline(diary);
  EXPECT_EQ(t.source, "predicted: life of a run, 1000 s of it are one here");
  EXPECT_EQ(t.length(), Time{out.total.value});  // ns / 1000 in ps
  m.interval = ticks(2.0);
  Diary full;
  EXPECT_THROW(simulate_run(m, 1, 0, 100, &full), Error);  // 1,296,000 checkpoints
}

TEST(Diary, LeavesOutShortCheckpoints) {
  RunModel m = quiet();
  m.work = ticks(27 * 365 * kSecondsPerDay);
  m.interval = ticks(0.001);
  m.stall = Ticks{1};  // 8.5e11 checkpoints
  Diary diary(ticks(1.0));
  const RunOutcome out = simulate_run(m, 1, 0, 100, &diary);
  ASSERT_EQ(diary.periods().size(), 1U);
  EXPECT_EQ(diary.periods()[0].doing, Doing::kWork);
  EXPECT_EQ(diary.periods()[0].end, out.total);
  EXPECT_EQ(diary.periods()[0].to, m.work);
  // Those in memory are left out and those in storage are not; the run is the same.
  m = busy();
  m.stall = ticks(5.0);
  for (std::uint64_t run = 0; run < 50; ++run) {
    Diary all, some(ticks(1.0));
    const RunOutcome same = simulate_run(m, 3, run, 1'000'000, &all);
    ASSERT_EQ(same, simulate_run(m, 3, run, 1'000'000, &some));
    EXPECT_LT(some.periods().size(), all.periods().size() / 5);
    EXPECT_EQ(some.outages().size(), all.outages().size());
    Ticks work{0}, now{0};
    for (const Period& p : some.periods()) {
      ASSERT_EQ(p.begin, now);
      now = p.end;
      if (p.doing != Doing::kLost) work += p.to - p.from;
    }
    EXPECT_EQ(now, same.total);
    EXPECT_EQ(work, m.work);
  }
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

}  // namespace
}  // namespace orrery::sim
