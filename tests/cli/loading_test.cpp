// SPDX-License-Identifier: Apache-2.0
//
// The object `loading`, as a shell sees it: planned, simulated and run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/json.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

// One rank of a tiny model whose 16 samples of a step take a worker 320 ms.
class LoadingCommand : public testing::Test {
 protected:
  LoadingCommand() {
    scenario_ = load_json(scenario("tiny-cpu"));
    scenario_["plan"] = {{"tp", 1}, {"pp", 1}, {"dp", 1}, {"micro_batch", 2}, {"micro_batches", 8}};
    scenario_["loading"] = {{"sample_bytes", "100 kB"}, {"latency", "5 ms"}, {"cpu_time", "15 ms"}};
  }
  Output orrery_on(const Json& json, const std::string& command, const std::string& options) const {
    save_json(folder_.file("s.json"), json);
    return orrery(command + " " + folder_.file("s.json") + " " + options);
  }
  void refused(const std::function<void(Json&)>& change, const std::string& options,
               const std::string& pointer, const std::string& words) const {
    Json wrong = scenario_;
    change(wrong);
    const Output o = orrery_on(wrong, "run", options);
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_EQ(o.out.find("orrery: " + folder_.file("s.json") + ": " + pointer + ": "), 0U) << o.out;
    EXPECT_NE(o.out.find(words), std::string::npos) << o.out;
  }
  Json scenario_;
  TemporaryFolder folder_;
};

// Workers wait as long as they are told to. The bounds leave room for a busy machine.
TEST_F(LoadingCommand, RunsAsLongAsItPredicts) {
  for (const int workers : {1, 2}) {
    scenario_["loading"]["workers"] = workers;
    const double load_s = 0.32 / workers;
    const Output o = orrery_on(scenario_, "run", "--loading --steps 9 --json");
    ASSERT_EQ(o.code, 0) << o.out;
    const Json loading = parse_json(o.out.substr(o.out.find('{')), "output")["loading"];
    const Json& predicted = loading["predicted"];
    EXPECT_EQ(predicted["bound"], "workers");
    EXPECT_NEAR(predicted["load_s"].get<double>(), load_s, 1e-9);
    EXPECT_GE(predicted["step_s"].get<double>(), load_s - 1e-9);
    const double measured = loading["measured_s"];
    EXPECT_GE(measured, load_s * 0.8);
    EXPECT_LE(measured, load_s * 1.5);
    EXPECT_LE(loading["measured_waiting_s"].get<double>(), measured);
  }
}

TEST_F(LoadingCommand, SimulateSaysWhatBoundsItAndWhatWouldHelp) {
  const Output o = orrery_on(scenario_, "simulate", "");
  ASSERT_EQ(o.code, 0) << o.out;
  EXPECT_NE(o.out.find("loading: bound by workers: 50 samples/s, 320 ms for a step"), std::string::npos)
      << o.out;
  EXPECT_NE(o.out.find(" workers in place of 1, at no cost: steps take "), std::string::npos) << o.out;
  const Json j = parse_json(orrery_on(scenario_, "simulate", "--json").out, "output");
  EXPECT_NEAR(j["predicted"]["step_time_s"].get<double>(), 0.32, 1e-9);
  EXPECT_EQ(j["loading"]["fixes"].size(), 1U);
}

TEST_F(LoadingCommand, PlanCarriesIt) {
  const Output o = orrery_on(scenario_, "plan", "--json -o " + folder_.file("plan.json"));
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "output");
  EXPECT_FALSE(j["loading"]["fixes"].empty());
  const Json file = load_json(folder_.file("plan.json"));
  EXPECT_EQ(file["predicted"]["loading"]["bound"], "workers");
  EXPECT_EQ(file["scenario"]["loading"]["cpu_time"], "15000000000 ps");
}

TEST_F(LoadingCommand, RefusesWhatDoesNotFit) {
  refused([](Json& j) { j.erase("loading"); }, "--loading", "/loading",
          "is missing, and --loading emulates it");
  refused([](Json& j) { j["loading"]["workers"] = 0; }, "--loading", "/loading/workers", "1 or more");
  refused([](Json& j) { j["loading"]["latency"] = "10 s"; }, "--loading", "/loading", "--deadline, 120 s");
  refused([](Json& j) { j["loading"]["workers"] = 300; }, "--loading --steps 1000", "/loading/workers",
          "1 ranks 300 threads");
  refused(
      [](Json& j) {
        j["loading"]["workers"] = 200;
        j["loading"]["prefetch"] = 1024;
        j["training"]["sequence"] = 65'536;
      },
      "--loading --force --steps 1000", "/loading/prefetch", "are free");
  refused([](Json& j) { j["loading"]["cache_bytes"] = "1 GB"; }, "", "/loading/dataset_bytes", "is missing");
  refused([](Json& j) { j["loading"]["bandwidth_month"] = "$100"; }, "", "/loading/storage_bandwidth",
          "is missing");
  refused([](Json& j) { j["loading"]["shuffle"] = "shard"; }, "", "/loading/cache_bytes", "is missing");
  refused([](Json& j) { j["loading"].erase("cpu_time"), j["loading"]["cores"] = 8; }, "", "/loading/cpu_time",
          "cores are for it");
  refused([](Json& j) { j["loading"]["shuffel"] = "shard"; }, "", "/loading/shuffel", "shuffle");
  save_json(folder_.file("s.json"), scenario_);
  const Output few = orrery("run --loading --steps 2 " + folder_.file("s.json"));
  EXPECT_EQ(few.code, 3);
  EXPECT_NE(few.out.find("command line: /steps: 2 steps are too few"), std::string::npos) << few.out;
}

}  // namespace
}  // namespace orrery
