// SPDX-License-Identifier: Apache-2.0
//
// Runs against published ones: what the formulas and the simulation say of the rates, times and sizes that
// others have measured. Each test states how near they must come.
#include <gtest/gtest.h>

#include <boost/math/distributions/normal.hpp>

#include "core/reliability_profile.h"
#include "core/random.h"
#include "sim/reliability/summary.h"

namespace orrery::sim {
namespace {

constexpr double kDay = kSecondsPerDay, kHour = 3600;

DataFolders data() {
  return DataFolders(ORRERY_ROOT);
}
ReliabilityAssumptions rates(const std::string& name) {
  return load_assumptions(std::nullopt, name, Cursor{"test"}, data()).values;
}
double stops_per_node_day(const ReliabilityAssumptions& a) {
  return *a.failures.hardware_per_node_day + *a.failures.software_per_node_day;
}
double mean_ettr(const JobModel& m, std::int64_t runs = 400) {
  double sum = 0;
  for (const RunOutcome& r : simulate_runs(m.run, {.seed = 7, .runs = runs, .threads = 2})) {
    EXPECT_TRUE(is_conserved(r, m.run));
    sum += ettr(r, m.run) / static_cast<double>(runs);
  }
  return sum;
}
void expect_within(double value, double published, double share) {
  EXPECT_LE(std::abs(value / published - 1), share) << value << ", published " << published;
}

// Llama 3 405B, arXiv 2407.21783, table 5: 419 unexpected interruptions of 2,048 nodes in 54 days. Its plan
// has 16,384 ranks in replicas of 128; a checkpoint has 405e9 * 14 bytes.
Job llama_3() {
  return {.nodes = 2048,
          .devices_per_node = 8,
          .ranks = 16384,
          .replicas = 128,
          .step_s = 4.6,
          .steps = 1'000'000,
          .checkpoint_bytes = 405e9 * 14,
          .node_bandwidth = 400e9};
}

TEST(PublishedReliability, RateOfLlama3) {
  const ReliabilityAssumptions a = rates("llama-3");
  const double all = stops_per_node_day(a) + *a.silent.per_node_day;
  EXPECT_NEAR(all, 419.0 / (54 * 2048), 1e-5);                                     // 3.79e-3
  EXPECT_NEAR(seconds_between(2048 * all / kDay) / kHour, 54 * 24.0 / 419, 0.01);  // 3.09 h
  // 47 planned ones in the same time.
  EXPECT_NEAR(54 * kDay / a.maintenance.every->value, 47, 0.1);
}

// "More than 90 % effective training time". The restart is ByteRobust's from the queue for as many GPUs
// (430.7 + 16,384 * 0.0219 = 789 s), after a detection of 60 s, the interval Young's and Daly's for a write
// of 5.67 TB / (16,384 * 150 MB/s) = 2.3 s. Tolerance: 0.02.
TEST(PublishedReliability, EttrOfLlama3) {
  const JobModel m = model_of(rates("llama-3"), llama_3());
  EXPECT_NEAR(m.write_s, 2.307, 0.001);
  EXPECT_NEAR(m.interval_s, std::sqrt(2 * 2.307 * 24 * kHour / (2048 * 0.003736)), 2.5);  // 228 s, in steps
  EXPECT_NEAR(m.restart_hardware_s, 60 + 430.7 + 16384 * 0.0219 + 2.307, 0.01);
  EXPECT_NEAR(expected_ettr(m.ettr_terms()), 0.90, 0.02);
  EXPECT_NEAR(mean_ettr(m, 100), 0.90, 0.02);
  // Control: restarts that take four times as long do not give it.
  ReliabilityAssumptions slow = rates("llama-3");
  slow.restart.requeue->value *= 4;
  slow.restart.requeue_per_device->value *= 4;
  EXPECT_LT(mean_ettr(model_of(slow, llama_3()), 50), 0.80);
}

// The test vectors of Kokolis' formula: what an ETTR allows for each failure.
TEST(PublishedReliability, WhatAnEttrAllows) {
  EXPECT_NEAR(allowed_loss_per_failure(0.90, 2048 * 3.8e-3 / kDay) / 60, 18.5, 0.05);
  EXPECT_NEAR(allowed_loss_per_failure(0.97, 175 / (90 * kDay)) / 60, 22.2, 0.05);
  EXPECT_NEAR(allowed_loss_per_failure(0.97, 125 / (30 * kDay)) / 60, 10.4, 0.05);
  // u0 + dt / 2 = 18.5 min is 0.90 again.
  EXPECT_NEAR(expected_ettr({2048 * 3.8e-3 / kDay, 18.5 * 60 - 100, 200, 0}), 0.90, 0.001);
}

// RSC-1 and RSC-2: projections from the failures of nodes, 24 h / (nodes * rate). Tolerance: 2 %.
TEST(PublishedReliability, MeanTimesOfRsc) {
  const double nodes_alone = *rates("rsc-1").failures.hardware_per_node_day;
  const auto hours = [](double per_node_day, double gpus) {
    return seconds_between(gpus / 8 * per_node_day / kDay) / kHour;
  };
  expect_within(hours(nodes_alone, 16384), 1.8, 0.02);     // 24 / (2,048 * 6.5e-3) = 1.803
  expect_within(hours(nodes_alone, 131072), 0.225, 0.02);  // 0.2254
  // The measured 7.9 h of 1,024 GPUs is not 24 / (128 * 6.5e-3) = 28.8 h: jobs fail for other reasons too.
  // Jobs of one node do once in 47.7 days, 0.02096 a day; 128 such nodes do once in 8.9 h. Tolerance: 15 %.
  EXPECT_NEAR(hours(nodes_alone, 1024), 28.8, 0.1);
  EXPECT_NEAR(stops_per_node_day(rates("rsc-1")), 1 / 47.7, 1e-5);
  expect_within(hours(stops_per_node_day(rates("rsc-1")), 1024), 7.9, 0.15);
}

// ByteRobust, table 7: restarts on 2,048 to 16,384 GPUs. Two constants a line, four rows; tolerance: 15 %.
TEST(PublishedReliability, RestartsOfByteRobust) {
  const RestartTimes r = rates("default").restart;
  const double gpus[] = {2048, 4096, 8192, 16384}, requeue[] = {454, 545, 635, 768},
               update[] = {46, 51, 54, 65};
  for (int i = 0; i < 4; ++i) {
    const auto n = static_cast<std::int64_t>(gpus[i]);
    const double queue = restart_time_s(r, RestartKind::kRequeue, n);
    expect_within(queue, requeue[i], 0.15);
    expect_within(restart_time_s(r, RestartKind::kInPlace, n), update[i], 0.15);
    // Warm standbys are 10.87 times as fast as the queue, hot updates 11.04 times.
    expect_within(queue / restart_time_s(r, RestartKind::kHotSpare, n), 10.87, 0.02);
    expect_within(queue / restart_time_s(r, RestartKind::kInPlace, n), 11.04, 0.15);
  }
  // Control: a restart that does not grow with the job, the smallest one's, is not within the tolerance.
  RestartTimes flat = r;
  flat.requeue = RunTime{454};
  flat.requeue_per_device = RunTime{0};
  EXPECT_LT(restart_time_s(flat, RestartKind::kRequeue, 16384), (1 - 0.15) * 768);
}

// ByteRobust, tables 5 and 8: the time that a checkpoint in every step stops the job, of TP8 PP8 with 70e9
// and of TP8 PP16 with 256e9 parameters.
struct Stalls {
  double parameters;
  std::int64_t gpus, model_ranks;
  double sync_s, sync_kept, async_s, async_kept;  // kept: share of the MFU
};
constexpr Stalls kStalls[] = {{70e9, 2048, 64, 6.77, 0.398, 0.04, 0.992},
                              {70e9, 4096, 64, 7.14, 0.391, 0.03, 0.991},
                              {256e9, 8192, 128, 13.02, 0.428, 0.01, 0.997},
                              {256e9, 16384, 128, 12.98, 0.431, 0.02, 0.991}};

TEST(PublishedReliability, StallsOfByteRobust) {
  Checkpoints c = rates("default").checkpoint;
  c.writers = Writers::kReplica;
  // The one constant: what a rank of one replica writes of 14 bytes a parameter. 70e9 * 14 / 64 / 6.77 s is
  // 2.26 GB/s; the other rows are 2.14, 2.15 and 2.16.
  c.writer_bandwidth = Bandwidth{2'180'000'000};
  for (const Stalls& s : kStalls) {
    const Job job{.ranks = s.gpus, .replicas = s.gpus / s.model_ranks};
    const double write = write_time_s(c, 14 * s.parameters, job);
    expect_within(write, s.sync_s, 0.15);
    // Table 8 has times and shares: the step between is 4.5 s for the smaller model and 9.8 s for the larger.
    const double step = s.parameters < 1e11 ? 4.5 : 9.8;
    EXPECT_NEAR(step / (step + write), s.sync_kept, 0.02);
    // A copy to the host of each rank's part at 30 GB/s: 16, 8, 15 and 7 ms, printed as 40, 30, 10 and 20.
    // They are one digit long, so they are held to 30 ms and to 1 % of the MFU.
    const double copy = copy_time_s(c, 14 * s.parameters, job);
    EXPECT_NEAR(copy, s.async_s, 0.03);
    EXPECT_NEAR(step / (step + copy), s.async_kept, 0.01);
  }
  // Control: were all ranks to write, the times would fall with the replicas, and table 8's do not.
  c.writers = Writers::kAll;
  const Job small{.ranks = 2048, .replicas = 32}, large{.ranks = 4096, .replicas = 64};
  EXPECT_NEAR(write_time_s(c, 980e9, small) / write_time_s(c, 980e9, large), 2, 1e-9);
}

// ByteRobust, table 4: 175 incidents of a dense model in 90 days and 125 of a mixture of experts in 30, on
// 9,600 GPUs, at an ETTR of 0.97. Tolerance: 0.01 below.
TEST(PublishedReliability, EttrOfByteRobust) {
  double dense = 1;
  for (const auto& [name, incidents, days] :
       {std::tuple{"byterobust-dense", 175, 90}, std::tuple{"byterobust-moe", 125, 30}}) {
    const ReliabilityAssumptions a = rates(name);
    const double all = stops_per_node_day(a) + *a.silent.per_node_day;
    expect_within(all * 1200 * days, incidents, 0.001);
    const Job job{.nodes = 1200,
                  .devices_per_node = 8,
                  .ranks = 9600,
                  .replicas = 75,
                  .step_s = 9.8,
                  .steps = static_cast<std::int64_t>(days * kDay / 9.8),
                  .checkpoint_bytes = 256e9 * 14,
                  .node_bandwidth = 400e9};
    const JobModel m = model_of(a, job);
    const double share = mean_ettr(m);
    const bool mixture = incidents == 125;
    if (mixture)
      EXPECT_NEAR(share, 0.97, 0.01);  // lower than the dense one's, as published
    else
      EXPECT_GE(share, 0.97);
    EXPECT_LT(share, mixture ? dense - 0.01 : 0.995) << name;
    dense = share;
    // Control: from the queue, with checkpoints in storage every half hour, it is not reached.
    ReliabilityAssumptions plain = a;
    plain.restart.hardware = plain.restart.software = RestartKind::kRequeue;
    plain.checkpoint.kind = CheckpointKind::kSync;
    plain.checkpoint.interval = RunTime{1800};
    plain.failures.detection = RunTime{600};
    EXPECT_LT(mean_ettr(model_of(plain, job)), mixture ? 0.91 : 0.96) << name;
  }
}

// BLOOM: 2.3 TB in 40 s every 3 h is 40 / 10,840 = 0.37 % of the time. Tolerance: 0.01 points.
TEST(PublishedReliability, CheckpointsOfBloom) {
  ReliabilityAssumptions a = rates("bloom");
  for (auto* rate : {&a.failures.hardware_per_node_day, &a.failures.software_per_node_day,
                     &a.stragglers.slow_per_node_day})
    *rate = 0;
  const Job job{.nodes = 48,
                .devices_per_node = 8,
                .ranks = 384,
                .replicas = 8,
                .step_s = 100,
                .steps = 105 * 864,
                .checkpoint_bytes = 2.3e12,
                .node_bandwidth = 50e9};
  const JobModel m = model_of(a, job);
  EXPECT_NEAR(m.write_s, 2.3e12 / (384 * 150e6), 1e-9);  // 39.9 s
  const RunOutcome run = simulate_run(m.run, 1, 0, 1000);
  EXPECT_EQ(run.checkpoints, 105 * 8);  // 3.5 months of 30 days; 720 are published
  EXPECT_NEAR(100 * ratio(run.checkpoint, run.total), 0.37, 0.01);
  // By the recipe: 14 bytes of 176.2e9 parameters are 2.47 TB, where 2.3 TB are 13.1 bytes: 7 % more.
  Job recipe = job;
  recipe.checkpoint_bytes = 176.2e9 * 14;
  const JobModel by_recipe = model_of(a, recipe);
  EXPECT_NEAR(100 * by_recipe.stall_s / (by_recipe.interval_s + by_recipe.stall_s), 0.37, 0.03);
}

// ByteDance, OSDI 25, 3,079 jobs. Ranks of a job that differ by s in the mean over a run make it 1 + s max(z)
// times longer; s is ln-normal over jobs with median 3.48 % and spread 0.88, jobs have 16 to 512 replicas,
// and 0.72 % of jobs (1.7 % of 42.5 %) have a sick worker, which makes them 3.04 times longer. Two constants
// were chosen, median and spread; five published numbers follow.
TEST(PublishedReliability, SharesOfStragglers) {
  RandomStream random(3, 0, 0);
  const boost::math::normal normal;
  constexpr int kJobs = 60'000;
  int slow = 0, tenth = 0, hundredth = 0;
  double wasted = 0, slow_sum = 0;
  double largest[6];
  for (int i = 0; i < 6; ++i) largest[i] = mean_of_largest(16LL << i);
  for (int j = 0; j < kJobs; ++j) {
    const double spread = 0.0348 * std::exp(0.88 * boost::math::quantile(normal, random.uniform()));
    double slowdown = 1 + spread * largest[static_cast<int>(random.uniform() * 6)];
    if (random.uniform() < 0.0072) slowdown *= 3.04;
    const double waste = 1 - 1 / slowdown;
    wasted += waste / kJobs;
    if (slowdown >= 1.1) ++slow, slow_sum += slowdown;
    if (waste >= 0.213) ++tenth;
    if (waste >= 0.45) ++hundredth;
  }
  EXPECT_NEAR(100.0 * slow / kJobs, 42.5, 1.5);
  EXPECT_NEAR(100 * wasted, 10.4, 0.5);
  EXPECT_NEAR(100.0 * tenth / kJobs, 10, 1);       // "more than 10 %"
  EXPECT_NEAR(100.0 * hundredth / kJobs, 1, 0.5);  // "about 1 %"
  EXPECT_NEAR(slow_sum / slow, 1.28, 0.03);
}

// PRISM, arXiv 2510.15596: steps of 64k GPUs take 18.6, 18.8 and 19.3 s (p5, p50, p95). Products of one GPU
// vary by 0.98 to 6.46 % in time; of an even distribution between them the root mean square is sqrt((0.98^2 +
// 0.98 * 6.46 + 6.46^2) / 3) = 4.04 %, by which a rank's step varies if its kernels are slow together.
// Tolerance: 0.5 % of the step.
TEST(PublishedReliability, QuantilesOfPrism) {
  const double noise = std::sqrt((0.98 * 0.98 + 0.98 * 6.46 + 6.46 * 6.46) / 3) / 100;
  EXPECT_NEAR(noise, 0.0404, 1e-4);
  const StepSpread s = step_spread(noise, 65'536);
  EXPECT_NEAR(s.p5 / s.p50, 18.6 / 18.8, 0.005);
  EXPECT_NEAR(s.p95 / s.p50, 19.3 / 18.8, 0.005);
  // The largest of many is skewed: the upper quantile is further away.
  EXPECT_GT(s.p95 - s.p50, 1.5 * (s.p50 - s.p5));
  // Control: were a thousand kernels slow independently, the quantiles would lie 0.1 % around the median.
  const StepSpread independent = step_spread(noise / std::sqrt(1000.0), 65'536);
  EXPECT_LT(independent.p95 / independent.p50 - 1, 0.001);
  EXPECT_GT(std::abs(independent.p95 / independent.p50 - 19.3 / 18.8), 0.02);
}

// Bamboo, NSDI 23: on spot nodes redundant computation gives 3.7 times the throughput of checkpoints and
// restarts, at 1 / 2.4 of the cost on demand. Which interruptions it had is not stated; here they come to a
// node once in ten hours, others come 30 min later, spot costs 0.3 of on demand, a restart takes 5 min.
// Bamboo: a copy in a neighbour's memory after each step, steps 20 % longer, and the job goes on with fewer
// replicas. Asserted: the direction, and both ratios within a factor of 1.6.
TEST(PublishedReliability, DirectionOfBamboo) {
  ReliabilityAssumptions spot = rates("default");
  spot.prices.payment = Payment::kSpot;
  spot.prices.spot_node_hour = from_dollars(3);
  spot.preemption = {.per_node_day = 2.4, .notice = RunTime{0}, .refill = RunTime{1800}};
  spot.failures.hardware_per_node_day = spot.failures.software_per_node_day = 0;
  spot.stragglers.slow_per_node_day = spot.silent.per_node_day = 0;
  spot.restart.requeue = RunTime{300};
  spot.restart.requeue_per_device = RunTime{0};
  spot.restart.hot_spare = RunTime{20};
  spot.spares.nodes = 0;
  Job job{.nodes = 64,
          .devices_per_node = 1,
          .ranks = 64,
          .replicas = 16,
          .step_s = 10,
          .steps = 8640,
          .checkpoint_bytes = 10e9,
          .node_bandwidth = 1e9};
  const auto run = [&](const ReliabilityAssumptions& a, const Job& j) {
    const JobModel m = model_of(a, j);
    const Tariff t = tariff_of(a, j, m, {.on_demand_node_hour = 10});
    return summary_of(m.run, t, simulate_runs(m.run, {.seed = 5, .runs = 200, .threads = 2}));
  };
  const Summary restarts = run(spot, job);
  ReliabilityAssumptions bamboo = spot;
  bamboo.restart.hardware = RestartKind::kHotSpare;
  bamboo.checkpoint.kind = CheckpointKind::kMemory;
  bamboo.checkpoint.replicas = 2;
  bamboo.stragglers.imbalance = 1.2;
  Job elastic = job;
  elastic.shrunk = {1, 16.0 / 15, 16.0 / 14, 16.0 / 13, 16.0 / 12};
  const Summary redundant = run(bamboo, elastic);
  ReliabilityAssumptions demand = spot;
  demand.prices.payment = Payment::kOnDemand;
  const Summary on_demand = run(demand, job);
  EXPECT_NEAR(on_demand.ettr.mean, 1, 0.03);
  const double throughput = restarts.days.mean / redundant.days.mean;
  const double cheaper = on_demand.dollars.mean / redundant.dollars.mean;
  EXPECT_GT(throughput, 3.7 / 1.6) << throughput;
  EXPECT_LT(throughput, 3.7 * 1.6) << throughput;
  EXPECT_GT(cheaper, 2.4 / 1.6) << cheaper;
  EXPECT_LT(cheaper, 2.4 * 1.6) << cheaper;
}

}  // namespace
}  // namespace orrery::sim
