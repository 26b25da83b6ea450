// SPDX-License-Identifier: Apache-2.0
//
// Scenarios without a file: options in place of one, over one, and answers to questions.
#include <gtest/gtest.h>

#include <fstream>

#include "core/json.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

const std::string kRest = " --cluster p4d --nodes 1 --batch 64 --sequence 1024",
                  kGpt2 = " --model gpt2-124m" + kRest;

// Standard output alone.
Output orrery_stdout(const std::string& arguments) {
  return shell(std::string(ORRERY_BINARY) + " " + arguments + " 2>/dev/null");
}

Json answer_of(const std::string& command) {
  const Output o = orrery_stdout(command + " --json");
  EXPECT_EQ(o.code, 0) << command << "\n" << o.out;
  return o.code == 0 ? parse_json(o.out, "answer") : Json();
}

void expect_refused(const std::string& command, const std::string& message) {
  const Output o = orrery(command);
  EXPECT_EQ(o.code, 3) << command << "\n" << o.out;
  EXPECT_NE(o.out.find(message), std::string::npos) << command << "\n" << o.out;
}

TEST(OneLine, AnswersAsTheScenarioThatItStandsFor) {
  TemporaryFolder folder;
  const std::string file = folder.file("scenario.json");
  const Json line = answer_of("plan" + kGpt2 + " --tokens 1e9 --save-scenario " + file);
  const Json scenario = load_json(file);
  EXPECT_EQ(scenario["schema"], "orrery.scenario/1");
  EXPECT_EQ(scenario["model"], "gpt2-124m");
  EXPECT_EQ(scenario["cluster"], (Json{{"topology", "p4d"}, {"nodes", 1}}));
  EXPECT_EQ(scenario["training"], (Json{{"global_batch", 64}, {"sequence", 1024}, {"tokens", 1e9}}));
  const Json of_file = answer_of("plan " + file);
  EXPECT_EQ(line["plans"], of_file["plans"]);
  EXPECT_GT(line["plans"][0]["predicted"]["days"].get<double>(), 0);
}

// Each option, against the field that it stands for.
TEST(OneLine, OptionsGoOverFields) {
  TemporaryFolder folder;
  const std::string from = folder.file("from.json"), to = folder.file("to.json");
  save_json(from, {{"model", "gpt2-350m"},
                   {"cluster", {{"topology", "p4d"}, {"nodes", 1}}},
                   {"training", {{"global_batch", 32}, {"sequence", 512}, {"clip", 0.5}}},
                   {"search", {{"tp", {1}}}}});
  const auto made = [&](const std::string& options) {
    const Output o = orrery("new " + from + " -o " + to + options);
    EXPECT_EQ(o.code, 0) << o.out;
    Json out = load_json(to);
    out.erase("schema");
    return out;
  };
  const Json unchanged = load_json(from);
  EXPECT_EQ(made(""), unchanged);
  const auto with = [&](const char* pointer, const Json& value) {
    Json out = unchanged;
    out[Json::json_pointer(pointer)] = value;
    return out;
  };
  EXPECT_EQ(made(" --model gpt2-124m"), with("/model", "gpt2-124m"));
  EXPECT_EQ(made(" --cluster p4de"), with("/cluster/topology", "p4de"));
  EXPECT_EQ(made(" --nodes 2"), with("/cluster/nodes", 2));
  EXPECT_EQ(made(" --batch 64"), with("/training/global_batch", 64));
  EXPECT_EQ(made(" --sequence 256"), with("/training/sequence", 256));
  EXPECT_EQ(made(" --tokens 2e9"), with("/training/tokens", 2e9));
  EXPECT_EQ(made(" --math fp16"), with("/training/math", "fp16"));
  EXPECT_EQ(made(" --precision megatron"), with("/training/precision", "megatron"));
  EXPECT_EQ(made(" --stack deepspeed"), with("/stack", "deepspeed"));
  EXPECT_EQ(made(" --set training.clip=0"), with("/training/clip", 0));
  EXPECT_EQ(made(" --set 'search.tp=[1,2]' --set name=two"), [&] {
    Json out = with("/search/tp", {1, 2});
    out["name"] = "two";
    return out;
  }());
  EXPECT_EQ(made(" --set model.layers=6"), with("/model", {{"preset", "gpt2-350m"}, {"layers", 6}}));
  // A file may come behind options that take several values.
  const Output last = orrery("new -o " + to + " --cluster p4de --set training.clip=0 " + from);
  EXPECT_EQ(last.code, 0) << last.out;
  EXPECT_EQ(load_json(to)["model"], "gpt2-350m");
  EXPECT_EQ(load_json(to)["training"]["clip"], 0);
  const Json by = made(" --tokens 2e9 --deadline '30 days'");
  EXPECT_EQ(by["goal"], "cost-by-deadline");
  EXPECT_EQ(by["deadline"], "30 days");
  EXPECT_EQ(made(" --tokens 2e9 --budget 5000")["goal"], "time-in-budget");
}

TEST(OneLine, WhatIsWrongIsTheCommandLines) {
  TemporaryFolder folder;
  expect_refused("plan", "command line: /: --model, --cluster, --batch, --sequence are missing");
  expect_refused("plan --model gpt2-124m --cluster p4d --batch 8", "command line: /: --sequence is missing");
  expect_refused("plan" + kGpt2 + " --math fp9", "command line: /training/math: \"fp9\"");
  expect_refused("plan --model llama-3.1-8c" + kRest, "command line: /model: there is no model preset");
  expect_refused("plan --model llama-3.1-8c" + kRest, "did you mean \"llama-3.1-8b\"");
  expect_refused("plan --model gpt2-124m --cluster p6 --batch 8 --sequence 64",
                 "command line: /cluster/topology: \"p6\" is not in topologies");
  expect_refused("plan --model gpt2-124m --cluster p4d --batch 0 --sequence 64",
                 "command line: /training/global_batch: 0 is out of range");
  expect_refused("plan" + kGpt2 + " --set training.clipp=1", "command line: /training/clipp: ");
  expect_refused("plan" + kGpt2 + " --set training.clip", "allowed: FIELD=VALUE");
  expect_refused("plan" + kGpt2 + " --set =1", "allowed: FIELD=VALUE");
  expect_refused("plan" + kGpt2 + " --set a..b=1", "is no field");
  expect_refused("plan" + kGpt2 + " --set training.clip.x=1", "command line: /training/clip");
  expect_refused("plan" + kGpt2 + " --set " + std::string(400, 'a') + std::string(50, '.') + "b=1",
                 "is no field");
  for (const char* list : {"a.4000000000=1", "a.01=1", "a.-=1", "search.tp.0=2"})
    expect_refused("plan" + kGpt2 + " --set " + list, "is no field");
  std::string deep = "a";
  for (int i = 0; i < 20000; ++i) deep += ".a";
  expect_refused("plan" + kGpt2 + " --set " + deep + "=1", "is no field");
  expect_refused("plan" + kGpt2 + " --set 'training.clip=" + std::string(50000, '[') + "'",
                 "command line: /training/clip: ");
  // Of a file's own mistakes the file is named, of an option over it the command line.
  const std::string file = folder.file("wrong.json");
  save_json(file, {{"model", "gpt2-124m"},
                   {"cluster", {{"topology", "p4d"}}},
                   {"training", {{"global_batch", 8}, {"sequence", 64}, {"math", "fp9"}}}});
  expect_refused("plan " + file, file + ": /training/math: \"fp9\"");
  expect_refused("plan " + file + " --math bf17", "command line: /training/math: \"bf17\"");
  EXPECT_EQ(orrery("plan " + file + " --math bf16 --nodes 1").code, 0);
}

// Files that options name stand where the command runs.
TEST(OneLine, AModelIsAConfigJsonToo) {
  TemporaryFolder folder;
  const std::string config = folder.file("config.json");
  save_json(config, {{"model_type", "gpt2"},
                     {"n_layer", 12},
                     {"n_embd", 768},
                     {"n_head", 12},
                     {"n_positions", 1024},
                     {"vocab_size", 50257},
                     {"n_inner", nullptr}});
  const std::string rest = " --cluster p4d --nodes 1 --batch 64 --sequence 1024";
  const Json of_config = answer_of("plan --model " + config + rest), preset = answer_of("plan" + kGpt2);
  EXPECT_EQ(of_config["plans"][0]["predicted"]["step_time_s"],
            preset["plans"][0]["predicted"]["step_time_s"]);
  EXPECT_EQ(orrery("plan --model " + folder.file("none.json") + rest).code, 3);
}

// Each cluster's row is its own answer, the fastest first; by a deadline the cheapest.
TEST(OneLine, ComparesClusters) {
  const std::string rest = " --model gpt2-350m --nodes 1 --batch 64 --sequence 1024 --tokens 1e10";
  const Json all = answer_of("plan --cluster p4d,p5,p4de" + rest);
  ASSERT_EQ(all["clusters"].size(), 3U);
  double before = 0;
  for (const Json& c : all["clusters"]) {
    const std::string name = c["cluster"].get<std::string>();
    const Json alone = answer_of("plan --cluster " + name + rest);
    EXPECT_EQ(c["plan"], alone["plans"][0]) << name;
    EXPECT_GE(c["plan"]["predicted"]["step_time_s"].get<double>(), before);
    before = c["plan"]["predicted"]["step_time_s"].get<double>();
  }
  EXPECT_EQ(all["clusters"][0]["cluster"], "p5");
  const Json cheap = answer_of("plan --cluster p4d,p5,p4de --deadline '100 days'" + rest);
  before = 0;
  for (const Json& c : cheap["clusters"]) {
    EXPECT_GE(c["plan"]["predicted"]["cost_usd"].get<double>(), before);
    before = c["plan"]["predicted"]["cost_usd"].get<double>();
  }
  TemporaryFolder folder;
  expect_refused("plan --cluster p4d,p5" + rest + " -o " + folder.file("plan.json"), "allowed: one cluster");
  expect_refused("plan --cluster p4d,p6" + rest, "command line: /cluster/topology: \"p6\"");
  expect_refused("plan --cluster p4d,p5 --max-nodes 2" + rest.substr(0, rest.find(" --nodes")) +
                     " --batch 64 --sequence 1024",
                 "allowed: one cluster");
  const Output text = orrery("plan --cluster p4d,p5" + rest);
  EXPECT_EQ(text.code, 0) << text.out;
  const std::size_t first = text.out.find("\np5 "), second = text.out.find("\np4d ");
  ASSERT_NE(second, std::string::npos) << text.out;
  EXPECT_LT(first, second) << text.out;
  // A100s have no fp8: their row says so, and the others are planned.
  const Json fp8 = answer_of("plan --cluster p4d,p5 --math fp8" + rest);
  EXPECT_EQ(fp8["clusters"][0]["cluster"], "p5");
  EXPECT_EQ(fp8["clusters"][0]["lacks"], "");
  EXPECT_NE(fp8["clusters"][1]["lacks"].get<std::string>().find("8-bit floats"), std::string::npos);
  EXPECT_TRUE(fp8["clusters"][1]["plan"].is_null());
  expect_refused("plan --cluster p4d,p4de --math fp8" + rest, "8-bit floats");
}

// Of each number of nodes up to the most, days that fall and dollars.
TEST(OneLine, TabulatesNumbersOfNodes) {
  const Json a = answer_of(
      "plan --model gpt2-1558m --cluster p4d --max-nodes 4 --batch 256 --sequence 1024 --tokens 1e10");
  ASSERT_GE(a["sizes"].size(), 3U);
  for (std::size_t i = 1; i < a["sizes"].size(); ++i) {
    EXPECT_GT(a["sizes"][i]["nodes"], a["sizes"][i - 1]["nodes"]);
    EXPECT_LT(a["sizes"][i]["days"], a["sizes"][i - 1]["days"]);
  }
  EXPECT_TRUE(answer_of("plan" + kGpt2)["sizes"].empty());
}

TEST(NewScenario, AsksForWhatIsMissing) {
  TemporaryFolder folder;
  const std::string answers = folder.file("answers"), file = folder.file("scenario.json");
  std::ofstream(answers) << "gpt2-125m\np4d\n1.5\n0\nnan\n\nmany\n64\n1024\n1e9\ngpt2-124m\n";
  const Output o = orrery("new --ask -o " + file + " < " + answers);
  EXPECT_EQ(o.code, 0) << o.out;
  EXPECT_NE(o.out.find("\"many\" is no answer"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("there is no model preset"), std::string::npos) << o.out;
  const Json scenario = load_json(file);
  EXPECT_EQ(scenario["model"], "gpt2-124m");
  EXPECT_EQ(scenario["training"], (Json{{"global_batch", 64}, {"sequence", 1024}, {"tokens", 1e9}}));
  EXPECT_FALSE(scenario["cluster"].contains("nodes"));
  EXPECT_EQ(orrery("simulate " + file).code, 0);
  // What a file has is not asked for; what an option says wrongly for ever is not asked for ever.
  save_json(file, scenario);
  EXPECT_EQ(orrery("new --ask " + file + " < /dev/null").code, 0);
  const Output endless = shell("yes 5 | " + std::string(ORRERY_BINARY) + " new --ask" + kGpt2 +
                               " --set training.global_batch=0");
  EXPECT_EQ(endless.code, 3) << endless.out.substr(0, 500);
  // Input that ends, and nothing to ask on.
  std::ofstream(answers) << "gpt2-124m\n";
  const std::string none = folder.file("none.json");
  expect_refused("new --ask -o " + none + " < " + answers,
                 "standard input: /cluster/topology: ended before an answer");
  expect_refused("new -o " + none + " < /dev/null", "--model, --cluster, --batch, --sequence are missing");
  EXPECT_FALSE(std::filesystem::exists(none));
}

// Files that a scenario's file names are found from wherever the new one stands.
TEST(NewScenario, NamesFilesWhereTheyStand) {
  TemporaryFolder folder;
  const std::string from = folder.file("from.json"), below = folder.file("below");
  std::filesystem::create_directories(below);
  save_json(folder.file("cluster.json"), load_json(std::string(ORRERY_ROOT) + "/topologies/p4d.json"));
  save_json(from, {{"model", "gpt2-124m"},
                   {"cluster", {{"topology", "cluster.json"}, {"nodes", 1}}},
                   {"training", {{"global_batch", 8}, {"sequence", 128}}}});
  const std::string to = below + "/to.json";
  EXPECT_EQ(orrery("new " + from + " -o " + to).code, 0);
  const Output o = orrery("simulate " + to);
  EXPECT_EQ(o.code, 0) << o.out;
}

TEST(NewScenario, GoesToStandardOutput) {
  const Output o = orrery_stdout("new" + kGpt2);
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(parse_json(o.out, "scenario")["model"], "gpt2-124m");
}

}  // namespace
}  // namespace orrery
