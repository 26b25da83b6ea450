// SPDX-License-Identifier: Apache-2.0
//
// orrery reliability, as a shell sees it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

#include "core/json.h"
#include "core/timeline.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

// A scenario that says its step time, so that nothing is planned: 800 devices, 100 nodes.
class ReliabilityCommand : public testing::Test {
 protected:
  ReliabilityCommand() {
    scenario_ = load_json(scenario("llama2-70b-800-gpus"));
    scenario_.erase("plan");
    scenario_["training"]["tokens"] = 1e12;
    scenario_["node_hour"] = "$20";
    scenario_["reliability"] = {{"step_time", "20 s"}, {"rates", "rsc-1"}};
  }
  std::string written(const Json& json) const {
    save_json(folder_.file("s.json"), json);
    return folder_.file("s.json");
  }
  Output run(const Json& json, const std::string& options = "--runs 200 --no-advice --json") const {
    return orrery("reliability " + written(json) + " " + options);
  }
  // The answer to a change that is wrong: exit code 3, the file, the pointer, and each of the words.
  void refused(const std::function<void(Json&)>& change, const std::string& pointer,
               const std::vector<std::string>& words) const {
    Json wrong = scenario_;
    change(wrong);
    const Output o = run(wrong);
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_EQ(o.out.find("orrery: " + folder_.file("s.json") + ": " + pointer + ": "), 0U) << o.out;
    for (const std::string& w : words) EXPECT_NE(o.out.find(w), std::string::npos) << w << "\n" << o.out;
    EXPECT_EQ(o.out.find("{\n"), std::string::npos) << "nothing is printed beside the message";
  }
  Json scenario_;
  TemporaryFolder folder_;
};

TEST_F(ReliabilityCommand, WritesWhatTheMedianRunDid) {
  const std::string file = folder_.file("median.timeline");
  const Output o = run(scenario_, "--runs 201 --no-advice --json --trace " + file);
  ASSERT_EQ(o.code, 0) << o.out;
  const Json days = parse_json(o.out, "output")["ways"][0]["days"];
  const Timeline t = load_timeline(file);
  // A run of more than 23 days is drawn a thousand times smaller.
  EXPECT_EQ(t.source, "predicted: life of a run, 1000 s of it are one here");
  EXPECT_NEAR(static_cast<double>(t.length().value) * 1e-12 * 1000 / 86400, days["p50"].get<double>(), 1e-6);
  EXPECT_EQ(t.streams, (std::vector<std::string>{"job", "stops"}));
  for (const std::string& options :
       {std::string("--trace /nowhere/x"), "--trace " + file + " " + written(scenario_)}) {
    const Output refused = run(scenario_, options);
    EXPECT_EQ(refused.code, 3) << refused.out;
    EXPECT_EQ(refused.out.find("orrery: command line: /trace: "), 0U) << refused.out;
  }
}

TEST_F(ReliabilityCommand, AnswersInJson) {
  const Output o = run(scenario_);
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "output");
  EXPECT_EQ(j["schema"], "orrery.reliability-report/1");
  const Json& way = j["ways"][0];
  EXPECT_EQ(way["nodes"], 100);
  EXPECT_EQ(way["rates"], "rsc-1");
  // 100 nodes, 0.0065 + 0.01446 a day: a stop every 11.45 h.
  EXPECT_NEAR(way["formula"]["mtbf_s"].get<double>(), 86400 / (100 * 0.02096), 1);
  double share = 0;
  for (const auto& [name, value] : way["share_of_time"].items()) share += value.get<double>();
  EXPECT_NEAR(share, 1, 1e-9);
  const double days = way["days"]["mean"], work = way["work_days"];
  EXPECT_GT(days, work);
  EXPECT_NEAR(way["formula"]["days_exact"].get<double>(), days, 0.02 * days);
  EXPECT_LE(way["days"]["p5"].get<double>(), way["days"]["p95"].get<double>());
  // 100 nodes at $20 an hour: dollars are days * 24 * 2000.
  EXPECT_NEAR(way["usd"]["mean"].get<double>(), days * 48'000, 1);
  EXPECT_NEAR(way["usd_per_trillion_tokens"].get<double>() * 1.0, way["usd"]["mean"].get<double>(),
              1e-4 * way["usd"]["mean"].get<double>());
  // Every assumption has a source.
  ASSERT_GT(j["assumptions"][0].size(), 20U);
  bool named = false;
  for (const Json& a : j["assumptions"][0]) {
    EXPECT_FALSE(a["source"].get<std::string>().empty()) << a;
    named |= a["field"] == "failures/hardware_per_node_day" && a["value"] == "0.0065";
  }
  EXPECT_TRUE(named);
}

TEST_F(ReliabilityCommand, IsTheSameForASeedAndAnyThreads) {
  const std::string file = written(scenario_), options = " --runs 300 --advice-runs 50 --json --threads ";
  const Output one = orrery("reliability " + file + options + "1"),
               three = orrery("reliability " + file + options + "3");
  ASSERT_EQ(one.code, 0) << one.out;
  EXPECT_EQ(one.out, three.out);
  EXPECT_NE(one.out, orrery("reliability " + file + options + "1 --seed 2").out);
}

// 28 days with a stop every 86 s, and every 29 s. 100 variants of 50 runs may stop 1e8 times in all, 20,000
// times each; where fewer than 20 runs of each would be left, 50,000 times, there is no advice.
TEST_F(ReliabilityCommand, ComparesFewerRunsWhereTheyStopOften) {
  scenario_["reliability"]["checkpoint"] = {{"interval", "20 s"},
                                            {"write_bandwidth", "100 TB/s"},
                                            {"read_bandwidth", "100 TB/s"},
                                            {"writer_bandwidth", "10 TB/s"},
                                            {"device_bandwidth", "1 TB/s"}};
  scenario_["reliability"]["restart"] = {{"requeue", "1 s"}, {"requeue_per_device", "0 s"}};
  const auto at = [&](double per_day, const std::string& options) {
    scenario_["reliability"]["failures"] = {{"hardware_per_node_day", 0},
                                            {"software_per_node_day", 0},
                                            {"software_per_job_day", per_day},
                                            {"detection", "1 s"}};
    return run(scenario_, options);
  };
  const Output fewer = at(1000, "--runs 20 --advice-runs 50");
  EXPECT_NE(fewer.out.find("runs of each variant, not 50: a run stops "), std::string::npos) << fewer.out;
  EXPECT_NE(fewer.out.find("one more hour between stops"), std::string::npos) << fewer.out;
  const Output none = at(3000, "--runs 20 --advice-runs 50");
  EXPECT_NE(none.out.find("no advice: a run stops "), std::string::npos) << none.out;
  EXPECT_EQ(none.out.find("one more hour between stops"), std::string::npos) << none.out;
}

// A life whose checkpoints in memory do not fit those in storage, and one with more of them than are
// replayed.
TEST_F(ReliabilityCommand, RefusesALifeThatCannotBeReplayed) {
  Json life = {{"schema", "orrery.life/1"},
               {"program", "1"},
               {"ranks", 4},
               {"steps", 20},
               {"checkpoint_every", 10},
               {"memory_every", 5},
               {"memory_replicas", 2},
               {"failures", 0},
               {"times", {{"total", "50 s"}, {"progress", "40 s"}}},
               {"measured", {{"step", "2 s"}, {"checkpoint", "0.5 s"}, {"memory_checkpoint", "0.1 s"}}}};
  EXPECT_EQ(run(life, "--json").code, 0);
  const auto told = [&](const char* field, const Json& value, const std::string& pointer) {
    Json wrong = life;
    wrong[field] = value;
    const Output o = run(wrong, "--json");
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_EQ(o.out.find("orrery: " + folder_.file("s.json") + ": " + pointer + ": "), 0U) << o.out;
  };
  told("memory_every", 20, "/memory_every");
  told("memory_every", 3, "/memory_every");
  life["checkpoint_every"] = 0;
  life["memory_every"] = 1;
  told("steps", 1'000'000'000'000, "/steps");
}

TEST_F(ReliabilityCommand, ScenarioGoesBeforeProfileBeforeDefault) {
  scenario_["reliability"]["failures"] = {{"hardware_per_node_day", 0.001}};
  const Json j = parse_json(run(scenario_).out, "output");
  std::map<std::string, std::string> source;
  for (const Json& a : j["assumptions"][0]) source[a["field"]] = a["source"];
  EXPECT_EQ(source["failures/hardware_per_node_day"], "the scenario");
  EXPECT_NE(source["failures/software_per_node_day"].find("47.7 days"), std::string::npos);
  EXPECT_NE(source["restart/requeue"].find("table 7"), std::string::npos);
  const Output other = run(scenario_, "--rates opt-175b --runs 50 --no-advice --json");
  EXPECT_EQ(parse_json(other.out, "output")["ways"][0]["rates"], "opt-175b");
}

TEST_F(ReliabilityCommand, ReportsForPeople) {
  scenario_["deadline"] = "40 days";
  const Output o = run(scenario_, "--runs 200 --advice-runs 50");
  ASSERT_EQ(o.code, 0) << o.out;
  for (const char* words :
       {"by formula", "simulated runs, seed 1", "ETTR", "where the time goes", "work done again",
        "ends within 40 days", "a trillion tokens", "one more hour between stops", "spare nodes",
        "halved and doubled", "assumed, rates of rsc-1", "Kokolis"})
    EXPECT_NE(o.out.find(words), std::string::npos) << words << "\n" << o.out;
}

TEST_F(ReliabilityCommand, ComparesWaysToPay) {
  scenario_["reliability"]["prices"] = {{"spot_node_hour", "$6"}, {"reserved_node_hour", "$12"}};
  scenario_["reliability"]["preemption"] = {{"per_node_day", 0.2}};
  const std::string file = written(scenario_);
  const auto ways = [&](const std::string& deadline) {
    return parse_json(orrery("reliability " + file + " --runs 200 --no-advice --json " + deadline).out,
                      "output");
  };
  const Json free = ways("");
  ASSERT_EQ(free["ways"].size(), 3U);
  std::map<std::string, std::pair<double, double>> by_payment;  // days, dollars
  for (const Json& w : free["ways"])
    by_payment[w["payment"]] = {w["days"]["mean"].get<double>(), w["usd"]["mean"].get<double>()};
  EXPECT_GT(by_payment["spot"].first, 1.05 * by_payment["on-demand"].first);  // twenty interruptions a day
  EXPECT_LT(by_payment["spot"].second, 0.6 * by_payment["on-demand"].second);
  EXPECT_NEAR(by_payment["reserved"].second, 0.6 * by_payment["on-demand"].second, 1);
  EXPECT_EQ(free["ways"][free["cheapest"].get<std::size_t>()]["payment"], "spot");
  EXPECT_TRUE(free["cheapest_in_time"].is_null());
  // A deadline between the two: spot is late.
  const double middle = (by_payment["spot"].first + by_payment["on-demand"].first) / 2;
  const Json bound = ways(fmt::format("--deadline \"{:.2f} days\"", middle));
  EXPECT_EQ(bound["ways"][bound["cheapest_in_time"].get<std::size_t>()]["payment"], "reserved");
  const Json hopeless = ways("--deadline \"1 h\"");
  EXPECT_TRUE(hopeless["cheapest_in_time"].is_null());
}

TEST_F(ReliabilityCommand, RefusesWhatIsWrong) {
  const auto set = [](const std::string& pointer, const Json& value) {
    return [pointer, value](Json& j) { j[Json::json_pointer("/reliability" + pointer)] = value; };
  };
  refused(set("/rates", "rsc1"), "/reliability/rates",
          {"\"rsc1\" is not in profiles/reliability", "did you mean \"rsc-1\"?"});
  refused(set("/restrat", Json::object()), "/reliability/restrat", {"restart"});
  refused(set("/failures", {{"hardware_per_node_day", -1}}), "/reliability/failures/hardware_per_node_day",
          {"-1 is out of range", "allowed: at least 0"});
  refused(set("/failures", {{"detection", 60}}), "/reliability/failures/detection",
          {"60 is not a quantity", "20 days"});
  refused(set("/restart", {{"hardware", "hotspare"}}), "/reliability/restart/hardware",
          {"\"hotspare\" is not known", "did you mean \"hot-spare\"?"});
  refused(set("/prices", {{"payment", "spot"}}), "/reliability/prices/spot_node_hour", {"needs it"});
  refused(set("/prices", {{"payment", "spot"}, {"spot_node_hour", "$6"}}),
          "/reliability/preemption/per_node_day", {"needs it"});
  refused(set("/stragglers", {{"slow_low", 2}}), "/reliability/stragglers/slow_low",
          {"2 is more than slow_high"});
  refused(set("/checkpoint", {{"kind", "memory"}, {"replicas", 17}}), "/reliability/checkpoint/replicas",
          {"at most 16"});
  refused(set("/spares", {{"fewest_replicas", 3}}), "/reliability/spares/fewest_replicas", {"spares/nodes"});
  refused(set("/steps", 0), "/reliability/steps", {"out of range"});
  refused([](Json& j) { j["training"].erase("tokens"); }, "/training/tokens", {"reliability/steps"});
}

TEST_F(ReliabilityCommand, EndsWhereRunsDoNot) {
  // 100 nodes that each fail a hundred times a day: a stop every 8.6 s, and a restart takes 450.
  const auto rate = [](double per_node_day) {
    return [per_node_day](Json& j) {
      j["reliability"]["failures"] = {{"hardware_per_node_day", per_node_day}};
    };
  };
  refused(rate(100), "/reliability", {"no end", "restart"});
  refused(rate(1e5), "/reliability", {"no end"});
  refused([](Json& j) { j["reliability"]["step_time"] = "9999 days"; }, "/reliability", {"days of work"});
  refused([](Json& j) { j["reliability"]["steps"] = 1'000'000'000'000; }, "/reliability", {"days of work"});
  // A repair of 27 years, and no spare: found while simulating.
  refused(
      [](Json& j) {
        j["reliability"]["failures"] = {{"repair", "9999 days"}};
        j["reliability"]["spares"] = {{"nodes", 0}};
      },
      "/reliability", {"does not end within"});
}

TEST_F(ReliabilityCommand, ChecksItsOptions) {
  const std::string file = written(scenario_);
  EXPECT_EQ(orrery("reliability").code, 2);
  EXPECT_EQ(orrery("reliability " + file + " --runs 1").code, 2);
  EXPECT_EQ(orrery("reliability " + file + " --confidence 1.5").code, 2);
  EXPECT_EQ(orrery("reliability " + file + " --rate rsc-1").code, 2);
  const Output rates = orrery("reliability " + file + " --rates rsc-3");
  EXPECT_EQ(rates.code, 3);
  EXPECT_EQ(rates.out.find("orrery: command line: /rates: \"rsc-3\""), 0U) << rates.out;
  EXPECT_EQ(orrery("reliability " + file + " --deadline soon").code, 3);
  EXPECT_EQ(orrery("schema reliability").code, 0);
}

// A plan's own step, ranks and replicas; lost replicas by the planner.
TEST(Reliability, TakesThePlanOfAScenario) {
  TemporaryFolder folder;
  Json s = load_json(scenario("llama3-70b-p4de"));
  s["reliability"] = {{"rates", "opt-175b"},
                      {"steps", 20000},
                      {"spares", {{"nodes", 0}, {"fewest_replicas", 2}}},
                      {"failures", {{"repair", "6 h"}, {"hardware_per_node_day", 0.2}}}};
  save_json(folder.file("s.json"), s);
  const Output o = orrery("reliability " + folder.file("s.json") + " --runs 100 --no-advice --json");
  ASSERT_EQ(o.code, 0) << o.out;
  const Json way = parse_json(o.out, "output")["ways"][0];
  EXPECT_EQ(way["step_source"], "predicted by the engine");
  EXPECT_FALSE(way["plan"].is_null());
  EXPECT_GT(way["share_of_time"]["slow"].get<double>(), 0);
  // The step itself is uncertain: the percentiles are further apart.
  const auto width = [&](const char* of) {
    return way[of]["p95"].get<double>() - way[of]["p5"].get<double>();
  };
  EXPECT_GT(width("days_with_step_range"), width("days"));
}

// 20 steps of 2 s, a checkpoint of half a second behind every fourth; rank 1 dies where step 7 begins.
Json life() {
  return {{"schema", "orrery.life/1"},
          {"program", "1"},
          {"ranks", 4},
          {"steps", 20},
          {"checkpoint_every", 4},
          {"faults", {{{"kind", "dead"}, {"rank", 1}, {"step", 7}}}},
          {"failures", 1},
          {"times", {{"total", "50 s"}, {"progress", "40 s"}}},
          {"measured",
           {{"step", "2 s"}, {"checkpoint", "0.5 s"}, {"restart", "7 s"}, {"detection_dead", "1 s"}}}};
}

TEST_F(ReliabilityCommand, LivesAreReplayedByArithmetic) {
  const std::string alone = written(life()), quiet = folder_.file("quiet.json");
  const Output one = orrery("reliability --json " + alone);
  ASSERT_EQ(one.code, 0) << one.out;
  const Json run = parse_json(one.out, "output")["runs"][0];
  EXPECT_DOUBLE_EQ(run["measured"], 0.8);
  // 5 checkpoints; steps 5 and 6 are lost.
  EXPECT_NEAR(run["predicted"].get<double>(), 40 / (40 + 5 * 0.5 + 2 * 2 + 1 + 7), 1e-9);
  // Beside another, from the other: its checkpoints take 1 s, and nothing else of it was measured.
  Json other = life();
  other["faults"] = Json::array();
  other["measured"] = {{"step", "2 s"}, {"checkpoint", "1 s"}};
  save_json(quiet, other);
  const Output lacks = orrery("reliability " + alone + " " + quiet);
  EXPECT_EQ(lacks.code, 3);
  EXPECT_NE(lacks.out.find("s.json: /faults: no other run measured a dead rank"), std::string::npos)
      << lacks.out;
}

TEST_F(ReliabilityCommand, LivesThatCannotBeAreRefused) {
  const auto refused = [&](const std::function<void(Json&)>& change, const std::string& text) {
    Json wrong = life();
    change(wrong);
    const Output o = orrery("reliability " + written(wrong));
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_NE(o.out.find("s.json: " + text), std::string::npos) << o.out;
  };
  refused([](Json& j) { j["faults"][0]["step"] = 21; }, "/faults/0/step: 21; allowed: 1 to 20");
  refused([](Json& j) { j["faults"][0]["kind"] = "ded"; }, "/faults/0/kind: \"ded\" is not known");
  refused([](Json& j) { j["first_step"] = 20; }, "/steps: 20 is not beyond first_step, 20");
  refused([](Json& j) { j["first_step"] = 3; }, "/first_step: 3 is no multiple of checkpoint_every, 4");
  refused([](Json& j) { j["times"]["progress"] = "60 s"; }, "/times: ");
  refused([](Json& j) { j["steps"] = 1e12; }, "/steps: ");
  const std::string first = written(life()), second = folder_.file("second.json");
  Json other = life();
  other["program"] = "2";
  save_json(second, other);
  EXPECT_NE(orrery("reliability " + first + " " + second).out.find("second.json: /program: "),
            std::string::npos);
  EXPECT_NE(orrery("reliability " + first + " " + scenario("tiny-cpu")).out.find("/schema: "),
            std::string::npos);
  std::string many = "reliability";
  for (int i = 0; i < 17; ++i) many += " " + scenario("tiny-cpu");
  EXPECT_NE(orrery(many).out.find("/scenario: 17 scenarios are compared; allowed: 1 to 16"),
            std::string::npos);
}

// What a run with a failure did, for the window.
TEST_F(ReliabilityCommand, ALifeIsWrittenAsATimeline) {
  const std::string trace = folder_.file("life.timeline");
  const Output o = orrery("run " + scenario("tiny-cpu") +
                          " --steps 8 --fail 0@6 --restarts 1 --checkpoint-every 2 --checkpoints " +
                          folder_.path() + "/c --life-trace " + trace);
  ASSERT_EQ(o.code, 0) << o.out;
  const Timeline t = load_timeline(trace);
  EXPECT_EQ(t.source, "measured: life of a run");
  for (const char* name : {"work", "lost work", "restart", "a rank died"})
    EXPECT_NE(std::find(t.names.begin(), t.names.end(), name), t.names.end()) << name;
}

TEST_F(ReliabilityCommand, SpotPricesComeFromAFile) {
  scenario_["reliability"]["preemption"] = {{"per_node_day", 0.01}};
  scenario_["reliability"]["prices"] = {{"payment", "spot"}, {"spot_prices", "prices.csv"}};
  std::ofstream(folder_.file("prices.csv")) << "time,price\n2024-05-01 00:00:00,6\n2024-05-02 00:00:00,10\n"
                                               "2024-05-03 00:00:00,0\n";
  const Json ways = parse_json(run(scenario_).out, "output")["ways"];
  const double node_hours = 100 * 24 * ways[0]["days"]["mean"].get<double>();
  EXPECT_NEAR(ways[0]["usd"]["mean"].get<double>() / node_hours, 8, 0.1);  // less nodes that are away
  std::ofstream(folder_.file("prices.csv")) << "time,price\n0,dear\n";
  const Output o = run(scenario_);
  EXPECT_EQ(o.code, 3);
  EXPECT_NE(o.out.find("prices.csv: line 2: \"dear\" is not a number"), std::string::npos) << o.out;
  refused([](Json& j) { j["reliability"]["prices"]["spot_prices"] = "nothing.csv"; },
          "/reliability/prices/spot_prices", {"nothing.csv\" is no file"});
}

// 100 nodes of $250,000 for four years, whose ports nobody counts, beside nodes at $20 an hour.
TEST_F(ReliabilityCommand, ABoughtClusterIsAWayToPay) {
  scenario_["reliability"]["ownership"] = {{"node", "$250000"},       {"switch_ports", 0}, {"residual", 0},
                                           {"maintenance", 0},        {"interest", 0},     {"used", 1},
                                           {"hosting_kw_month", "$0"}};
  EXPECT_EQ(parse_json(run(scenario_).out, "output")["ways"].size(), 1U) << "energy has no price";
  scenario_["reliability"]["energy"] = {{"kwh", "$0.10"}};
  const Json ways = parse_json(run(scenario_).out, "output")["ways"];
  ASSERT_EQ(ways.size(), 2U);
  EXPECT_EQ(ways[1]["payment"], "owned");
  EXPECT_NEAR(ways[1]["owned_node"]["usd_per_hour"].get<double>(), 250'000 / (4 * 8766.0), 1e-6);
  const double hours = ways[1]["days"]["mean"].get<double>() * 24, energy = ways[1]["usd_of_energy"]["mean"];
  EXPECT_NEAR(energy, 0.1 * ways[1]["kwh"]["mean"].get<double>(), 1e-6 * energy);
  EXPECT_NEAR(ways[1]["usd"]["mean"].get<double>(), 100 * hours * 250'000 / (4 * 8766.0) + energy, 1);
  EXPECT_EQ(ways[0]["usd_of_energy"]["mean"], 0);
  const Output text = run(scenario_, "--runs 200 --no-advice");
  EXPECT_NE(text.out.find("owned: a node with its 0.0 switch ports is $250000"), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("cheaper than on demand where it is used more than "), std::string::npos)
      << text.out;
  scenario_["reliability"]["prices"] = {{"payment", "owned"}};
  refused([](Json& j) { j["reliability"].erase("energy"); }, "/reliability/energy/kwh",
          {"is missing or zero", "\"owned\" needs it"});
}

class PlanWithFailures : public ReliabilityCommand {
 protected:
  PlanWithFailures() { scenario_ = load_json(scenario("climate-1.2b")); }
  Json planned(const std::string& options) const {
    const Output o = orrery("plan --json " + options + " " + written(scenario_));
    return parse_json(o.out, "output");
  }
};

TEST_F(PlanWithFailures, IsRankedByTheMeanCostOfSpotNodes) {
  const Json failures = planned("--goal cost --spot")["failures"];
  EXPECT_EQ(failures["payment"], "spot");
  EXPECT_EQ(failures["rates"], "rsc-1");
  const Json& plans = failures["plans"];
  ASSERT_GE(plans.size(), 6U);
  for (const Json& p : plans) {
    EXPECT_GE(p["cost_usd"]["mean"].get<double>(), plans[0]["cost_usd"]["mean"].get<double>() / 1.005);
    EXPECT_GT(p["days"]["p5"], p["days_without_failures"]);
    // The share of the time that brings the run forward is that of the run without failures.
    EXPECT_NEAR(p["ettr"]["mean"].get<double>(),
                p["days_without_failures"].get<double>() / p["days"]["mean"].get<double>(), 0.02);
    // $4.81 a node and hour, but for the time of nodes that are away.
    const double most = p["days"]["mean"].get<double>() * 24 * 4.81 * p["nodes"].get<double>();
    EXPECT_LE(p["cost_usd"]["mean"].get<double>(), most);
    EXPECT_GT(p["cost_usd"]["mean"].get<double>(), 0.8 * most);
  }
}

// One node takes 5.95 days without failures, and more than 6.1 with them.
TEST_F(PlanWithFailures, AnotherPlanIsTheBestWhereFailuresBreakADeadline) {
  scenario_["deadline"] = "6.1 days";
  const Json without = planned("--goal cost-by-deadline");
  EXPECT_EQ(without["nodes"], 1);
  EXPECT_FALSE(without.contains("failures"));
  const Json with = planned("--goal cost-by-deadline --failures")["failures"];
  EXPECT_EQ(with["plans"][0]["nodes"], 2);
  EXPECT_EQ(with["unmet"], "");
  EXPECT_NE(with["changed"].get<std::string>().find("another than without failures"), std::string::npos);
  scenario_["deadline"] = "0.5 days";
  const Output late = orrery("plan --goal cost-by-deadline --failures " + written(scenario_));
  EXPECT_EQ(late.code, 4);
  EXPECT_NE(late.out.find("in 90 % of runs"), std::string::npos);
}

TEST_F(PlanWithFailures, SaysWhatIsMissing) {
  scenario_["reliability"]["prices"].erase("spot_node_hour");
  const Output price = orrery("plan --spot " + written(scenario_));
  EXPECT_EQ(price.code, 3);
  EXPECT_NE(price.out.find("/reliability/prices/spot_node_hour"), std::string::npos) << price.out;
  scenario_["reliability"]["step_time"] = "2 s";
  EXPECT_NE(orrery("plan --failures " + written(scenario_)).out.find("/reliability/step_time"),
            std::string::npos);
  scenario_["training"].erase("tokens");
  const Output tokens = orrery("plan --failures " + written(scenario_));
  EXPECT_EQ(tokens.code, 3);
  EXPECT_NE(tokens.out.find("/training/tokens"), std::string::npos) << tokens.out;
}

}  // namespace
}  // namespace orrery
