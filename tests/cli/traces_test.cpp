// SPDX-License-Identifier: Apache-2.0
//
// Traces of other software, as a user lays them over a prediction.
#include <gtest/gtest.h>

#include "core/timeline.h"
#include "tests/cli/command.h"
#include "tests/trace/traces.h"

namespace orrery {
namespace {

// Two ranks of one node, whose clocks are 700 us apart; rank 1 comes 30 us late to an all-reduce of 2 MiB.
class ForeignTraces : public testing::Test {
 protected:
  ForeignTraces() {
    for (int r = 0; r < 2; ++r) {
      trace::KinetoRank rank(r, 700.0 * r);
      for (int s = 0; s < 3; ++s) {
        const double at = 1000.0 * s;
        rank.step(s, at, at + 1000);
        rank.kernel("nvjet_tst_128x256", 7, at + 10, 40)["pid"] = r;
        rank.collective("allreduce", "[0, 1]", 1 << 20, at + 100 + 30 * r, 80 - 30 * r)["pid"] = r;
      }
      save_json(rank_file(r), rank.trace());
    }
  }
  std::string rank_file(int r) const { return folder_.file(r == 0 ? "rank0.json" : "rank1.json"); }
  std::string both() const { return rank_file(0) + " " + rank_file(1); }

  TemporaryFolder folder_;
};

TEST_F(ForeignTraces, AreMerged) {
  const std::string out = folder_.file("merged.timeline");
  const Output o = orrery("merge " + both() + " -o " + out);
  EXPECT_EQ(o.code, 0) << o.out;
  EXPECT_NE(o.out.find("2 ranks, 3 steps, 12 kernels and copies"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("rank 1, GPU 1: clock +700.0 us against rank 0, GPU 0, by 3 exchanges"),
            std::string::npos)
      << o.out;
  const Json json = parse_json(orrery("merge --json " + both()).out, "out");
  EXPECT_EQ(json["exchanges"], 3);
  ASSERT_EQ(json["waited_for"].size(), 1U);
  EXPECT_EQ(json["waited_for"][0]["rank"], "rank 1, GPU 1");
  EXPECT_NEAR(json["waited_for"][0]["others_waited_s"].get<double>(), 3 * 30e-6, 1e-12);
  EXPECT_EQ(load_timeline(out).slices.size(), 12U);
}

TEST_F(ForeignTraces, AreComparedByKindOfWork) {
  const std::string predicted = folder_.file("predicted.json");
  ASSERT_EQ(orrery("simulate " + scenario("tiny-cpu-pair") + " --trace " + predicted).code, 0);
  const auto classes = [&](const std::string& measured) {
    return parse_json(orrery("compare --json " + predicted + " " + measured).out, "out");
  };
  const Json json = classes(both());
  EXPECT_EQ(json["steps"], 3);
  double products = 0;
  for (const Json& w : json["classes"]) {
    if (w["class"] != "product") continue;
    EXPECT_DOUBLE_EQ(w["measured"]["count"].get<double>(), 1);
    EXPECT_NEAR(w["measured"]["active_s"].get<double>(), 40e-6, 1e-12);
    products = w["predicted"]["count"].get<double>();
  }
  EXPECT_GT(products, 10);
  // A merged timeline says the same as the traces.
  const std::string merged = folder_.file("merged.json");
  ASSERT_EQ(orrery("merge " + both() + " -o " + merged).code, 0);
  EXPECT_EQ(classes(merged)["classes"], json["classes"]);
  const Output text = orrery("compare " + predicted + " " + both());
  EXPECT_EQ(text.code, 0) << text.out;
  EXPECT_NE(text.out.find("came last"), std::string::npos) << text.out;
}

TEST_F(ForeignTraces, MakeLinkProfiles) {
  const std::string out = folder_.file("links.json");
  const Output o = orrery("links import --traces " + both() + " --base nvlink3-a100 --name mine -o " + out);
  EXPECT_EQ(o.code, 0) << o.out;
  const Json profile = load_json(out);
  bool found = false;
  for (const Json& curve : profile["measured"]) {
    if (curve["ranks"] != 2 || curve["collective"] != "all-reduce") continue;
    found = true;
    EXPECT_EQ(curve["bytes"], Json::parse(R"(["2097152 B"])"));
    EXPECT_EQ(curve["times"], Json::parse(R"(["50000000 ps"])"));  // from 130 to 180
  }
  EXPECT_TRUE(found) << profile.dump();
}

// The plan's products took 40 us in each of three steps, whatever a profile says.
TEST_F(ForeignTraces, CalibrateADevice) {
  const std::string device = folder_.file("device.json");
  const Json json = parse_json(orrery("calibrate --json " + scenario("tiny-cpu-pair") + " --traces " +
                                      both() + " --name mine --device " + device)
                                   .out,
                               "out");
  bool products = false;
  for (const Json& c : json["classes"]) products = products || c["constant"] == "gemm.efficiency";
  EXPECT_TRUE(products) << json.dump();
  EXPECT_EQ(load_json(device)["name"], "mine");
  // A cluster beside it names it, and can be planned with.
  const std::string cluster = folder_.file("cluster.json");
  ASSERT_EQ(orrery("calibrate " + scenario("tiny-cpu-pair") + " --traces " + both() +
                   " --name mine --device " + device + " --cluster " + cluster)
                .code,
            0);
  EXPECT_EQ(orrery("plan " + scenario("tiny-cpu-pair") + " --cluster " + cluster).code, 0);
}

TEST_F(ForeignTraces, OfAnotherKindAreRefused) {
  const auto refused = [](const std::string& arguments, const char* because) {
    const Output o = orrery(arguments);
    EXPECT_EQ(o.code, 3) << arguments << "\n" << o.out;
    EXPECT_NE(o.out.find(because), std::string::npos) << arguments << "\n" << o.out;
  };
  const std::string timeline = folder_.file("predicted.json"), none = folder_.file("none.json");
  ASSERT_EQ(orrery("simulate " + scenario("tiny-cpu-pair") + " --trace " + timeline).code, 0);
  refused("merge " + timeline, "is a timeline already");
  refused("merge " + both() + " " + timeline, "is a timeline of all ranks");
  refused("merge " + rank_file(0) + " " + rank_file(0), "is given twice");
  refused("merge " + both() + " -o " + rank_file(1), "is one of the traces");
  EXPECT_EQ(load_json(rank_file(1))["traceEvents"].size(), 15U);  // which is as it was
  const std::string merged = folder_.file("merged.json");
  ASSERT_EQ(orrery("merge " + both() + " -o " + merged).code, 0);
  refused("compare " + merged + " " + both(), "was measured by other software");
  refused("links import --traces " + merged + " --base nvlink3-a100 --name mine",
          "allowed: the traces themselves");
  refused("merge " + none, "no such file");
  const std::string empty = folder_.file("empty.json");
  save_json(empty, {{"traceEvents", Json::array()}});
  refused("merge " + empty, "has no slices");
  refused("compare " + timeline + " " + timeline + " --steps 3", "is for traces of other software");
  refused("compare " + rank_file(0) + " " + rank_file(1), "was measured by other software");
  refused("calibrate " + scenario("tiny-cpu-pair") + " --traces " + timeline + " --name n --device " + none,
          "is a timeline of Orrery");
  refused("calibrate --traces " + both() + " --name n --device " + none, "are missing");
  refused("links import --base nvlink3-a100 --name mine", "neither files of nccl-tests nor --traces");
  refused("links import --traces " + rank_file(0) + " --base nvlink3-a100 --name mine",
          "no collective has a known size and all its members");
}

}  // namespace
}  // namespace orrery
