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

// Steps take seconds: no more in all than passed while they ran, the last no less than its timeline, and with
// them tokens per second. What the metrics file says at the end is what the JSON says of the last step.
TEST(RunNumbers, SecondsRatesAndMetricsAgree) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("t.json"), metrics = folder.file("metrics.prom");
  constexpr std::int64_t kSteps = 4;
  const auto begin = std::chrono::steady_clock::now();
  const Output o = orrery("run --json --steps 4 --learning-rate 0.004 --warm-up 8 --trace " + trace +
                          " --metrics-file " + metrics + " " + scenario("tiny-cpu-pair"));
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "out");
  ASSERT_EQ(j["steps"].size(), static_cast<std::size_t>(kSteps));
  double all = 0;
  for (const Json& step : j["steps"]) all += step["seconds"].get<double>();
  const Json& last = j["steps"].back();
  const double first_s = j["steps"][0]["seconds"], last_s = last["seconds"];
  EXPECT_LT(all, passed);
  EXPECT_GE(last_s, seconds(load_timeline(trace).length()));
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
      "recompute": ["full"], "recompute_layers": [1]}})";
  const Output text = orrery("plan --top 1 " + file);
  ASSERT_EQ(text.code, 0) << text.out;
  const Json answer = parse_json(orrery("plan --json --top 1 " + file).out, "out");
  const Json& p = answer["plans"][0]["predicted"];
  const std::string row = line_with(text.out, "  1 TP4");
  std::vector<double> of_row = numbers(row.substr(55));
  const double step = p["step_time_s"];
  ASSERT_EQ(of_row.size(), 7U) << row;
  EXPECT_NEAR(of_row[0], step, 0.0005);
  EXPECT_NEAR(of_row[1], 64 * 2048 / step, 0.5);
  EXPECT_NEAR(of_row[2], 100 * p["mfu"].get<double>(), 0.05);
  EXPECT_NEAR(of_row[3], 100 * p["hfu"].get<double>(), 0.05);
  EXPECT_GT(of_row[3], 1.3 * of_row[2]);  // full recomputation
  EXPECT_NEAR(of_row[4], p["peak_memory_bytes"].get<double>() / (1LL << 30), 0.05);
  // 1e9 tokens, at 2 x $20 an hour.
  const double run_s = 1e9 / (64 * 2048) * step;
  EXPECT_NEAR(of_row[5], run_s / 86400, 0.005);
  EXPECT_NEAR(of_row[6], 2 * 20 * run_s / 3600, 0.5);
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

}  // namespace
}  // namespace orrery
