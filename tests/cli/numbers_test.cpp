// SPDX-License-Identifier: Apache-2.0
//
// Numbers that the command prints and writes, against each other and against closed forms: units, rates,
// prices.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "core/json.h"
#include "core/model.h"
#include "core/timeline.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

// "tiny-cpu-pair": 16 sequences of 64 tokens a step.
constexpr double kTokens = 16 * 64;

std::map<std::string, double> prometheus(const std::string& file) {
  std::map<std::string, double> out;
  std::istringstream text(load_text(file, 1 << 20));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("orrery_"))
      out[line.substr(7, line.find(' ') - 7)] = std::stod(line.substr(line.find(' ')));
  }
  return out;
}

// All numbers of a text, in order.
std::vector<double> numbers(const std::string& text) {
  static const std::regex number(R"(\d+(\.\d+)?(e[+-]?\d+)?)");
  std::vector<double> out;
  for (auto i = std::sregex_iterator(text.begin(), text.end(), number); i != std::sregex_iterator(); ++i)
    out.push_back(std::stod(i->str()));
  return out;
}

std::string line_with(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(part) != std::string::npos) return line;
  }
  ADD_FAILURE() << "no line with " << part << " in\n" << text;
  return {};
}

// Steps take seconds: no more in all than passed while they ran, the last no less than what a rank did in it,
// and with them tokens per second. What the metrics file says at the end is what the JSON says of the last
// step.
TEST(RunNumbers, SecondsRatesAndMetricsAgree) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("t.json"), metrics = folder.file("metrics.prom");
  constexpr std::int64_t kSteps = 4;
  const auto begin = std::chrono::steady_clock::now();
  const Output o = orrery("run --json --steps 4 --learning-rate 0.004 --warm-up 8 --trace " + trace +
                          " --metrics-file " + metrics + " " + scenario("tiny-cpu-pair"));
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_EQ(o.code, 0) << o.out;
  // Alerts of a noisy machine come first.
  const Json j = parse_json(o.out.substr(o.out.find('{')), "out");
  ASSERT_EQ(j["steps"].size(), static_cast<std::size_t>(kSteps));
  double all = 0;
  for (const Json& step : j["steps"]) all += step["seconds"].get<double>();
  const Json& last = j["steps"].back();
  const double first_s = j["steps"][0]["seconds"], last_s = last["seconds"];
  EXPECT_LT(all, passed);
  // Of each rank: one may begin, and the other end, later.
  std::map<std::int32_t, std::pair<Time, Time>> spans;
  for (const Slice& s : load_timeline(trace).slices) {
    const auto [span, added] = spans.try_emplace(s.rank, s.start, s.end);
    span->second = {std::min(span->second.first, s.start), std::max(span->second.second, s.end)};
  }
  EXPECT_EQ(spans.size(), 2U);
  for (const auto& [rank, span] : spans) EXPECT_GE(last_s, seconds(span.second - span.first)) << rank;
  // The first step pays for warming up.
  EXPECT_NEAR(j["tokens_per_s"].get<double>() * (all - first_s), 3 * kTokens, 1e-6 * kTokens);

  const auto m = prometheus(metrics);
  EXPECT_EQ(m.at("step"), kSteps);
  EXPECT_EQ(m.at("loss"), last["loss"].get<double>());
  EXPECT_EQ(m.at("gradient_norm"), last["grad_norm"].get<double>());
  EXPECT_EQ(m.at("step_seconds"), last_s);
  EXPECT_NEAR(m.at("tokens_per_second") * last_s, kTokens, 1e-6 * kTokens);
  const double flops =
      16 * model_flops_per_sequence(preset_model("tiny-llama"), 64, AttentionFlops::kFull).value;
  EXPECT_NEAR(m.at("model_flops_per_second") * last_s, flops, 1e-6 * flops);
  EXPECT_FLOAT_EQ(static_cast<float>(m.at("learning_rate")), 0.002F);  // 4 of 8 steps of warm-up
  EXPECT_GE(m.at("waiting_ratio"), 0);
  EXPECT_LE(m.at("waiting_ratio"), 1);
  // Kernels read fp32 where it lies; scratch memory holds the angles of rotary positions, 64 tokens of 16
  // floats. What is live at the peak fits in the arena.
  for (const auto& [rank, memory] : j["memory"].items()) {
    EXPECT_EQ(memory["scratch"], 64 * 16 * 4) << rank;
    std::int64_t live = 0;
    for (const auto& [name, bytes] : memory.items()) live += name == "arena" ? 0 : bytes.get<std::int64_t>();
    EXPECT_LE(live, memory["arena"].get<std::int64_t>()) << rank;
    EXPECT_GT(2 * live, memory["arena"].get<std::int64_t>()) << rank;
  }
  EXPECT_EQ(m.at("peak_bytes"),
            std::max(j["memory"]["0"]["arena"].get<double>(), j["memory"]["1"]["arena"].get<double>()));
}

// What is printed of a step: milliseconds, tokens and GFLOP in each second.
TEST(RunNumbers, ThePrintedRatesAreOfThePrintedTime) {
  const Output o = orrery("run --steps 2 " + scenario("tiny-cpu-pair"));
  ASSERT_EQ(o.code, 0) << o.out;
  std::smatch m;
  const std::string line = line_with(o.out, "step    2");
  static const std::regex form(
      R"(([\d.]+) (s|ms) +([\d.]+) tokens/s +([\d.]+) GFLOP/s +waiting +([\d.]+) %)");
  ASSERT_TRUE(std::regex_search(line, m, form)) << line;
  const double time = std::stod(m[1]) * (m[2] == "ms" ? 1e-3 : 1);
  EXPECT_NEAR(std::stod(m[3]) * time, kTokens, 0.01 * kTokens);
  const double flops =
      16 * model_flops_per_sequence(preset_model("tiny-llama"), 64, AttentionFlops::kFull).value;
  EXPECT_NEAR(std::stod(m[4]) * 1e9 * time, flops, 0.01 * flops);
  EXPECT_LE(std::stod(m[5]), 100);
  // The run's rate leaves the first step out: here it is that of the second.
  const std::string run = line_with(o.out, "thread ranks");
  ASSERT_TRUE(std::regex_search(run, m, std::regex(R"((\d+) tokens/s)"))) << run;
  EXPECT_NEAR(std::stod(m[1]) * time, kTokens, 0.01 * kTokens);
}

// A plan's row has the JSON's numbers in the units of its header. A checkpoint of 6,738,415,616 parameters
// with 2 bytes of parameter, 4 of master and 8 of moments is 94.3 GB; at $0.14 each, $13.21 a month.
TEST(PlanNumbers, RowsAreTheJsonInTheUnitsOfTheHeader) {
  const TemporaryFolder folder;
  const std::string file = folder.file("s.json");
  std::ofstream(file) << R"({"model": "llama-2-7b", "cluster": {"topology": "p4d", "nodes": 2},
      "training": {"global_batch": 64, "sequence": 2048, "tokens": 1e9}, "node_hour": "$20",
      "storage_per_gb_month": "$0.14", "search": {"tp": [4], "pp": [2], "zero": [1], "micro_batch": [1],
      "recompute": ["full"], "recompute_layers": [1], "recompute_first": [0]}})";
  const Output text = orrery("plan --top 1 " + file);
  ASSERT_EQ(text.code, 0) << text.out;
  const Json answer = parse_json(orrery("plan --json --top 1 " + file).out, "out");
  const Json& p = answer["plans"][0]["predicted"];
  const std::string row = line_with(text.out, "  1 TP4");
  std::vector<double> of_row = numbers(row.substr(55));
  const double step = p["step_time_s"];
  ASSERT_EQ(of_row.size(), 8U) << row;
  EXPECT_NEAR(of_row[0], step, 0.0005);
  EXPECT_NEAR(of_row[1], 64 * 2048 / step, 0.5);
  EXPECT_NEAR(of_row[2], 100 * p["mfu"].get<double>(), 0.05);
  EXPECT_NEAR(of_row[3], 100 * p["hfu"].get<double>(), 0.05);
  EXPECT_GT(of_row[3], 1.3 * of_row[2]);  // full recomputation
  EXPECT_NEAR(of_row[4], p["peak_memory_bytes"].get<double>() / (1LL << 30), 0.05);
  EXPECT_NEAR(of_row[5], 100 * p["fits_probability"].get<double>(), 0.5);
  // 1e9 tokens, at 2 x $20 an hour.
  const double run_s = 1e9 / (64 * 2048) * step;
  EXPECT_NEAR(of_row[6], run_s / 86400, 0.005);
  EXPECT_NEAR(of_row[7], 2 * 20 * run_s / 3600, 0.5);
  EXPECT_EQ(numbers(line_with(text.out, "a checkpoint that can restart")), (std::vector<double>{94, 13.21}));
  // The breakdown's percentages are of the step.
  const Json& b = p["breakdown"];
  EXPECT_NEAR(numbers(line_with(text.out, "  forward ")).at(1), 100 * b["forward_s"].get<double>() / step,
              0.05);
  EXPECT_NEAR(numbers(line_with(text.out, "  recompute ")).at(1), 100 * b["recompute_s"].get<double>() / step,
              0.05);
}

// Eight nodes at $32.7726 cost $262.18 an hour. A p4d has 4 NICs of 100 Gb/s, of which 0.85 is reached:
// 10.625 GB/s each.
TEST(TopologyNumbers, PricesAndPorts) {
  const Json j = parse_json(orrery("topology show --json p4d").out, "out");
  EXPECT_NEAR(j["dollars_per_hour"].get<double>(), 262.1808, 1e-6);
  EXPECT_EQ(j["rings"]["one_device_of_each_node"]["bytes_per_s"], 10'625'000'000 / 2);  // two devices a NIC
  EXPECT_EQ(j["rings"]["all_devices"]["bytes_per_s"], 4 * 10'625'000'000);
  EXPECT_EQ(j["switch_ports"], 32);
  EXPECT_EQ(j["diameter"], 4);
  const Output text = orrery("topology show p4d");
  EXPECT_EQ(numbers(line_with(text.out, "a node and hour")),
            (std::vector<double>{32.77, 262.18, 2025, 21.96, 1}))
      << text.out;
}

// Eight nodes with a NIC of 12.5 GB/s each; two to a leaf; two sites of two leaves and a spine. Halves are
// the sites, and the link between them has 25 GB/s. Ports of 12.5 GB/s: 8 at leaves down; leaf to spine 25
// GB/s, two ports at each end of 4 links; 2 at each spine to its site, and a site is no switch: 8 + 16 + 4.
TEST(TopologyNumbers, HalvesAndPortsOfTwoSites) {
  const TemporaryFolder folder;
  const std::string file = folder.file("sites.json");
  std::ofstream(file) << R"({"schema": "orrery.cluster/1", "name": "sites", "device": "a100-80gb", "nodes": 8,
      "devices_per_node": 2, "intra_bandwidth": "100 GB/s", "nics": 1, "nic_bandwidth": "100 Gb/s",
      "nic_efficiency": 1, "fabric": {"kind": "fat-tree", "leaf_nodes": 2, "sites": 2,
      "site_bandwidth": "200 Gb/s", "site_latency": "1 ms", "port_cost": "$500"}})";
  const Json j = parse_json(orrery("topology show --json " + file).out, "out");
  EXPECT_EQ(j["bisection_bytes_per_s"], 25'000'000'000);
  EXPECT_EQ(j["switch_ports"], 28);
  EXPECT_EQ(j["switch_ports_dollars"], 28 * 500);
  // device, port, leaf, spine, site, site, spine, leaf, port, device
  EXPECT_EQ(j["diameter"], 9);
  // Two p4d over one leaf: four NICs of 10.625 GB/s each way.
  const Json two = parse_json(orrery("topology show --json --nodes 2 p4d").out, "out");
  EXPECT_EQ(two["bisection_bytes_per_s"], 4 * 10'625'000'000);
}

// Routers of two nodes take in 25 GB/s; twice that joins the two of a group, and as much as a group's routers
// take in, 50 GB/s, joins both groups, over two links.
TEST(TopologyNumbers, LinksOfADragonfly) {
  const TemporaryFolder folder;
  const std::string file = folder.file("dragonfly.json");
  std::ofstream(file) << R"({"schema": "orrery.cluster/1", "name": "d", "device": "a100-80gb", "nodes": 8,
      "devices_per_node": 2, "intra_bandwidth": "100 GB/s", "nics": 1, "nic_bandwidth": "100 Gb/s",
      "nic_efficiency": 1, "fabric": {"kind": "dragonfly", "routing": "minimal", "router_nodes": 2,
      "group_routers": 2}})";
  const Json j = parse_json(orrery("topology show --json " + file).out, "out");
  std::map<std::int64_t, int> links;
  for (const Json& l : j["graph"]["links"]) {
    if (l["from"].get<std::string>().starts_with("router") &&
        l["to"].get<std::string>().starts_with("router"))
      ++links[l["bytes_per_s"].get<std::int64_t>()];
  }
  EXPECT_EQ(links, (std::map<std::int64_t, int>{{50'000'000'000, 2}, {25'000'000'000, 2}}));
}

// No NIC has more than 1600 Gb/s: four that share 7200 Gb/s would have 1800 each (225 GB/s), and four that
// share 6000 Gb/s have 1500.
TEST(TopologyNumbers, NicsAreCheckedInBitsEach) {
  const TemporaryFolder folder;
  const std::string file = folder.file("nics.json");
  const auto check = [&](const char* all) {
    std::ofstream(file) << R"({"schema": "orrery.cluster/1", "name": "nics", "device": "h100-sxm", "nodes": 2,
        "devices_per_node": 8, "intra_bandwidth": "450 GB/s", "nics": 4, "nic_bandwidth": ")"
                        << all
                        << R"(", "nic_efficiency": 1, "fabric": {"kind": "fat-tree", "leaf_nodes": 2}})";
    return orrery("topology check " + file);
  };
  const Output much = check("7200 Gb/s");
  EXPECT_EQ(much.code, 1) << much.out;
  EXPECT_NE(much.out.find("a NIC of 1800 Gb/s: "), std::string::npos) << much.out;
  const Output enough = check("6000 Gb/s");
  EXPECT_EQ(enough.code, 0) << enough.out;
}

// 64 MiB over 8 devices of one node: bus bandwidth is 7/4 of the tensor over the time, in GB/s.
TEST(CollectiveNumbers, BusBandwidthIsOfTheTime) {
  const Json j = parse_json(
      orrery("collective dgx-a100 --nodes 1 --collective all-reduce --bytes 64MiB --json").out, "out");
  EXPECT_EQ(j["ranks"], 8);
  EXPECT_EQ(j["bytes"], 67'108'864);
  for (const char* depth : {"model", "network"}) {
    const double time = j[depth]["time_s"], bus = j[depth]["bus_bandwidth_gb_s"];
    EXPECT_NEAR(bus * 1e9 * time, 1.75 * 67'108'864, 1) << depth;
    EXPECT_GT(bus, 100);
    EXPECT_LT(bus, 300);
  }
  EXPECT_EQ(j["network"]["rounds"], 14);  // a ring: seven to reduce, seven to gather
  EXPECT_EQ(j["network"]["flows"], 14 * 8);
}

// Seconds that transfers lost to each other are the same in both forms, and of a step.
TEST(SimulateNumbers, WhatTransfersLostIsInSeconds) {
  const std::string command = "simulate " + scenario("llama3-70b-p4d");
  const Json j = parse_json(orrery(command + " --json").out, "out");
  const Output text = orrery(command);
  ASSERT_FALSE(j["shared_links"].empty());
  const Json& link = j["shared_links"][0];
  const std::string line = line_with(text.out, "shared: " + link["link"].get<std::string>());
  std::smatch m;
  static const std::regex lost(R"(lost ([\d.]+) (s|ms|us|ns) to each other)");
  ASSERT_TRUE(std::regex_search(line, m, lost)) << line;
  const double unit = m[2] == "s" ? 1 : m[2] == "ms" ? 1e-3 : m[2] == "us" ? 1e-6 : 1e-9;
  EXPECT_NEAR(std::stod(m[1]) * unit, link["lost_s"].get<double>(), 1e-3 * link["lost_s"].get<double>());
}

// Errors are fractions, of rows and of their sums.
TEST(ValidateNumbers, ErrorsAreFractions) {
  const TemporaryFolder folder;
  const std::string file = folder.file("rows.json");
  std::ofstream(file) << R"([{"id": "r", "system": "HGX H100 8 GPU", "collective": "all_reduce", "gpus": 8,
      "nodes": 1, "message_bytes": 536870912, "time_us": 4000, "basis": "measured", "algo": "nccl-auto"}])";
  const Json j = parse_json(orrery("validate --json " + file).out, "out");
  const Json& row = j["rows"][0];
  EXPECT_NEAR(row["published"].get<double>(), 4e-3, 1e-12);
  EXPECT_NEAR(row["error"].get<double>(), row["predicted"].get<double>() / 4e-3 - 1, 1e-9);
  EXPECT_NEAR(j["summary"]["time"]["mape"].get<double>(), std::abs(row["error"].get<double>()), 1e-12);
  EXPECT_NEAR(j["summary"]["time"]["bias"].get<double>(), row["error"].get<double>(), 1e-12);
  EXPECT_GT(std::abs(row["error"].get<double>()), 0.1);
  const std::string all = line_with(orrery("validate " + file).out, "  all   ");
  EXPECT_NEAR(numbers(all).at(1), std::abs(100 * row["error"].get<double>()), 0.05);
}

// Zero-1 over four of eight replicas are two instances of the optimizer; 12 ranks take six devices of each of
// two nodes.
TEST(ExportNumbers, InstancesAndNodes) {
  const TemporaryFolder folder;
  const std::string file = folder.file("s.json");
  std::ofstream(file) << R"({"model": "llama-2-7b", "cluster": {"topology": "dgx-a100", "nodes": 2},
      "training": {"global_batch": 24, "sequence": 2048},
      "plan": {"tp": 1, "pp": 1, "dp": 12, "zero": 1, "shard_group": 3, "micro_batches": 2}})";
  const std::string megatron = orrery("export --to megatron " + file).out;
  EXPECT_NE(megatron.find("--num-distributed-optimizer-instances 4"), std::string::npos) << megatron;
  EXPECT_NE(megatron.find("--seq-length 2048"), std::string::npos) << megatron;
  EXPECT_NE(megatron.find("--max-position-embeddings 4096"), std::string::npos) << megatron;
  const std::string slurm = orrery("export --to megatron --launcher slurm " + file).out;
  EXPECT_NE(slurm.find("#SBATCH --nodes=2\n"), std::string::npos) << slurm;
  EXPECT_NE(slurm.find("#SBATCH --gpus-per-node=6\n"), std::string::npos) << slurm;
  EXPECT_NE(slurm.find("--nproc_per_node=6"), std::string::npos) << slurm;
  const std::string whole = folder.file("whole.json");
  std::ofstream(whole) << R"({"model": "llama-2-7b", "cluster": {"topology": "dgx-a100", "nodes": 2},
      "training": {"global_batch": 24, "sequence": 2048}, "stack": "deepspeed",
      "plan": {"tp": 1, "pp": 1, "dp": 12, "zero": 1, "micro_batches": 2}})";
  const std::string text = orrery("export --to deepspeed " + whole).out;
  const Json j = parse_json(text.substr(text.find('{')), "deepspeed");
  EXPECT_EQ(j["train_batch_size"], 24);
  EXPECT_EQ(j["train_micro_batch_size_per_gpu"], 1);
  EXPECT_EQ(j["gradient_accumulation_steps"], 2);
}

}  // namespace
}  // namespace orrery
