// SPDX-License-Identifier: Apache-2.0
//
// orrery serve and orrery generate, as a shell sees them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "command.h"
#include "core/json.h"

namespace orrery {
namespace {

class ServeCommand : public testing::Test {
 protected:
  ServeCommand() {
    scenario_ = {
        {"model", "llama-3-8b"},
        {"cluster", {{"topology", "dgx-h100"}, {"nodes", 1}}},
        {"serving", {{"input_tokens", 500}, {"output_tokens", 50}, {"requests_per_s", 5}, {"ttft", "1 s"}}}};
  }
  std::string written(const Json& json) const {
    const std::string file = testing::TempDir() + "serve-" +
                             testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
    std::ofstream(file) << json.dump(2);
    return file;
  }
  Output serve(const Json& json, const std::string& options = "") const {
    return orrery("serve " + written(json) + " --requests 50 " + options);
  }
  void refused(const std::string& pointer, const Json& value, const std::string& at,
               const std::vector<std::string>& texts) const {
    Json changed = scenario_;
    changed[Json::json_pointer(pointer)] = value;
    const Output o = serve(changed);
    EXPECT_EQ(o.code, 3) << pointer << ": " << o.out;
    EXPECT_NE(o.out.find(at), std::string::npos) << o.out;
    for (const std::string& text : texts) EXPECT_NE(o.out.find(text), std::string::npos) << o.out;
  }
  Json scenario_;
};

TEST_F(ServeCommand, PrintsPlansAndReasons) {
  const Output o = serve(scenario_);
  EXPECT_EQ(o.code, 0) << o.out;
  for (const char* text :
       {"ttft ms", "tpot ms", "tok/s/GPU", "simulated request by request", "memory of a device"})
    EXPECT_NE(o.out.find(text), std::string::npos) << o.out;
}

TEST_F(ServeCommand, JsonHasPlansRunsAndMemory) {
  const Json j = parse_json(serve(scenario_, "--json --top 1").out, "output");
  EXPECT_EQ(j["schema"], "orrery.serving/1");
  const Json& best = j["plans"][0];
  EXPECT_GE(best["most_requests_per_s"].get<double>(), 5);
  EXPECT_EQ(best["memory"]["cache_bytes_per_token"].get<std::int64_t>() *
                best["decode"]["tp"].get<std::int64_t>() * best["decode"]["pp"].get<std::int64_t>(),
            131'072);
  EXPECT_EQ(best["simulated"]["requests"], 50);
  EXPECT_LE(best["simulated"]["ttft_s"]["p50"], best["simulated"]["ttft_s"]["p99"]);
}

TEST_F(ServeCommand, TheSeedDecides) {
  EXPECT_EQ(serve(scenario_, "--json --seed 3").out, serve(scenario_, "--json --seed 3").out);
  EXPECT_NE(serve(scenario_, "--json --seed 3").out, serve(scenario_, "--json --seed 4").out);
}

TEST_F(ServeCommand, NoPlanWithinTheBoundsExitsWithFour) {
  scenario_["serving"]["tpot"] = "1 us";
  const Output o = serve(scenario_);
  EXPECT_EQ(o.code, 4);
  EXPECT_NE(o.out.find("plans that do not serve it"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("tpot"), std::string::npos) << o.out;
}

TEST_F(ServeCommand, RefusesWhatIsWrong) {
  refused("/serving/tpot", "40", "/serving/tpot", {"40"});
  refused("/serving/input_tokens", 0, "/serving/input_tokens", {"0"});
  refused("/serving/input_tokens", 1e308, "/serving/input_tokens", {});
  refused("/serving/stack", "vlm", "/serving/stack",
          {"\"vlm\" is not in profiles/serving", "did you mean \"vllm\"?"});
  refused("/serving/weight", "fp8", "/serving/weight", {"weights"});
  refused("/serving/concurrency", 4, "/serving/concurrency", {"allowed: one of them"});
  refused("/serving/requests", Json::array({{{"at", "1 s"}, {"input", 5}, {"output", 5}}}),
          "/serving/requests", {"allowed: one of them"});
  refused("/model", {{"preset", "llama-3-8b"}, {"causal", false}}, "/model", {"not causal"});
  scenario_["serving"]["weights"] = "fp8";
  refused("/cluster/topology", "dgx-a100", "/serving/weights",
          {"no products of 8-bit floats", "allowed: bf16"});
}

TEST_F(ServeCommand, ListedRequestsAreServed) {
  scenario_["serving"].erase("requests_per_s");
  scenario_["serving"]["requests"] = Json::array();
  for (int i = 0; i < 20; ++i)
    scenario_["serving"]["requests"].push_back(
        {{"at", fmt::format("{} s", i)}, {"input", 100 + i}, {"output", 10}});
  const Json j = parse_json(serve(scenario_, "--json --top 1").out, "output");
  EXPECT_GE(j["plans"][0]["simulated"]["requests"].get<int>(), 1);
}

class GenerateCommand : public testing::Test {
 protected:
  const std::string scenario_ = std::string(ORRERY_ROOT) + "/scenarios/tiny-cpu.json";
};

TEST_F(GenerateCommand, ContinuesAPrompt) {
  const Output o = orrery("generate " + scenario_ + " --ids 5,6,7 --tokens 8 --json");
  EXPECT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "output");
  EXPECT_EQ(j["schema"], "orrery.generated/1");
  EXPECT_EQ(j["tokens"].size(), 8U);
  const Json longer =
      parse_json(orrery("generate " + scenario_ + " --ids 5,6,7 --tokens 12 --json").out, "output");
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(longer["tokens"][i], j["tokens"][i]);
}

TEST_F(GenerateCommand, RefusesWhatIsWrong) {
  const auto refused = [&](const std::string& options, const std::string& text) {
    const Output o = orrery("generate " + options);
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_NE(o.out.find(text), std::string::npos) << o.out;
  };
  refused(scenario_ + " --ids 5,x", "\"x\" is not a token");
  refused(scenario_ + " --ids 999999999", "is not a token");
  refused(scenario_ + " --checkpoints /nowhere", "has no checkpoint");
  refused(std::string(ORRERY_ROOT) + "/scenarios/llama3-70b-p4d.json", "can be predicted only");
}

}  // namespace
}  // namespace orrery
