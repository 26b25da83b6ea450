// SPDX-License-Identifier: Apache-2.0
//
// What runs cost, their distributions, and what to change.
#include <gtest/gtest.h>

#include <cmath>

#include "sim/reliability/advice.h"

namespace orrery::sim {
namespace {

// --- dollars ----------------------------------------------------------------------------------------
TEST(Money, AddsUp) {
  RunModel m;
  m.nodes = 10;
  m.work = ticks(8 * kSecondsPerDay);
  RunOutcome r;
  r.total = ticks(10 * kSecondsPerDay);
  r.work = ticks(8 * kSecondsPerDay);
  r.restart = ticks(2 * kSecondsPerDay);
  r.checkpoints = 100;
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
  t.payment = Payment::kReserved, t.term_s = 30 * kSecondsPerDay;
  EXPECT_NEAR(cost_of(r, m, t).nodes, 12 * 720 * 30, 1e-6);
  t.payment = Payment::kSpot, t.term_s = 0, r.away = ticks(24 * 3600.0);
  EXPECT_NEAR(cost_of(r, m, t).nodes, (12 * 240 - 24) * 30, 1e-6);
}

// A node of $300,000 with eight ports of $1,500, 10.2 kW at the meter, and 8,766 h of a year of which nine in
// ten are used.
TEST(Money, AnOwnedHourIsWhatItsYearCosts) {
  Ownership o{.node = from_dollars(300'000),
              .lifetime = RunTime{4 * 365.25 * kSecondsPerDay},
              .residual = 0.1,
              .maintenance = 0.05,
              .interest = 0.06,
              .used = 0.9,
              .hosting_kw_month = from_dollars(150),
              .staff_node_year = from_dollars(5000)};
  const OwnedHour h = owned_hour(o, 1500, 8, 10'200);
  const double used = 8766 * 0.9;
  EXPECT_DOUBLE_EQ(h.price, 312'000);
  EXPECT_NEAR(h.written_off, 312'000 * 0.9 / 4 / used, 1e-9);
  EXPECT_NEAR(h.maintenance, 15'600 / used, 1e-9);
  EXPECT_NEAR(h.interest, 0.06 * 312'000 * 1.1 / 2 / used, 1e-9);
  EXPECT_NEAR(h.staff, 5000 / used, 1e-9);
  EXPECT_NEAR(h.hosting, 12 * 150 * 10.2 / used, 1e-9);
  EXPECT_NEAR(h.total(), (70'200 + 15'600 + 10'296 + 5000 + 18'360) / used, 1e-9);
  // Its own prices go before the fabric's.
  o.switch_port = from_dollars(1000);
  o.switch_ports = 10;
  EXPECT_DOUBLE_EQ(owned_hour(o, 1500, 8, 0).price, 310'000);
}

// Energy is in the price of a rented node, and beside that of a bought one.
TEST(Money, EnergyIsPaidByTheOwner) {
  ReliabilityAssumptions a;
  a.ownership = {.node = from_dollars(300'000), .lifetime = RunTime{4 * 365.25 * kSecondsPerDay}};
  a.energy.kwh = from_dollars(0.08);
  a.energy.device_watts = 700;
  const Job job{.devices_per_node = 8};
  a.prices.payment = Payment::kOwned;
  const Tariff owned = tariff_of(a, job, {}, {});
  EXPECT_NEAR(owned.node_hour, 300'000 / (4 * 8766.0), 1e-9);
  EXPECT_DOUBLE_EQ(owned.kwh.value(), 0.08);
  a.prices.payment = Payment::kOnDemand;
  EXPECT_FALSE(tariff_of(a, job, {}, {.on_demand_node_hour = 20}).kwh.has_value());
  a.ownership.node.reset();
  EXPECT_DOUBLE_EQ(tariff_of(a, job, {}, {.on_demand_node_hour = 20}).kwh.value(), 0.08);
}

// $10 for an hour, $20 for the two after it, and again.
TEST(SpotPrices, AreTheMeanOfTheirTime) {
  const SpotPrices p = read_spot_prices("time,price\n0,10\n3600,20\n10800,99\n", "prices.csv");
  EXPECT_DOUBLE_EQ(p.length_s(), 10800);
  EXPECT_NEAR(p.mean(), 50.0 / 3, 1e-12);
  EXPECT_NEAR(p.mean(0, 3600), 10, 1e-12);
  EXPECT_NEAR(p.mean(1800, 3600), 15, 1e-12);
  EXPECT_NEAR(p.mean(9000, 3600), 15, 1e-12);  // half an hour of the end, and of the begin
  EXPECT_NEAR(p.mean(3600, 10 * 10800), 50.0 / 3, 1e-12);
  EXPECT_NEAR(p.mean(0, 10800 + 3600), 60.0 / 4, 1e-12);
}

TEST(SpotPrices, AreReadAsTheAwsCommandLinePrintsThem) {
  const std::string text = R"({"SpotPriceHistory": [
    {"AvailabilityZone": "us-east-1a", "InstanceType": "p5.48xlarge", "SpotPrice": "30.00", "Timestamp": "2024-03-01T02:00:00+00:00"},
    {"AvailabilityZone": "us-east-1a", "InstanceType": "p5.48xlarge", "SpotPrice": "20.00", "Timestamp": "2024-03-01T00:00:00+00:00"},
    {"AvailabilityZone": "us-east-1a", "InstanceType": "p5.48xlarge", "SpotPrice": "10.00", "Timestamp": "2024-02-29T23:00:00+00:00"}]})";
  const SpotPrices p = read_spot_prices(text, "aws.json");
  EXPECT_DOUBLE_EQ(p.length_s(), 3 * 3600);  // 2024 is a leap year
  EXPECT_NEAR(p.mean(), 50.0 / 3, 1e-12);
}

TEST(SpotPrices, RefuseWhatIsNone) {
  const auto refused = [](const std::string& text, const std::string& words) {
    try {
      read_spot_prices(text, "p.csv");
      ADD_FAILURE() << text;
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("p.csv"), std::string::npos) << e.what();
    }
  };
  refused("", "prices of 0 moments");
  refused("time,price\n0,1\n", "prices of 1 moments");
  refused("time,price\n0,1\n0,2\n", "prices of 1 moments");
  refused("hour,price\n", "line 1: \"hour,price\" is no header");
  refused("time,price\n0,cheap\n", "line 2: \"cheap\" is not a number");
  refused("time,price\n0,-1\n", "below zero");
  refused("time,price\n0,nan\n", "is not a number");
  refused("time,price\n0,1,2\n", "has 3 cells");
  refused("time,price\nnoon,1\n", "\"noon\" is not a number (time: seconds");
  refused("{}", "/SpotPriceHistory: is missing");
  refused(R"({"SpotPriceHistory": [{"SpotPrice": 3}]})", "/SpotPriceHistory/0/Timestamp");
  refused(R"({"SpotPriceHistory": [{"AvailabilityZone": "a", "SpotPrice": "3", "Timestamp": "1"},
                                   {"AvailabilityZone": "b", "SpotPrice": "3", "Timestamp": "2"}]})",
          "/SpotPriceHistory/1/AvailabilityZone: \"b\" is another");
}

// Runs of a day begin anywhere in a trace of two: $10 and then $30. They cost what the trace does in the
// mean, and between $10 and $30 an hour each.
TEST(Money, RunsMeetTheSpotPricesOfTheirTime) {
  RunModel m;
  m.nodes = 2;
  m.work = ticks(kSecondsPerDay);
  RunOutcome r;
  r.total = r.work = ticks(kSecondsPerDay);
  Tariff t{.payment = Payment::kSpot, .node_hour = 20};
  t.spot_prices = std::make_shared<const SpotPrices>(
      std::vector<double>{0, kSecondsPerDay, 2 * kSecondsPerDay}, std::vector<double>{10, 30, 0});
  const Summary s = summary_of(m, t, std::vector<RunOutcome>(4000, r));
  EXPECT_NEAR(s.dollars.mean, 2 * 24 * 20, 4 * s.dollars.error);
  EXPECT_LT(s.dollars.error, 10);
  // The mean of a day is even between the two: 5 % of runs pay less than $11 an hour.
  EXPECT_NEAR(s.dollars.p5, 2 * 24 * 11, 15);
  EXPECT_NEAR(s.dollars.p95, 2 * 24 * 29, 15);
}

TEST(Summary, PercentilesAndDeadlines) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Spread s = spread_of(values);
  EXPECT_EQ(s.p5, 5);
  EXPECT_EQ(s.p50, 50);
  EXPECT_EQ(s.p95, 95);
  EXPECT_NEAR(s.mean, 50.5, 1e-9);
  RunModel m;
  m.nodes = 10;
  std::vector<RunOutcome> runs(4);
  for (int i = 0; i < 4; ++i) runs[static_cast<std::size_t>(i)].total = ticks((i + 1) * kSecondsPerDay);
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
                .repair = RunTime{kSecondsPerDay}};
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
    return expected_run_s(4e6, interval, w, {{1 / mtbf_s, 60 + 600 + w}}) / kSecondsPerDay;
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
