// SPDX-License-Identifier: Apache-2.0
//
// The command as its users see it: output, exit codes, files.
#include <gtest/gtest.h>

#include <fstream>

#include "core/json.h"
#include "core/timeline.h"
#include "planner/export/export.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

TEST(Cli, PlanSimulateRunAndCompareShareOneProgram) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json"), predicted = folder.file("p.json"),
                    measured = folder.file("m.json");
  ASSERT_EQ(orrery("plan " + scenario("tiny-cpu") + " -o " + plan).code, 0);
  ASSERT_EQ(orrery("simulate " + plan + " --trace " + predicted).code, 0);
  ASSERT_EQ(orrery("run " + plan + " --steps 2 --trace " + measured).code, 0);
  const Output o = orrery("compare --json " + predicted + " " + measured);
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "out");
  EXPECT_TRUE(j["same_program"].get<bool>());
  EXPECT_EQ(j["only_measured"], 0);
  EXPECT_GT(j["matched"].get<int>(), 100);
  // Every op is labelled, and the labels hold all of its time.
  double ops = 0, bounds = 0;
  for (const Json& op : j["ops"]) {
    EXPECT_NE(op["bound"], "unknown") << op.dump();
    if (op["name"].get<std::string>().find("all-") != std::string::npos) {
      EXPECT_EQ(op["bound"], "communication") << op.dump();
    }
    ops += op["measured_s"].get<double>();
  }
  for (const Json& b : j["bounds"]) bounds += b["measured_s"].get<double>();
  EXPECT_NEAR(bounds, ops, 1e-9 * ops);
}

// Six published runs; the constants that they do not concern are what is expected of them. Nothing is written
// where the folder is none of data, and other files are no training runs.
TEST(Cli, CalibrateFitsPublishedRuns) {
  const TemporaryFolder folder;
  Json rows = Json::array();
  for (const Json& row : load_json(ORRERY_ROOT "/tests/data/training_runs.json")) {
    if (row["source_key"] == "internevo" && rows.size() < 6) rows.push_back(row);
  }
  ASSERT_EQ(rows.size(), 6U);
  save_json(folder.file("rows.json"), rows);
  const Output fit = orrery("calibrate --json --published " + folder.file("rows.json"));
  ASSERT_EQ(fit.code, 0) << fit.out;
  const Json json = Json::parse(fit.out);
  ASSERT_EQ(json["studies"].size(), 1U);
  EXPECT_EQ(json["studies"][0]["study"], "internevo");
  EXPECT_EQ(json["studies"][0]["runs"], 6);
  EXPECT_EQ(json["runs"].size(), 6U);
  for (const Json& c : json["constants"]) {
    if (c["name"] == "B200.sustained") {
      EXPECT_NEAR(c["value"].get<double>(), 0.85, 1e-9);
    }
  }
  const std::string published = "calibrate --published " + folder.file("rows.json");
  EXPECT_NE(orrery(published).out.find("internevo.collective_sync"), std::string::npos);
  const Output nowhere = orrery(published + " --profiles " + folder.file("."));
  EXPECT_EQ(nowhere.code, 3);
  EXPECT_FALSE(fs::exists(folder.file("profiles")));
  const Output both =
      orrery("calibrate " + scenario("tiny-cpu") + " --published " + folder.file("rows.json"));
  EXPECT_EQ(both.code, 3) << both.out;
  const Output other = orrery("calibrate --published " ORRERY_ROOT "/tests/data/collectives.json");
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.out.find("is not a training run"), std::string::npos);
  EXPECT_EQ(orrery("calibrate").code, 3);
}

TEST(Cli, CalibrateMakesAProfileThatScenariosUse) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("t.json"), device = folder.file("device.json"),
                    cluster = folder.file("here.json"), here = folder.file("pair.json");
  ASSERT_EQ(orrery("run " + scenario("tiny-cpu-pair") + " --steps 2 --trace " + trace).code, 0);
  const std::string to = " --name here --device " + device + " --cluster " + cluster;
  // An odd number of files, and a trace of another plan: nothing is written.
  const Output odd = orrery("calibrate " + scenario("tiny-cpu-pair") + to);
  EXPECT_EQ(odd.code, 3) << odd.out;
  const Output other = orrery("calibrate " + scenario("tiny-cpu") + " " + trace + to);
  EXPECT_EQ(other.code, 3) << other.out;
  EXPECT_NE(other.out.find(trace + ": /: was not measured with the plan of"), std::string::npos) << other.out;
  // What was predicted is no measurement.
  for (const char* name : {"predicted.json", "predicted.timeline"}) {
    const std::string predicted = folder.file(name);
    ASSERT_EQ(orrery("simulate " + scenario("tiny-cpu-pair") + " --trace " + predicted).code, 0);
    const Output refused = orrery("calibrate " + scenario("tiny-cpu-pair") + " " + predicted + to);
    EXPECT_EQ(refused.code, 3) << refused.out;
    EXPECT_EQ(refused.out,
              "orrery: " + predicted +
                  ": /: is not a measurement: its source is \"predicted: event engine\"; allowed: "
                  "a timeline of orrery run --trace\n");
  }
  const Output not_ours = orrery("calibrate --backend cpu " + scenario("llama3-70b-p4d") + to);
  EXPECT_EQ(not_ours.code, 3) << not_ours.out;
  EXPECT_EQ(orrery("calibrate --steps 3 " + scenario("tiny-cpu-pair") + " " + trace + to).code, 2);
  EXPECT_FALSE(fs::exists(device));
  const Output fit = orrery("calibrate --json " + scenario("tiny-cpu-pair") + " " + trace + to);
  ASSERT_EQ(fit.code, 0) << fit.out;
  EXPECT_GT(parse_json(fit.out, "out")["ops"].size(), 10U);
  const Output device_only =
      orrery("calibrate " + scenario("tiny-cpu-pair") + " " + trace + " --name here --device " + device);
  EXPECT_EQ(device_only.code, 0) << device_only.out;
  // The same without a trace: the plan is run for it.
  const Output at_once = orrery("calibrate --backend cpu --steps 2 " + scenario("tiny-cpu-pair") + to);
  ASSERT_EQ(at_once.code, 0) << at_once.out;
  EXPECT_NE(load_json(device)["origin"]["residuals"].get<std::string>().find("gemm"), std::string::npos)
      << load_json(device)["origin"];
  Json s = load_json(scenario("tiny-cpu-pair"));
  s["cluster"]["topology"] = "here.json";
  std::ofstream(here) << s.dump();
  const Output predicted = orrery("simulate --json " + here);
  EXPECT_EQ(predicted.code, 0) << predicted.out;
}

// Routers choose unevenly, and what calibrate runs, or reads, has room for it as what run runs.
TEST(Cli, CalibrateHasRoomForWhateverRoutersChoose) {
  const TemporaryFolder folder;
  Json s = load_json(scenario("tiny-cpu-pair"));
  s["model"] = Json::parse(R"({"preset": "tiny-llama", "name": "mixture", "blocks": [{"times": 2, "blocks": [
      {"layers": ["attention", {"experts": {"experts": 8, "top_k": 2, "ffn_hidden": 96}}]}]}]})");
  s["training"]["global_batch"] = 16;
  s["plan"] = {{"dp", 2}, {"ep", 2}, {"micro_batch", 8}, {"micro_batches", 1}};
  save_json(folder.file("s.json"), s);
  const std::string file = folder.file("s.json"), trace = folder.file("t.json");
  ASSERT_EQ(orrery("run " + file + " --steps 2 --trace " + trace).code, 0);
  const Output read =
      orrery("calibrate --json --name here --device " + folder.file("d.json") + " " + file + " " + trace);
  EXPECT_EQ(read.code, 0) << read.out;
  const std::string links = " --links " + folder.file("links.json");
  const std::string all = "calibrate --name here --device " + folder.file("d.json") + " --cluster ";
  EXPECT_EQ(
      orrery("calibrate --name here --device " + folder.file("d.json") + links + " " + file + " " + trace)
          .code,
      2);
  EXPECT_EQ(orrery(all + folder.file("links.json") + links + " " + file + " " + trace).code, 3);
  EXPECT_FALSE(fs::exists(folder.file("links.json")));
  const Output kept = orrery(all + folder.file("c.json") + links + " " + file + " " + trace);
  EXPECT_EQ(kept.code, 0) << kept.out;
  EXPECT_FALSE(load_json(folder.file("links.json"))["measured"].empty());
  s["cluster"] = {{"topology", "c.json"}};
  save_json(folder.file("with.json"), s);
  const Output predicted = orrery("simulate --json " + folder.file("with.json"));
  EXPECT_EQ(predicted.code, 0) << predicted.out;
  const Output run = orrery("calibrate --json --name here --device " + folder.file("d.json") +
                            " --backend cpu --steps 2 " + file);
  EXPECT_EQ(run.code, 0) << run.out;
}

// Of a step whose experts are loaded unevenly, a window has the tokens of the layers that work in it, and of
// the groups that have some.
TEST(Cli, AWindowHasTheTokensOfItsExperts) {
  const TemporaryFolder folder;
  Json s = load_json(scenario("tiny-cpu-pair"));
  s["model"] = Json::parse(R"({"preset": "tiny-llama", "name": "mixture", "blocks": [{"times": 2, "blocks": [
      {"layers": ["attention", {"experts": {"experts": 8, "top_k": 2, "ffn_hidden": 96}}]}]}]})");
  s["training"]["expert_load"] = {{"hot", {{"shares", 3}}}};
  s["training"]["global_batch"] = 16;
  s["plan"] = {{"pp", 2}, {"micro_batch", 4}, {"micro_batches", 4}};
  const std::string file = folder.file("s.json"), trace = folder.file("t.json");
  save_json(file, s);
  const auto experts = [&](const std::string& options) {
    const Output o = orrery("simulate " + file + " --trace " + trace + options);
    EXPECT_EQ(o.code, 0) << o.out;
    return load_timeline(trace).experts;
  };
  const ExpertCounts all = experts("");
  EXPECT_EQ(all.groups, (std::vector<std::vector<std::int64_t>>{{0}, {1}}));
  ASSERT_EQ(all.of.size(), 2U * 4);  // layers, micro-batches
  // Up to before the second stage's first work: what the first one did in its first micro-batch.
  const Time second = all.of[4].start, end = std::min(second, all.of[1].start) - Time{1'000'000};
  const ExpertCounts some = experts(fmt::format(" --window 0us:{:.3f}us", 1e6 * seconds(end)));
  EXPECT_EQ(some.groups, (std::vector<std::vector<std::int64_t>>{{0}}));
  ASSERT_EQ(some.of.size(), 1U);
  EXPECT_EQ(some.of[0], all.of[0]);
}

// End tokens are of data whose documents the scenario plans with.
TEST(Cli, EndTokensNeedDocuments) {
  const TemporaryFolder folder;
  Json s = load_json(scenario("tiny-cpu-pair"));
  const std::string file = folder.file("s.json"), run = "run --steps 1 " + file + " --end-token ";
  const auto refused = [&](const char* token, const char* why) {
    const Output o = orrery(run + token);
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_NE(o.out.find(why), std::string::npos) << o.out;
  };
  save_json(file, s);
  refused("3", "command line: /end-token: sequences of the scenario are not packed from documents");
  s["training"]["documents"] = {{"fixed", {{"tokens", 16}}}};
  save_json(file, s);
  refused("256", "command line: /end-token: 256 is no token of the data; allowed: 0 to 255");
  EXPECT_EQ(orrery(run + "3").code, 0);
}

TEST(Cli, EmulationIsCheckedBeforeAnythingRuns) {
  for (const char* wrong : {"--slow 2:1.3", "--slow 0:0.5", "--slow x", "--slow 0:nan", "--link fast",
                            "--link \"1 GB/s\" --link-latency soon", "--backend cuda --slow 0:2",
                            "--backend cuda --link \"1 GB/s\"", "--backend cuda --collectives ring",
                            "--rendezvous tcp://here", "--rendezvous tcp://here:1"}) {
    const Output o = orrery("run " + scenario("tiny-cpu-pair") + " " + wrong);
    EXPECT_EQ(o.code, 3) << wrong << ": " << o.out;
  }
  const TemporaryFolder folder;
  Json graphs = load_json(scenario("tiny-cpu"));
  graphs["stack"] = "orrery-graph";
  const std::string file = folder.file("graphs.json");
  std::ofstream(file) << graphs;
  const Output o = orrery("run " + file);
  EXPECT_EQ(o.code, 3) << o.out;
  EXPECT_NE(o.out.find("the CPU engine has no graphs"), std::string::npos) << o.out;
  graphs["stack"] = "orrery";
  graphs["training"]["stochastic_rounding"] = true;  // of fp32 parameters
  std::ofstream(file) << graphs;
  const Output rounded = orrery("run " + file);
  EXPECT_EQ(rounded.code, 3) << rounded.out;
  EXPECT_NE(rounded.out.find("/training/stochastic_rounding"), std::string::npos) << rounded.out;
  graphs["training"]["stochastic_rounding"] = false;
  graphs["training"]["lamb"] = true;
  graphs["training"]["precision"] = "sgd";
  std::ofstream(file) << graphs;
  const Output lamb = orrery("run " + file);
  EXPECT_EQ(lamb.code, 3) << lamb.out;
  EXPECT_NE(lamb.out.find("/training/lamb"), std::string::npos) << lamb.out;
  const Output slow = orrery("run " + scenario("tiny-cpu-pair") + " --link \"1 kB/s\" --deadline 5");
  EXPECT_EQ(slow.code, 1);
  EXPECT_NE(slow.out.find("over the emulated link, and the deadline is 5000 ms"), std::string::npos)
      << slow.out;
  EXPECT_EQ(orrery("run " + scenario("tiny-cpu-pair") + " --elastic").code, 2);  // needs --checkpoints
}

// An A100 has no 8-bit products, an H100 has them; a processor emulates them.
TEST(Cli, EightBitProductsNeedADeviceThatHasThem) {
  const TemporaryFolder folder;
  Json j = load_json(scenario("tiny-cpu"));
  j.erase("plan");
  j["training"]["precision"] = "mixed";
  j["training"]["math"] = "fp8";
  const auto planned_on = [&](const char* topology) {
    j["cluster"] = {{"topology", topology}, {"nodes", 1}};
    const std::string file = folder.file("fp8.json");
    std::ofstream(file) << j;
    return orrery("plan " + file);
  };
  const Output a100 = planned_on("p4d");
  EXPECT_EQ(a100.code, 3) << a100.out;
  EXPECT_NE(a100.out.find("/training/math: \"a100-40gb\" has no products of 8-bit floats"), std::string::npos)
      << a100.out;
  EXPECT_EQ(planned_on("dgx-h100").code, 0);
  EXPECT_EQ(planned_on("laptop-cpu").code, 0);
}

TEST(Cli, TheAnswerCarriesWhatItPromises) {
  const Output o = orrery("plan --json " + scenario("tiny-cpu"));
  ASSERT_EQ(o.code, 0);
  const Json j = parse_json(o.out, "out");
  EXPECT_EQ(j["schema"], "orrery.answer/1");
  for (const char* k : {"considered", "bounded", "costed", "simulated", "feasible", "seconds"})
    EXPECT_TRUE(j["search"].contains(k)) << k;
  ASSERT_FALSE(j["plans"].empty());
  for (const char* k : {"tp", "pp", "vpp", "dp", "zero", "micro_batch", "schedule", "recompute"})
    EXPECT_TRUE(j["plans"][0].contains(k)) << k;
  for (const char* k : {"step_time_s", "tokens_per_s", "mfu", "hfu", "peak_memory_bytes", "memory",
                        "breakdown", "cost_usd"}) {
    EXPECT_TRUE(j["plans"][0]["predicted"].contains(k)) << k;
  }
}

// The list of a schedule is the schedule: the same step and the same bytes. It runs, and what does not is
// refused where it stands.
TEST(Cli, AScheduleIsListedEditedAndRun) {
  const TemporaryFolder folder;
  const std::string named = folder.file("named.json"), listed = folder.file("listed.json"),
                    again = folder.file("again.json");
  Json s = load_json(scenario("tiny-listed-cpu"));
  s["plan"]["schedule"] = "1f1b";
  s["plan"].erase("schedule_order");
  std::ofstream(named) << s;
  ASSERT_EQ(orrery("simulate --list-schedule " + listed + " " + named).code, 0);
  Json plan = load_json(listed);
  EXPECT_EQ(plan["plan"]["schedule_order"]["stages"],
            Json({"F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"}));
  const auto predicted = [](const std::string& file) {
    const Output o = orrery("simulate --json " + file);
    EXPECT_EQ(o.code, 0) << o.out;
    return parse_json(o.out, "out")["predicted"];
  };
  EXPECT_EQ(predicted(listed), predicted(named));
  EXPECT_NE(predicted(scenario("tiny-listed-cpu"))["peak_memory_bytes"],
            predicted(named)["peak_memory_bytes"]);
  ASSERT_EQ(orrery("simulate --list-schedule " + again + " " + listed).code, 0);
  EXPECT_EQ(load_json(again), plan);
  EXPECT_EQ(orrery("run --steps 1 " + listed).code, 0);
  EXPECT_EQ(orrery("run --steps 1 " + scenario("tiny-listed-cpu")).code, 0);
  plan["plan"]["schedule_order"]["stages"][1] = "F0 F1 B0 B1 F2 B2 F3 B3";
  plan["plan"]["schedule_order"]["stages"][0] = "F0 B0 F1 B1 F2 F3 B2 B3";
  std::ofstream(listed) << plan;
  const Output refused = orrery("simulate " + listed);
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(
      refused.out.find("/plan/schedule_order/stages/0: B0, its piece 2, can never start: it waits for B0 "
                       "of stage 1, which stops before F1"),
      std::string::npos)
      << refused.out;
  s["search"]["schedule"] = {"1f1b", "listed"};
  std::ofstream(named) << s;
  const Output searched = orrery("plan " + named);
  EXPECT_EQ(searched.code, 3);
  EXPECT_NE(searched.out.find("/search/schedule/1: a search has no list of work"), std::string::npos)
      << searched.out;
}

TEST(Cli, SimulateFoldsRanksAsItSays) {
  const std::string file = scenario("llama3-70b-p4d");
  const auto simulate = [&](const std::string& options) {
    const Output o = orrery("simulate --json " + options + " " + file);
    EXPECT_EQ(o.code, 0) << o.out;
    return parse_json(o.out, "out");
  };
  const Json folded = simulate(""), ranks = simulate("--fold ranks"), slow = simulate("--slow 9:1.2");
  EXPECT_EQ(folded["places"].size(), 2U);
  EXPECT_EQ(ranks["places"].size(), 64U);
  EXPECT_EQ(folded["predicted"], ranks["predicted"]);
  // Of each of two stages: the rank, the one it shares a NIC with, the other six of its node, and their data
  // groups.
  EXPECT_EQ(slow["places"].size(), 12U);
  EXPECT_GT(slow["predicted"]["step_time_s"], folded["predicted"]["step_time_s"]);
  for (const char* wrong : {"--slow 64:2", "--slow 3", "--slow 3:0.5", "--slow x:2"}) {
    const Output o = orrery(std::string("simulate ") + wrong + " " + file);
    EXPECT_EQ(o.code, 3) << wrong << o.out;
    EXPECT_NE(o.out.find("a rank from 0 to 63, a factor from 1 to 100"), std::string::npos) << o.out;
  }
  EXPECT_NE(orrery("simulate --fold some " + file).out.find("allowed: stages, classes, ranks"),
            std::string::npos);
  // Two predictions compare like a prediction and a run: each rank with its stage.
  const TemporaryFolder folder;
  const std::string one = folder.file("one.json"), all = folder.file("all.json");
  ASSERT_EQ(orrery("simulate --trace " + one + " " + scenario("tiny-cpu")).code, 0);
  ASSERT_EQ(orrery("simulate --fold ranks --trace " + all + " " + scenario("tiny-cpu")).code, 0);
  const Json both = parse_json(orrery("compare --json " + one + " " + all).out, "out");
  EXPECT_EQ(both["matched"], 4104);  // ops of a stage on each of four ranks
  EXPECT_EQ(both["only_measured"], 0);
}

TEST(Cli, OutputIsTheSameForOneAndTwoThreads) {
  const auto without_seconds = [](std::string text) {
    Json j = parse_json(text, "out");
    j["search"].erase("seconds");
    return j.dump();
  };
  EXPECT_EQ(without_seconds(orrery("plan --json --threads 1 " + scenario("tiny-cpu")).out),
            without_seconds(orrery("plan --json --threads 2 " + scenario("tiny-cpu")).out));
}

TEST(Cli, ExitCodes) {
  EXPECT_EQ(orrery("").code, 2);
  EXPECT_EQ(orrery("plann x").code, 2);
  EXPECT_EQ(orrery("--help").code, 0);
  EXPECT_EQ(orrery("plan /does/not/exist.json").code, 3);
  const TemporaryFolder folder;
  std::ofstream(folder.file("s.json"))
      << R"({"model": "gpt3-175b", "cluster": {"topology": "p4d", "nodes": 1}, "training": {"global_batch": 8, "sequence": 2048}, "search": {"tp": [8]}})";
  const Output o = orrery("plan " + folder.file("s.json") + " -o " + folder.file("plan.json"));
  EXPECT_EQ(o.code, 4) << o.out;
  EXPECT_NE(o.out.find("no plan fits"), std::string::npos);
  EXPECT_NE(o.out.find("needs"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder.file("plan.json")));
  // 96 heads, and 7 of them on a rank: memory is not the reason. The scenario's own plan needs a node too
  // many, and nothing is known of its speed.
  std::ofstream(folder.file("seven.json"))
      << R"({"model": "gpt3-175b", "cluster": {"topology": "p4d", "nodes": 1}, "training": {"global_batch": 8, "sequence": 2048}, "search": {"tp": [7]}})";
  const Output none = orrery("plan " + folder.file("seven.json"));
  EXPECT_EQ(none.code, 4) << none.out;
  EXPECT_NE(none.out.find("no combination of the search is a plan"), std::string::npos) << none.out;
  EXPECT_EQ(none.out.find("no plan fits"), std::string::npos) << none.out;
  const Output nothing = orrery("simulate " + folder.file("seven.json"));
  EXPECT_EQ(nothing.code, 3);
  EXPECT_NE(nothing.out.find("there is nothing to simulate or run: no combination of the search is a plan"),
            std::string::npos)
      << nothing.out;
  std::ofstream(folder.file("large.json"))
      << R"({"model": "gpt2-124m", "cluster": {"topology": "p4d", "nodes": 1}, "training": {"global_batch": 16, "sequence": 1024}, "search": {"tp": [1], "pp": [1]}, "plan": {"dp": 16}})";
  const Output large = orrery("plan " + folder.file("large.json"));
  EXPECT_EQ(large.code, 0) << large.out;
  EXPECT_NE(large.out.find("16 ranks"), std::string::npos) << large.out;
  EXPECT_EQ(large.out.find("faster but the scenario's plan"), std::string::npos) << large.out;
}

TEST(Cli, DoctorNamesGpusOrSaysWhyThereAreNone) {
  const auto gpus = [] {
    const Output o = orrery("doctor --json");
    EXPECT_EQ(o.code, 0) << o.out;
    return Json::parse(o.out)["gpus"];
  };
  const Json seen = gpus();
  EXPECT_EQ(seen["devices"].empty(), !seen["problem"].get<std::string>().empty()) << seen;
  for (const Json& g : seen["devices"]) {
    EXPECT_GT(g["memory_bytes"], std::int64_t{1} << 30) << g;
    EXPECT_GT(g["units"], 0) << g;
    EXPECT_LT(g["peers"].size(), seen["devices"].size()) << g;
  }
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const Json hidden = gpus();
  const Output run = orrery("run " + scenario("tiny-cpu-pair") + " --backend cuda");
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.out.find("--backend cuda: "), std::string::npos) << run.out;
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_TRUE(hidden["devices"].empty()) << hidden;
  EXPECT_FALSE(hidden["problem"].get<std::string>().empty()) << hidden;
}

TEST(Cli, APlanThatThisEngineCannotRunSaysWhy) {
  const Output o = orrery("run " + scenario("llama3-70b-p4d"));
  EXPECT_EQ(o.code, 3);
  EXPECT_NE(o.out.find(".json: /stack: the stack \"megatron-core\" can be predicted only; allowed: orrery"),
            std::string::npos)
      << o.out;
}

TEST(Cli, ExportsPasteIntoALauncher) {
  const Output o = orrery("export --to megatron " + scenario("llama3-70b-p4d"));
  ASSERT_EQ(o.code, 0);
  for (const char* flag :
       {"--tensor-model-parallel-size 8", "--pipeline-model-parallel-size 2", "--sequence-parallel",
        "--use-distributed-optimizer", "--micro-batch-size 1", "--global-batch-size 512",
        "--recompute-granularity full", "--swiglu", "--num-query-groups 8",
        "--untie-embeddings-and-output-weights", "--normalization RMSNorm"}) {
    EXPECT_NE(o.out.find(flag), std::string::npos) << flag;
  }
  const Output d = orrery("export --to deepspeed " + scenario("tiny-cpu"));
  const Json j = parse_json(d.out.substr(d.out.find('{')), "deepspeed");
  EXPECT_EQ(j["train_batch_size"].get<int>(),
            j["train_micro_batch_size_per_gpu"].get<int>() * j["gradient_accumulation_steps"].get<int>() * 2);
  EXPECT_EQ(j["zero_optimization"]["stage"], 1);
  EXPECT_NE(orrery("export --to megatron --launcher slurm " + scenario("llama3-70b-p4d"))
                .out.find("#SBATCH --nodes=8"),
            std::string::npos);
}

std::size_t count(const std::string& text, const std::string& of) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(of, at)) != text.npos; at += of.size()) ++n;
  return n;
}

// A disk is full, or a file may not grow: whoever watches the run misses something, and the run goes on.
TEST(Cli, FilesForWatchersDoNotEndARun) {
  const TemporaryFolder folder;
  const std::string run = std::string(ORRERY_BINARY) + " run " + scenario("tiny-cpu-pair");
  const Output full = shell(run + " --steps 3 --metrics-file /dev/full --checkpoints " + folder.file("c"));
  EXPECT_EQ(full.code, 0) << full.out;
  EXPECT_EQ(count(full.out, "/dev/full"), 1U) << full.out;
  EXPECT_EQ(count(full.out, "alert: /dev/full: cannot be written: No space left on device\n"), 1U)
      << full.out;
  EXPECT_TRUE(fs::exists(folder.file("c") + "/step-00000003/index.json"));
  const Output silent = shell(run + " --steps 3 --metrics-file /dev/full 2>/dev/full");
  EXPECT_EQ(silent.code, 0) << silent.out;
  EXPECT_EQ(shell(std::string(ORRERY_BINARY) + " run /nowhere.json 2>/dev/full").code, 3);
  // A kilobyte is a few steps of scalars.
  const Output board = shell("ulimit -f 1; " + run + " --steps 20 --tensorboard " + folder.file("t"));
  EXPECT_EQ(board.code, 0) << board.out;
  EXPECT_NE(board.out.find("\nstep   20"), std::string::npos) << board.out;
  EXPECT_EQ(count(board.out, "alert: cannot write " + folder.file("t") + "/events.out.tfevents."), 1U)
      << board.out;
  EXPECT_EQ(count(board.out, ": File too large; TensorBoard gets no more scalars\n"), 1U) << board.out;
  // The metrics are tried again after every step.
  const std::string metrics = folder.file("metrics"), good = folder.file("good"), err = folder.file("err");
  const Output again =
      shell("touch " + good + "; ln -s /dev/full " + metrics + "; " + run +
            " --steps 1000000 --metrics-file " + metrics + " >" + folder.file("out") + " 2>" + err +
            " & until grep -q alert " + err + "; do sleep 0.01; done; ln -sfn " + good + " " + metrics +
            "; until grep -q orrery_step " + good + "; do sleep 0.01; done; kill -TERM $!; wait $!");
  EXPECT_EQ(again.code, 143) << again.out;
}

TEST(Cli, ACheckpointThatIsNotWrittenIsSaidOnce) {
  const TemporaryFolder folder;
  const Output out = shell("ulimit -f 1; " + std::string(ORRERY_BINARY) + " run " +
                           scenario("tiny-cpu-pair") + " --steps 1 --checkpoints " + folder.file("c"));
  EXPECT_EQ(out.code, 1) << out.out;
  EXPECT_EQ(count(out.out, "no checkpoint of step 1: "), 1U) << out.out;
}

TEST(Cli, SeedsHave64Bits) {
  const std::string run = "run " + scenario("tiny-cpu-pair") + " --steps 1 --seed ";
  for (const char* wrong : {"99999999999999999999", "-9223372036854775809", "1.5", "one"}) {
    const Output out = orrery(run + wrong);
    EXPECT_EQ(out.code, 3) << out.out;
    EXPECT_EQ(out.out, "orrery: command line: /seed: \"" + std::string(wrong) +
                           "\"; allowed: whole numbers from -9223372036854775808 to 9223372036854775807\n");
  }
  for (const char* right : {"9223372036854775807", "-1"}) EXPECT_EQ(orrery(run + right).code, 0) << right;
}

TEST(Cli, TheDocumentationNamesEveryTarget) {
  const auto names = [](auto all) {
    std::vector<std::string> out;
    for (const auto& [value, name] : all) out.emplace_back(name);
    return fmt::format("{}", fmt::join(out, "|"));
  };
  const std::string line =
      fmt::format("orrery export PLAN|SCENARIO --to {}\n           [--launcher {}]\n",
                  names(enum_names(planner::Target{})), names(enum_names(planner::Launcher{})));
  EXPECT_NE(load_text(std::string(ORRERY_ROOT) + "/docs/cli.md").find(line), std::string::npos) << line;
}

// Before the first step, with nothing written.
TEST(Cli, ARunThatCannotEndWellDoesNotBegin) {
  const TemporaryFolder folder;
  const std::string run = "run " + scenario("tiny-cpu") + " --steps 1 ";
  const auto refused = [&](const std::string& options, const std::string& why) {
    const Output out = orrery(run + options);
    EXPECT_EQ(out.code, 3) << options;
    EXPECT_NE(out.out.find(why), std::string::npos) << out.out;
    EXPECT_EQ(out.out.find("step "), std::string::npos) << out.out;
  };
  refused("--trace /nowhere/t.json",
          "/trace: \"/nowhere/t.json\" cannot be written: No such file or directory");
  refused("--trace " + folder.path(), "cannot be written: Is a directory");
  refused("--metrics-file /nowhere/m", "/metrics-file: \"/nowhere/m\" cannot be written: No such file");
  refused("--checkpoints /proc/c", "/checkpoints: the folder \"/proc/c\" cannot be made: ");
  refused("--checkpoints " + folder.file("c") + " --checkpoint-every soon",
          "/checkpoint-every: \"soon\"; allowed: 1 to 1000000 steps, or a duration of a second or more");
  refused("--checkpoints " + folder.file("c") + " --checkpoint-every 0", "\"0\"; allowed: 1 to");
  EXPECT_FALSE(std::filesystem::exists(folder.file("c")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const Output timed = orrery(run + "--checkpoints " + folder.file("c") + " --checkpoint-every '10 min'");
  EXPECT_EQ(timed.code, 0) << timed.out;
  EXPECT_TRUE(std::filesystem::exists(folder.file("c") + "/step-00000001/index.json"));
}

// 70 billion parameters in fp32 with their gradients and moments are more than a terabyte.
TEST(Cli, ARunThatMemoryDoesNotHoldIsRefused) {
  const TemporaryFolder folder;
  Json large = load_json(scenario("tiny-cpu"));
  large["model"] = "llama-2-70b";
  large["training"]["precision"] = "fp32";
  large["training"]["math"] = "fp32";
  large["plan"] = {{"tp", 1}, {"dp", 2}, {"micro_batch", 1}};
  large["training"]["global_batch"] = 2;
  large["training"]["sequence"] = 128;
  large["plan"]["micro_batches"] = 1;
  save_json(folder.file("large.json"), large);
  const Output out = orrery("run " + folder.file("large.json") + " --steps 1");
  EXPECT_EQ(out.code, 3) << out.out;
  EXPECT_NE(out.out.find("/plan: the plan's 2 ranks on this machine need "), std::string::npos) << out.out;
  EXPECT_NE(out.out.find("; allowed: a smaller model or batch, fewer ranks, --proxy FILE"), std::string::npos)
      << out.out;
}

TEST(Cli, ResumingFromNothingNeedsForce) {
  const TemporaryFolder folder;
  const std::string run =
      "run " + scenario("tiny-cpu") + " --steps 1 --checkpoints " + folder.file("none") + " --resume";
  const Output missing = orrery(run);
  EXPECT_EQ(missing.code, 3);
  EXPECT_NE(missing.out.find("none\" is no folder; allowed: a folder with a checkpoint, or --force"),
            std::string::npos)
      << missing.out;
  EXPECT_FALSE(std::filesystem::exists(folder.file("none")));
  std::filesystem::create_directory(folder.file("none"));
  const Output empty = orrery(run);
  EXPECT_EQ(empty.code, 3);
  EXPECT_NE(empty.out.find("none\" holds no checkpoint; allowed: "), std::string::npos) << empty.out;
  const Output forced = orrery(run + " --force");
  EXPECT_EQ(forced.code, 0) << forced.out;
  EXPECT_NE(forced.out.find("alert: the run starts from step 0, as " + folder.file("none") +
                            " holds no checkpoint\n"),
            std::string::npos)
      << forced.out;
  EXPECT_TRUE(std::filesystem::exists(folder.file("none") + "/step-00000001/index.json"));
  EXPECT_EQ(orrery(run).code, 0);  // now there is one
}

}  // namespace
}  // namespace orrery
