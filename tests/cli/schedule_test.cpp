// SPDX-License-Identifier: Apache-2.0
//
// orrery schedule, as a shell sees it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "core/json.h"
#include "core/timeline.h"
#include "tests/cli/command.h"

namespace orrery {
namespace {

// A queue of durations on nodes of eight A100, which have a price.
class ScheduleCommand : public testing::Test {
 protected:
  ScheduleCommand() {
    queue_["jobs"] = Json::array({{{"name", "a"}, {"nodes", 2}, {"duration", "4 h"}},
                                  {{"name", "b"}, {"nodes", 4}, {"duration", "2 h"}},
                                  {{"name", "c"}, {"devices", 8}, {"duration", "3 h"}}});
  }
  std::string written(const Json& json) const {
    save_json(folder_.file("jobs.json"), json);
    return folder_.file("jobs.json");
  }
  Output run(const Json& json, const std::string& options = "--json --each-job") const {
    return orrery("schedule " + written(json) + " p4de --nodes 4 " + options);
  }
  void refused(const std::string& pointer, const Json& value, const std::string& at,
               const std::vector<std::string>& words) const {
    Json wrong = queue_;
    wrong[Json::json_pointer(pointer)] = value;
    const Output o = run(wrong);
    EXPECT_EQ(o.code, 3) << o.out;
    EXPECT_EQ(o.out.find("orrery: " + folder_.file("jobs.json") + ": " + at + ": "), 0U) << o.out;
    for (const std::string& w : words) EXPECT_NE(o.out.find(w), std::string::npos) << w << "\n" << o.out;
  }
  Json queue_ = {{"policy", {{"order", "fifo"}, {"backfill", "none"}}}};
  TemporaryFolder folder_;
};

// FIFO on 4 nodes: a 0 to 4 h, b 4 to 6, c behind it; with backfill c passes b
// (tests/sim/scheduling_test.cpp).
TEST_F(ScheduleCommand, AnswersInJson) {
  const Output o = run(queue_);
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "output");
  EXPECT_EQ(j["schema"], "orrery.schedule/1");
  EXPECT_EQ(j["jobs"][1]["start_s"], 4 * 3600);
  EXPECT_EQ(j["jobs"][2]["start_s"], 6 * 3600);
  EXPECT_EQ(j["makespan_s"], 9 * 3600);
  EXPECT_NEAR(j["utilisation"].get<double>(), (8.0 + 8 + 3) / (4 * 9), 1e-12);
  double sum = 0;
  for (const auto& [name, share] : j["share_of_device_time"].items()) sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_EQ(j["load"].size(), 100U);
  // Dollars are node hours at the topology's price, which has a date.
  EXPECT_NEAR(j["all"]["usd"].get<double>(), 19 * j["node_hour_usd"].get<double>(), 1e-6);
  EXPECT_FALSE(j["price_as_of"].get<std::string>().empty());
  const Json easy = parse_json(run(queue_, "--backfill easy --json --each-job").out, "output");
  EXPECT_EQ(easy["jobs"][2]["start_s"], 0);
  EXPECT_TRUE(easy["jobs"][2]["backfilled"]);
  EXPECT_EQ(easy["policy"]["backfill"], "easy");
  EXPECT_EQ(run(queue_).out, o.out);  // deterministic
}

TEST_F(ScheduleCommand, ReportsForPeople) {
  queue_["jobs"][0]["tenant"] = "vision";
  const Output o = run(queue_, "");
  ASSERT_EQ(o.code, 0) << o.out;
  for (const char* words :
       {"3 jobs of 2 tenants on 4 nodes of 8 devices", "fifo, backfill none", "starts", "vision", "makespan",
        "utilisation", "fragmentation", "Jain", "a node and hour", "USD"})
    EXPECT_NE(o.out.find(words), std::string::npos) << words << "\n" << o.out;
}

TEST_F(ScheduleCommand, WritesATimeline) {
  for (const char* name : {"gantt.json", "gantt.timeline"}) {
    const Output o = run(queue_, std::string("--trace ") + folder_.file(name));
    ASSERT_EQ(o.code, 0) << o.out;
    const Timeline t = load_timeline(folder_.file(name));
    EXPECT_EQ(t.slices.size(), 7U);  // 2 + 4 + 1 nodes
    EXPECT_EQ(t.length(), from_seconds(9 * 3600));
    EXPECT_EQ(kind_of(t), "predicted");
  }
}

TEST_F(ScheduleCommand, ReadsATrace) {
  const std::string file = folder_.file("x.swf");
  save_text(file,
            "; a comment\n"
            "1 0 0 3600 16 0 0 16 7200 0 1 1 1 1 1 1 0 0\n"
            "2 10 0 3600 32 0 0 32 7200 0 1 2 1 1 1 1 0 0\n"
            "3 20 0 -1 8 0 0 8 60 0 0 2 1 1 1 1 0 0\n");
  const Output o = orrery("schedule " + file + " dgx-a100 --nodes 4 --json");
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "output");
  EXPECT_EQ(j["makespan_s"], 7200);
  EXPECT_EQ(j["tenants"][1]["name"], "user 2");
  EXPECT_EQ(j["left_out"]["without_run_time"], 1);
  const Output small = orrery("schedule " + file + " dgx-a100 --nodes 1");
  EXPECT_EQ(small.code, 3);
  EXPECT_NE(small.out.find("no job that can run here"), std::string::npos) << small.out;
}

// A scenario's plan on its nodes, and the same on nodes of several switches.
TEST_F(ScheduleCommand, CostsAPlanForItsNodes) {
  const auto end = [&](const std::string& placement) {
    Json queue = {{"jobs", Json::array({{{"name", "llama"},
                                         {"scenario", scenario("llama2-7b-8k-a100")},
                                         {"nodes", 4},
                                         {"steps", 100}}})}};
    save_json(folder_.file("jobs.json"), queue);
    const Output o = orrery("schedule " + folder_.file("jobs.json") + " designed-fat-tree-4to1 --placement " +
                            placement + " --json --each-job");
    EXPECT_EQ(o.code, 0) << o.out;
    return o.code == 0 ? parse_json(o.out, "output")["jobs"][0] : Json();
  };
  const Json near = end("topology"), far = end("spread");
  ASSERT_FALSE(near.is_null() || far.is_null());
  EXPECT_EQ(near["slow_s"], 0);
  EXPECT_GE(far["slow_s"].get<double>(), 0);
  EXPECT_EQ(near["work_s"], far["work_s"]);
  EXPECT_GT(near["work_s"].get<double>(), 0);
}

TEST_F(ScheduleCommand, WritesLaunchFiles) {
  queue_["jobs"][0]["command"] = "python train.py --name 'x'";
  queue_["jobs"][0]["image"] = "me/image:1";
  queue_["jobs"][0]["requested"] = "26 h";
  const Output o = run(queue_, "--launch " + folder_.file("launch"));
  ASSERT_EQ(o.code, 0) << o.out;
  const auto text = [&](const char* name) {
    std::ifstream in(folder_.file("launch") + "/" + name);
    std::ostringstream all;
    all << in.rdbuf();
    return all.str();
  };
  const std::string slurm = text("0001-a.sbatch"), kubernetes = text("0001-a.yaml");
  for (const char* line :
       {"#SBATCH --nodes=2\n", "#SBATCH --gpus-per-node=8\n", "#SBATCH --time=1-02:00:00\n",
        "#SBATCH --switches=1\n", "#SBATCH --account=default\n"})
    EXPECT_NE(slurm.find(line), std::string::npos) << line << slurm;
  for (const char* line : {"completions: 2\n", "nvidia.com/gpu: 8\n", "image: \"me/image:1\"\n",
                           "activeDeadlineSeconds: 93600\n", "python train.py --name 'x'\n"})
    EXPECT_NE(kubernetes.find(line), std::string::npos) << line << kubernetes;
  EXPECT_TRUE(text("0002-b.yaml").empty());  // without an image
  // A shell reads the script, and the command arrives whole.
  save_text(folder_.file("srun"),
            "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nSLURM_NODEID=1 exec \"$@\"\n");
  save_text(folder_.file("scontrol"), "#!/bin/bash\necho host7\n");
  save_text(folder_.file("python"), "#!/bin/bash\necho \"$NODE_RANK $MASTER_ADDR $*\"\n");
  const Output ran = shell("cd " + folder_.path() + " && chmod +x srun scontrol python && PATH=.:$PATH " +
                           "SLURM_JOB_NODELIST=x bash launch/0001-a.sbatch");
  EXPECT_EQ(ran.out, "1 host7 train.py --name x\n");
}

TEST_F(ScheduleCommand, RefusesWhatIsWrong) {
  refused("/policy/order", "fairshare", "/policy/order",
          {"\"fairshare\" is not known", "did you mean \"fair-share\"?"});
  refused("/policy/preemption", "lower-priority", "/policy/preemption", {"\"fifo\""});
  refused("/policy/backfil", "easy", "/policy/backfil", {"backfill"});
  refused("/jobs/1/nodes", 5, "/jobs/1", {"asks for 40 devices, and the cluster has 32"});
  refused("/jobs/1/nodes", 0, "/jobs/1/nodes", {"out of range"});
  refused("/jobs/1/devices", 8, "/jobs/1/nodes", {"beside devices"});
  refused("/jobs/1/duration", "-3 h", "/jobs/1/duration", {"out of range"});
  refused("/jobs/1/duration", 3, "/jobs/1/duration", {"not a quantity"});
  refused("/jobs/1/submit", "1e308 h", "/jobs/1/submit", {});
  refused("/jobs/1/count", 1'000'000'000, "/jobs/1/count", {"out of range"});
  refused("/jobs/1/scenario", "nowhere", "/jobs/1/duration", {"beside a scenario"});
  refused("/jobs", Json::array({{{"nodes", 1}}}), "/jobs/0", {"neither a duration nor a scenario"});
  refused("/jobs", Json::array({{{"nodes", 1}, {"scenario", "llama2-7b-8k-a10"}}}), "/jobs/0/scenario",
          {"did you mean \"llama2-7b-8k-a100\"?"});
  refused("/jobs", Json::array(), "/jobs", {"empty"});
  refused("/tenants", Json::array({{{"name", "x"}}}), "/jobs/0/tenant",
          {"\"default\" is not one of the tenants"});
  refused("/tenants", Json::array({{{"name", "default"}, {"quota", 16}}}), "/jobs/1",
          {"the quota of \"default\" is 16"});
  refused("/tenants", Json::array({{{"name", "default"}}, {{"name", "default"}}}), "/tenants/1/name",
          {"twice"});
  EXPECT_EQ(orrery("schedule").code, 2);
  EXPECT_EQ(orrery("schedule " + written(queue_) + " dgx-a10").code, 3);
  EXPECT_EQ(run(queue_, "--order lifo").code, 3);
  EXPECT_EQ(orrery("schema jobs").code, 0);
}

TEST_F(ScheduleCommand, EndsWhereASchedulesDoesNot) {
  queue_["jobs"] = Json::array({{{"nodes", 4}, {"duration", "9999 days"}, {"count", 100}}});
  const Output o = run(queue_);
  EXPECT_EQ(o.code, 3);
  EXPECT_NE(o.out.find("would end after more than"), std::string::npos) << o.out;
}

TEST(Schedule, TheExampleRuns) {
  const Output o =
      orrery("schedule " ORRERY_ROOT "/scenarios/jobs/three-tenants.json p4de --nodes 16 --json");
  ASSERT_EQ(o.code, 0) << o.out;
  const Json j = parse_json(o.out, "output");
  EXPECT_EQ(j["tenants"].size(), 3U);
  EXPECT_GT(j["all"]["preemptions"].get<int>(), 0);
  EXPECT_GT(j["all"]["backfilled"].get<int>(), 0);
}

}  // namespace
}  // namespace orrery
