// SPDX-License-Identifier: Apache-2.0
//
// Answers to wrong input as their readers see them: which file, which place, which exit code, and a terminal
// that stays what it is.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "core/json.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

// A scenario, and its cluster, device, links and stack as files of their own.
class Files : public testing::Test {
 protected:
  Files() {
    const std::string root = std::string(ORRERY_ROOT) + "/";
    change_[kScenario] = load_json(root + "scenarios/tiny-cpu.json");
    Json& s = change_[kScenario];
    s["cluster"] = {{"topology", "cluster.json"}, {"nodes", 4}};
    s["stack"] = "stack.json";
    Json& c = change_["cluster.json"] = load_json(root + "topologies/laptop-cpu.json");
    c["device"] = "device.json";
    c["links"] = "links.json";
    c["devices_per_node"] = 4;
    c.erase("intra_bandwidth");
    change_["device.json"] = load_json(root + "profiles/cpu-reference.json");
    change_["links.json"] = load_json(root + "profiles/links/nvlink3-a100.json");
    change_["stack.json"] = load_json(root + "profiles/stacks/orrery.json");
    write();
  }

  Json& json(const std::string& name) { return change_[name]; }
  void write() const {
    for (const auto& [name, value] : change_) save_json(file(name), value);
  }
  std::string file(const std::string& name) const { return folder_.file(name.c_str()); }
  // What a command says of the files with one change, which is undone.
  Output with(const std::string& name, const std::function<void(Json&)>& change,
              const std::string& command = "simulate") {
    const Json before = change_[name];
    change(change_[name]);
    write();
    Output out = orrery(command + " " + file(kScenario));
    change_[name] = before;
    write();
    return out;
  }
  static std::string first_line(const Output& o) { return o.out.substr(0, o.out.find('\n')); }

  static constexpr const char* kScenario = "scenario.json";

 private:
  TemporaryFolder folder_;
  std::map<std::string, Json> change_;
};

TEST_F(Files, ErrorsNameTheFileThatHoldsTheValue) {
  ASSERT_EQ(orrery("simulate " + file(kScenario)).code, 0) << orrery("simulate " + file(kScenario)).out;
  const auto expect = [&](const std::string& name, const std::string& pointer, const Json& value,
                          const std::string& where, const std::string& message) {
    const Output o = with(name, [&](Json& j) { j[Json::json_pointer(pointer)] = value; });
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_EQ(o.out.find("orrery: " + file(where) + ": " + pointer + ": " + message), 0U) << o.out;
  };
  expect("device.json", "/memory", "-1 GiB", "device.json",
         "\"-1 GiB\" is out of range; allowed: at least 1.0 MiB, at most 1048576.00 GiB");
  expect("device.json", "/host_op", "100 h", "device.json", "\"100 h\" is out of range");
  expect("links.json", "/intra_latency", "1 h", "links.json", "\"1 h\" is out of range");
  expect("stack.json", "/communicator", "9.2e18 B", "stack.json", "\"9.2e18 B\" is out of range");
  expect("cluster.json", "/nic_bandwidth", "9e18 B/s", "cluster.json", "\"9e18 B/s\" is out of range");
  expect("cluster.json", "/device", "no-such", "cluster.json", "\"no-such\" is not in profiles");
  expect("cluster.json", "/links", "nvlink3-a10", "cluster.json", "\"nvlink3-a10\" is not in profiles/links");
  expect(kScenario, "/stack", "megatron", kScenario, "\"megatron\" is not in profiles/stacks");
  expect(kScenario, "/cluster/topology", "p4", kScenario, "\"p4\" is not in topologies");
  // The scenario says how many nodes, so the scenario is named when they are too many.
  expect(kScenario, "/cluster/nodes", 1 << 20, kScenario, "the network of 1048576 nodes has more links");
}

// Adapters that the model, the software or a command has no use for are refused, never left out.
TEST_F(Files, AdaptersThatCannotBeAreRefused) {
  const auto refused = [&](const Json& adapter, const std::string& message,
                           const std::string& command = "simulate", const std::string& stack = "stack.json") {
    const Output o = with(
        kScenario,
        [&](Json& s) {
          s["training"]["adapter"] = adapter;
          s["stack"] = stack;
        },
        command);
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_NE(o.out.find(message), std::string::npos) << o.out;
  };
  const Json adapter = {{"rank", 4}};
  EXPECT_EQ(with(kScenario, [&](Json& s) { s["training"]["adapter"] = adapter; }).code, 0);
  refused({{"rank", 4}, {"targets", {"q", "kv_down"}}},
          "/training/adapter/targets/1: \"kv_down\": no layer of the model has such a matrix; allowed: q, k, "
          "v, o, "
          "gate, up, down");
  refused({{"rank", 0}}, "/training/adapter/rank: ");
  refused({{"rank", 4}, {"targets", {"query"}}}, "/training/adapter/targets/0: \"query\" ");
  refused({{"rank", 4}, {"base", "int8"}}, "/training/adapter/base: \"int8\" ");
  // Columns of as many adapters as a rank has count in what a step may take.
  EXPECT_EQ(with(kScenario,
                 [](Json& j) {
                   j["training"]["adapter"] = {{"rank", 65536}};
                   j["training"]["global_batch"] = 1 << 24;
                   j["training"]["sequence"] = 1 << 20;
                   j.erase("plan");
                 })
                .code,
            3);
  refused(adapter, "/training/adapter: ", "simulate", "torchtitan");
  refused(adapter, "/training/adapter: Megatron-LM's script trains no adapters", "export --to megatron");
}

// Muon where nothing else could update the rest, or could not do its own.
TEST_F(Files, MuonThatCannotBeIsRefused) {
  const auto refused = [&](const Json& training, const std::string& message,
                           const std::string& command = "simulate") {
    const Output o = with(
        kScenario, [&](Json& s) { s["training"].update(training); }, command);
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_NE(o.out.find(message), std::string::npos) << o.out;
  };
  const Json none = Json::object();
  EXPECT_EQ(with(kScenario, [&](Json& s) { s["training"]["muon"] = none; }).code, 0);
  refused({{"muon", none}, {"precision", "sgd"}}, "/training/muon: AdamW updates what Muon does not");
  refused({{"muon", none}, {"lamb", true}}, "/training/muon: LAMB scales updates of Adam");
  refused({{"muon", none}, {"adapter", {{"rank", 4}}}},
          "/training/muon: adapters are updated by AdamW alone");
  refused({{"muon", {{"iterations", 0}}}}, "/training/muon/iterations: ");
  refused({{"muon", {{"tp_mode", "blocks"}}}}, "/training/muon/tp_mode: \"blocks\" ");
  refused({{"muon", none}}, "/training/muon: servers update shards of matrices", "parameter-server");
}

TEST_F(Files, APlanFileIsNamedWithThePointerIntoIt) {
  ASSERT_EQ(orrery("plan " + file(kScenario) + " --threads 1 -o " + file("plan.json")).code, 0);
  Json plan = load_json(file("plan.json"));
  plan["scenario"]["stack"] = "no-such";
  save_json(file("plan.json"), plan);
  const Output o = orrery("simulate " + file("plan.json"));
  EXPECT_EQ(o.code, 3);
  EXPECT_EQ(o.out.find("orrery: " + file("plan.json") + ": /scenario/stack: \"no-such\""), 0U) << o.out;
  plan["scenario"]["stack"] = "megatron-core";
  plan["plan"]["zero"] = 1;  // which that stack runs with a pipeline
  save_json(file("plan.json"), plan);
  const Output predicted = orrery("run " + file("plan.json"));
  EXPECT_EQ(predicted.code, 3);
  EXPECT_EQ(predicted.out.find("orrery: " + file("plan.json") +
                               ": /scenario/stack: the stack \"megatron-core\" can be predicted only"),
            0U)
      << predicted.out;
}

TEST_F(Files, APlanHasNoMoreRanksThanTheClusterHasDevices) {
  const Output o = with(kScenario, [](Json& j) { j["cluster"]["nodes"] = 1; });  // of 4 devices, for 8 ranks
  EXPECT_EQ(o.code, 3);
  EXPECT_NE(
      o.out.find(
          "scenario.json: /plan: TP2 PP2 DP2 mb1x8 1f1b zero1 has 8 ranks, and the cluster \"laptop-cpu\" "
          "has 4 devices"),
      std::string::npos)
      << o.out;
}

TEST_F(Files, GoalsNeedTheirLimits) {
  const auto plan = [&](const char* goal, std::initializer_list<std::pair<const char*, Json>> fields) {
    return with(
        kScenario,
        [&](Json& j) {
          j["goal"] = goal;
          for (const auto& [name, value] : fields) j[name] = value;
        },
        "plan --threads 1");
  };
  const auto missing = [&](const Output& o, const std::string& pointer) {
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_NE(o.out.find("scenario.json: " + pointer + ": is missing or zero, and the goal"),
              std::string::npos)
        << o.out;
    EXPECT_NE(o.out.find("; allowed: more than zero, like "), std::string::npos) << o.out;
  };
  missing(plan("cost", {}), "/node_hour");
  missing(plan("cost-by-deadline", {{"node_hour", "$1"}}), "/deadline");
  missing(plan("time-in-budget", {{"node_hour", "$1"}}), "/budget");
  missing(
      plan("time-in-budget",
           {{"node_hour", "$1"},
            {"budget", "$9"},
            {"training", {{"global_batch", 16}, {"sequence", 64}, {"precision", "fp32"}, {"math", "fp32"}}}}),
      "/training/tokens");
  missing(plan("cost", {{"node_hour", "$0"}}), "/node_hour");
  missing(plan("cost-by-deadline", {{"node_hour", "$1"}, {"deadline", "0 h"}}), "/deadline");
  missing(plan("time-in-budget", {{"node_hour", "$1"}, {"budget", "$0"}}), "/budget");
  EXPECT_EQ(plan("cost-by-deadline", {{"node_hour", "$1"}, {"deadline", "10 h"}}).code, 0);
  const Output ignored = plan("time", {{"deadline", "10 h"}, {"budget", "$9"}});
  EXPECT_EQ(ignored.code, 0);
  EXPECT_NE(ignored.out.find(
                "note: the goal \"time\" ignores the deadline; the goal \"cost-by-deadline\" keeps to it\n"
                "note: the goal \"time\" ignores the budget"),
            std::string::npos)
      << ignored.out;
  // The command line's goal is held to the same.
  missing(orrery("plan --threads 1 --goal cost " + file(kScenario)), "/node_hour");
}

// What takes hours is said in hours, as the deadline is.
TEST_F(Files, ALateAnswerIsInTheUnitsOfItsDeadline) {
  const Output o = with(
      kScenario,
      [](Json& j) {
        j["goal"] = "cost-by-deadline";
        j["node_hour"] = "$1";
        j["deadline"] = "1 s";
        j["cluster"]["nodes"] = 1;
        j.erase("plan");
        j["training"]["tokens"] = 1e9;
      },
      "plan --threads 1");
  EXPECT_EQ(o.code, 4) << o.out;
  EXPECT_NE(o.out.find("meets the deadline of 1 s: the best takes "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find(" h, and no larger number of nodes"), std::string::npos) << o.out;
}

// Whoever wrote the value is named, not the file that it is used with.
TEST_F(Files, TheFileThatAsksForTooMuchIsNamed) {
  const auto expect = [&](const Output& o, const std::string& message) {
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_EQ(o.out.find("orrery: " + message), 0U) << o.out;
  };
  expect(with(
             kScenario,
             [](Json& j) {
               j["search"]["nodes"] = {4, 1 << 20};
             },
             "plan --threads 1"),
         file(kScenario) + ": /search/nodes/1: the network of 1048576 nodes has more links than are built");
  expect(with("cluster.json",
              [](Json& j) {
                j["nodes"] = 4;
                j["fabric"] = {{"kind", "graph"}, {"routing", "minimal"}, {"cables", Json::array()}};
              }),
         file("cluster.json") + ": /fabric: there is no way from device 0 to device 4; allowed: ");
  expect(
      with("cluster.json",
           [](Json& j) {
             j["fabric"] = {{"kind", "torus"}};
           }),
      file("cluster.json") +
          ": /fabric/routing: a fabric of kind \"torus\" has no routing \"spray\", the default; allowed: ");
  expect(with("stack.json", [](Json& j) { j["measured_low"] = 5; }),
         file("stack.json") + ": /measured_low: 5 is more than measured_high; allowed: at most 3");
  expect(with("stack.json", [](Json& j) { j["loss_keeps"] = "both"; }),
         file("stack.json") +
             ": /loss_keeps: \"both\" is for stacks that our engine does not run; allowed: \"logits\"");
  expect(with("stack.json", [](Json& j) { j.erase("measured_high"); }),
         file("stack.json") + ": /measured_high: is missing; allowed: both, or neither");
  json("device.json")["fp32"] = "1 GFLOP/s";
  json("device.json")["memory_bandwidth"] = "1 MB/s";
  expect(with(kScenario,
              [](Json& j) {
                j["model"] = "llama-2-70b";
                j["training"]["sequence"] = 4096;
              }),
         file(kScenario) + ": /: the step takes longer than 53 days; allowed: a smaller model or batch");
}

TEST_F(Files, FieldsOfAConfigJsonAreNamedThere) {
  Json config = {{"model_type", "mistral"},       {"num_hidden_layers", 4},   {"hidden_size", 64},
                 {"num_attention_heads", 4},      {"intermediate_size", 176}, {"vocab_size", 256},
                 {"max_position_embeddings", 64}, {"sliding_window", 16}};
  json("stack.json")["runs"]["sliding_window"] = false;
  const auto message = [&](const Json& more = Json::object()) {
    Json model = {{"config", "config.json"}};
    model.update(more);
    save_json(file("config.json"), config);
    const Output o = with(kScenario, [&](Json& j) { j["model"] = model; });
    EXPECT_EQ(o.code, 3) << o.out;
    return o.out;
  };
  const std::string here = "orrery: " + file("config.json") + ": ";
  EXPECT_EQ(message().find(here + "/sliding_window: orrery has no sliding window"), 0U) << message();
  // What the scenario overrides stands in the scenario.
  EXPECT_EQ(message({{"sliding_window", 8}}).find("orrery: " + file(kScenario) + ": /model/sliding_window: "),
            0U);
  config["sliding_window"] = nullptr;
  config["num_key_value_heads"] = 3;
  EXPECT_EQ(message().find(here + "/num_key_value_heads: 3 key/value heads do not divide 4 heads"), 0U);
  config["num_attention_heads"] = 5;
  EXPECT_EQ(message().find(here + "/num_attention_heads: 5 heads do not divide the width 64"), 0U);
  config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 4;
  config["rope_parameters"] = {{"rope_type", "llama3"}, {"factor", 8},
                               {"low_freq_factor", 5},  {"high_freq_factor", 4},
                               {"rope_theta", 10000},   {"original_max_position_embeddings", 32}};
  EXPECT_EQ(message().find(here + "/rope_parameters/low_freq_factor: 5 is larger than"), 0U);
  // Exporters refuse what they cannot say at the same places.
  config["rope_parameters"]["low_freq_factor"] = 1;
  json(kScenario)["training"]["precision"] = "mixed";
  json(kScenario)["training"]["math"] = "bf16";
  json(kScenario)["model"] = {{"config", "config.json"}};
  const auto refused = [&](const std::string& problem) {
    save_json(file("config.json"), config);
    write();
    const Output o = orrery("export --force --to megatron " + file(kScenario));
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_NE(o.out.find(here + problem), std::string::npos) << o.out;
  };
  refused("/rope_parameters: Megatron-LM's llama3 scaling is that of Llama 3.1");
  config["rope_parameters"]["rope_theta"] = 10000.5;
  refused("/rope_parameters/rope_theta: Megatron-LM's rotary base is a whole number, not 10000.5");
}

TEST_F(Files, AnExportOfAPlanFileNamesTheScenarioInIt) {
  const std::string plan = file("plan.json");
  const Output made =
      orrery("plan " + std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-p4d.json --top 1 -o " + plan);
  ASSERT_EQ(made.code, 0) << made.out;
  Json changed = load_json(plan);
  changed["scenario"]["training"]["optimizer"]["decay"] = "all";
  save_json(plan, changed);
  const Output o = orrery("export --to megatron " + plan);
  EXPECT_EQ(o.code, 3);
  EXPECT_EQ(o.out.find("orrery: " + plan + ": /scenario/training/optimizer/decay: "), 0U) << o.out;
}

TEST_F(Files, WrongNamesGetTheNearest) {
  const auto answer = [&](const std::string& arguments, int code, const std::string& text,
                          const std::string& nearest) {
    const Output o = orrery(arguments);
    EXPECT_EQ(o.code, code) << arguments << ": " << o.out;
    EXPECT_EQ(o.out.find("orrery: " + text), 0U) << arguments << ": " << o.out;
    EXPECT_NE(o.out.find("(did you mean \"" + nearest + "\"?)"), std::string::npos) << o.out;
  };
  const std::string s = " " + file(kScenario) + " ";
  answer("plann" + s, 2, "orrery has no command \"plann\"; allowed: plan, ", "plan");
  answer("topology shw", 2, "topology has no command \"shw\"; allowed: show, check, import", "show");
  answer("simulate" + s + "--wndow 0s:1s", 2, "simulate has no option \"--wndow\"; allowed: ", "--window");
  answer("plan" + s + "--tresds=1", 2, "plan has no option \"--tresds\"; allowed: ", "--threads");
  const auto wrong = [&](const std::string& arguments, const std::string& option, const std::string& value,
                         const std::string& nearest) {
    answer(arguments + " --" + option + " " + value, 3,
           "command line: /" + option + ": \"" + value + "\" is not known; allowed: ", nearest);
  };
  wrong("simulate" + s, "fold", "class", "classes");
  wrong("export" + s, "to", "megatrn", "megatron");
  wrong("plan" + s, "goal", "tme", "time");
  wrong("run" + s, "backend", "cpus", "cpu");
  wrong("collective p4d", "collective", "all-reduc", "all-reduce");
  wrong("collective p4d", "algorithm", "rng", "ring");
  wrong("topology import x --device h100-sxm", "format", "nvidia-sm", "nvidia-smi");
  wrong("links import x --base nvlink3-a100 --name x", "collective", "broadcas", "broadcast");
  answer("links import x --base nvlink3-a10 --name x", 3,
         "command line: /base: \"nvlink3-a10\" is not in profiles/links; allowed: ", "nvlink3-a100");
  answer("schema scenari", 3, "command line: /format: \"scenari\" is not known; allowed: ", "scenario");
  // Of many names the nearest are shown.
  answer("model show llama-3-70", 3,
         "command line: /name: there is no model preset \"llama-3-70\"; allowed: llama-3-70b, llama-2-7b, ",
         "llama-3-70b");
  const Output key = with(kScenario, [](Json& j) { j["model"] = {{"presett", "tiny-llama"}}; });
  EXPECT_EQ(key.code, 3);
  EXPECT_NE(key.out.find("/model/presett: there is no such field; allowed: preset, "), std::string::npos)
      << key.out;
  EXPECT_NE(key.out.find("(did you mean \"preset\"?)"), std::string::npos) << key.out;
}

TEST_F(Files, CompareOfUnmatchedTimelinesSaysWhyFirst) {
  ASSERT_EQ(orrery("simulate " + file(kScenario) + " --trace " + file("a.json")).code, 0);
  const Output same = orrery("compare " + file("a.json") + " " + file("a.json"));
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_EQ(first_line(same), "first: " + file("a.json") + " (predicted: event engine)");
  Json trace = load_json(file("a.json"));
  Json& events = trace["traceEvents"];
  events.erase(events.begin() + static_cast<std::ptrdiff_t>(events.size()) / 2, events.end());
  trace["otherData"]["source"] = "measured: another program";
  save_json(file("b.json"), trace);
  const Output some = orrery("compare " + file("a.json") + " " + file("b.json"));
  EXPECT_EQ(some.code, 5);
  EXPECT_EQ(first_line(some).find("the timelines differ: "), 0U) << some.out;
  EXPECT_NE(some.out.find("\npredicted: " + file("a.json")), std::string::npos);
  EXPECT_NE(some.out.find("\nmeasured: " + file("b.json") + " (measured: another program)"),
            std::string::npos);
  EXPECT_NE(some.out.find("    predicted     measured   ratio"), std::string::npos) << some.out;
  for (Json& e : trace["traceEvents"]) {
    if (e["ph"] == "X") e["name"] = "another/" + e["name"].get<std::string>();
  }
  trace["otherData"]["program_hash"] = "7";
  save_json(file("b.json"), trace);
  const Output none = orrery("compare " + file("a.json") + " " + file("b.json"));
  EXPECT_EQ(none.code, 5);
  EXPECT_EQ(first_line(none), "the timelines have no op in common; they come from different programs");
  const Json json = parse_json(orrery("compare --json " + file("a.json") + " " + file("b.json")).out, "out");
  EXPECT_EQ(json["mismatch"], first_line(none));
  EXPECT_EQ(json["measured_source"], "measured: another program");
  // A trace need not say where it comes from.
  trace["otherData"]["source"] = "";
  save_json(file("b.json"), trace);
  const Output nameless = orrery("compare " + file("a.json") + " " + file("b.json"));
  EXPECT_NE(nameless.out.find("\nsecond: " + file("b.json") + " (the file does not say its source)\n"),
            std::string::npos)
      << nameless.out;
}

TEST_F(Files, OptionsAreNeitherEmptyNorNanNorPastTheEnd) {
  const auto answer = [&](const std::string& arguments, int code, const std::string& text) {
    const Output o = orrery(arguments);
    EXPECT_EQ(o.code, code) << arguments << ": " << o.out;
    EXPECT_NE(o.out.find(text), std::string::npos) << arguments << ": " << o.out;
  };
  const std::string simulate = "simulate " + file(kScenario) + " --trace " + file("t.json") + " --window ";
  answer(simulate + "1h:", 3, "command line: /window: 3600 s is past the end of the step; allowed: 0 s to ");
  answer(simulate + "5ms:1ms", 3, "ends before it begins");
  answer(simulate + "-1s:1ms", 3, "is not a window");
  answer(simulate + "soon", 3, "is not a window");
  answer(simulate + "''", 2, "--window: the value is empty");
  EXPECT_FALSE(fs::exists(file("t.json")));
  answer(simulate + "0s:1ms", 0, "timeline: ");
  answer("run " + file(kScenario) + " --learning-rate nan", 2, "\"nan\" is not a number");
  answer("collective dgx-h100 --imbalance -nan", 2, "\"-nan\" is not a number");
  answer("simulate ''", 2, "the value is empty");
  answer("compare a b --top -1", 2, "--top: ");
  const std::string collective = "collective " + file("cluster.json");  // a node of 4 devices
  answer(collective + " --stride 4", 3, "/stride: 4 devices have no two 4 apart; allowed: 1 to 3");
  answer(collective + " --ranks 5", 3, "/ranks: 5 ranks 1 apart; allowed: 2 to 4 on 4 devices");
  json("cluster.json")["devices_per_node"] = 1;
  write();
  answer(collective, 3, "cluster.json\" has 1 device; allowed: 2 devices or more");
}

// A name of a switch, a cluster and an op that a terminal or Graphviz would act on.
TEST_F(Files, NamesDoNothingToTerminalsAndGraphs) {
  const std::string hostile = "a\x1b]0;owned\x07\"]; evil [label=\"\n";
  Json& c = json("cluster.json");
  c["name"] = hostile;
  c["price_as_of"] = hostile;
  c["node_hour"] = "$1";
  json(kScenario)["cluster"]["nodes"] = c["nodes"] = 2;
  c["nics"] = 1;
  c["fabric"] = {{"kind", "graph"}, {"routing", "minimal"}, {"cables", Json::array()}};
  for (const char* port : {"port0.0", "port1.0"})
    c["fabric"]["cables"].push_back({{"from", port}, {"to", hostile}, {"bandwidth", "1 GB/s"}});
  write();
  for (const char* command : {"topology show ", "topology check ", "topology show --json ",
                              "topology show --dot ", "collective --bytes '1 MiB' ", "plan --threads 1 "}) {
    const bool scenario_file = std::string(command).starts_with("plan");
    const Output o = orrery(command + file(scenario_file ? kScenario : "cluster.json"));
    EXPECT_EQ(o.code, std::string(command).starts_with("topology check") ? o.code : 0) << command << o.out;
    for (const char ch : o.out)
      EXPECT_TRUE(ch == '\n' || static_cast<unsigned char>(ch) >= 0x20) << command << o.out;
    EXPECT_NE(o.out.find("owned"), std::string::npos) << command << o.out;
  }
  // Each vertex of the graph is one quoted name on one line.
  const std::string dot = orrery("topology show --dot " + file("cluster.json")).out;
  EXPECT_NE(dot.find(R"(  "a\\x1b]0;owned\\x07\"]; evil [label=\"\\n";)"), std::string::npos) << dot;
}

// Names of files, in all that a run says of them.
TEST_F(Files, NamesOfFilesDoNothingToTerminals) {
  const fs::path folder = file("a\x1b[31m\nb");
  const std::string shown = "a\\x1b[31m\\nb/";
  const auto say = [&](const std::string& options, int code, const std::string& text) {
    const Output o =
        orrery("run " + std::string(ORRERY_ROOT) + "/scenarios/tiny-cpu-pair.json --steps 1 " + options);
    EXPECT_EQ(o.code, code) << o.out;
    EXPECT_NE(o.out.find(text), std::string::npos) << o.out;
    EXPECT_EQ(o.out.find('\x1b'), std::string::npos) << o.out;
    EXPECT_EQ(o.out.find("[31m\n"), std::string::npos) << o.out;
  };
  fs::create_directory(folder);
  const auto quoted = [&](const char* name) { return " '" + (folder / name).string() + "'"; };
  const std::string resume = " --checkpoints" + quoted("c") + " --resume";
  say("--trace" + quoted("t.json"), 0, "measured timeline: " + file(shown + "t.json"));
  say("--proxy" + quoted("p.json"), 0, "written to " + file(shown + "p.json"));
  say("--data" + quoted("d.txt"), 3, shown + "d.txt");
  say(resume, 3, shown + "c");
  say(resume + " --force", 0, "from step 0, as " + file(shown + "c") + " holds no checkpoint");
  fs::copy(folder / "c/step-00000001", folder / "c/step-00000002", fs::copy_options::recursive);
  say(resume, 0, "passed over: " + file(shown + "c/step-00000002/index.json"));
  fs::remove(folder / "c/step-00000001/rank-0.bin");
  say(resume, 1, "no checkpoint under " + file(shown + "c") + " can be used");
  const Output plan = orrery("run" + quoted("plan.json"));
  EXPECT_EQ(plan.out.find("orrery: " + file(shown + "plan.json")), 0U) << plan.out;
}

TEST_F(Files, OutputGoesWhereItIsSentAndNothingIsReplacedByAFile) {
  const std::string plan = "plan --threads 1 " + file(kScenario) + " -o ";
  EXPECT_EQ(orrery(plan + "/dev/null").code, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const Output piped = shell(std::string(ORRERY_BINARY) + " " + plan + "/dev/stderr 2>&1 >/dev/null | cat");
  EXPECT_EQ(parse_json(piped.out, "piped")["schema"], "orrery.plan/1");
  EXPECT_EQ(orrery(plan + "/dev/full").code, 1);
  for (const std::string& command : {"simulate " + file(kScenario), "simulate --json " + file(kScenario),
                                     std::string("--help"), std::string("schema plan")}) {
    const Output full = orrery(command + " > /dev/full");
    EXPECT_EQ(full.code, 1) << command;
    EXPECT_NE(full.out.find("No space left on device"), std::string::npos) << command << full.out;
  }
}

// A symbolic link is written where it leads, and a link that leads nowhere is refused before the work.
TEST_F(Files, ALinkIsTriedWhereItLeads) {
  const std::string plan = "plan --threads 1 " + file(kScenario) + " -o ";
  fs::create_symlink("later.json", file("near"));
  fs::create_symlink(file("near"), file("link"));
  ASSERT_EQ(orrery(plan + file("link")).code, 0);
  EXPECT_EQ(load_json(file("later.json"))["schema"], "orrery.plan/1");
  EXPECT_TRUE(fs::is_symlink(file("link")));
  const auto refused = [&](const char* link, const std::string& target, const std::string& why) {
    fs::create_symlink(target, file(link));
    const Output o = orrery(plan + file(link));
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_EQ(o.out,
              "orrery: command line: /output: \"" + file(link) + "\" cannot be written: " + why + "\n");
  };
  refused("nowhere", file("no/folder.json"), "No such file or directory");
  refused("file", file(kScenario) + "/x", "Not a directory");
  refused("itself", "itself", "Too many levels of symbolic links");
}

// A whole installation moved elsewhere: the program finds the data beside it.
TEST(Installed, DataIsFoundRelativeToTheProgram) {
  const TemporaryFolder folder;
  fs::create_directories(folder.file("bin"));
  fs::create_directories(folder.file("share/orrery/topologies"));
  fs::copy_file(ORRERY_BINARY, folder.file("bin/orrery"));
  fs::copy_file(std::string(ORRERY_ROOT) + "/topologies/p4d.json",
                folder.file("share/orrery/topologies/only-here.json"));
  fs::create_symlink(folder.file("bin/orrery"), folder.file("link"));
  for (const char* program : {"bin/orrery", "link"}) {
    const Output o =
        shell("unset ORRERY_DATA; " + folder.file(program) + " topology show only-here --nodes 1");
    EXPECT_EQ(o.code, 0) << o.out;
  }
  EXPECT_EQ(orrery("topology show only-here").code, 3);
}

// On a terminal: a bar while it runs, which is gone before the answer. Elsewhere: nothing.
TEST_F(Files, LongCommandsShowThatTheyRun) {
  json(kScenario)["model"] = {{"preset", "tiny-llama"}, {"layers", 10000}};
  json(kScenario)["training"]["global_batch"] = 32;
  json(kScenario)["plan"]["micro_batches"] = 16;
  write();
  const std::string command = std::string(ORRERY_BINARY) + " simulate " + file(kScenario);
  const std::string out = shell("script -qec '" + command + "' /dev/null").out;
  const std::size_t cleared = out.rfind("\r\x1b[K"), answer = out.find("TP2 PP2 DP2");
  ASSERT_NE(answer, std::string::npos) << out;
  EXPECT_NE(out.find(", 1 s\x1b[K"), std::string::npos) << out;
  EXPECT_EQ(cleared + 4, answer) << out;
  EXPECT_EQ(shell(command + " 2>&1 >/dev/null").out, "");
}

}  // namespace
}  // namespace orrery
