// SPDX-License-Identifier: Apache-2.0
//
// Faults that are injected into runs: what the run says, that it goes on to the same numbers, and where its
// time went.
#include "core/units.h"
#include "tests/exec/launched.h"

namespace orrery {
namespace {

class Faults : public testing::Test {
 protected:
  fs::path file = scenario(folder().path, "plan.json", kFour);
  fs::path checkpoints = folder().path / "checkpoints";
  static Folder& folder() {
    static Folder f;
    return f;
  }
  void TearDown() override { fs::remove_all(checkpoints); }

  Arguments saving(int steps, Arguments more) const {
    more.insert(more.end(), {"--checkpoints", checkpoints.string(), "--checkpoint-every", "4"});
    return run(file, steps, more);
  }
  // The losses of a run that went on are those of one in which nothing happened.
  void expect_whole(const Json& rest, std::int64_t first, int steps) {
    const Json whole = run_threads(folder().path, run(file, steps));
    ASSERT_EQ(rest["first_step"], first);
    ASSERT_EQ(rest["steps"].size(), static_cast<std::size_t>(steps - first));
    for (std::size_t s = 0; s < rest["steps"].size(); ++s)
      EXPECT_EQ(rest["steps"][s]["loss"], whole["steps"][static_cast<std::size_t>(first) + s]["loss"]) << s;
  }
  static double seconds(const Json& life, const char* what) { return parse_life(life).at(what); }
  static std::map<std::string, double> parse_life(const Json& life) {
    std::map<std::string, double> out;
    for (const auto& [name, value] : life["times"].items())
      out[name] = parse_run_time(value.get<std::string>())->value;
    return out;
  }
  static void expect_conserved(const Json& life) {
    const auto t = parse_life(life);
    double sum = 0;
    for (const auto& [name, value] : t) sum += name == "total" ? 0 : value;
    EXPECT_NEAR(sum, t.at("total"), 1e-6);
  }
};

TEST_F(Faults, ARankThatDiesCostsWhatCameAfterTheCheckpoint) {
  Launched one(folder().path, {saving(12, {"--fail", "2@7", "--restarts", "1"})});
  ASSERT_EQ(one.wait(0), 0) << one.err(0);
  EXPECT_NE(one.err(0).find("rank 2: died at step 7 (injected)\nrestart 1 of 1: going on from the last "
                            "checkpoint"),
            std::string::npos)
      << one.err(0);
  const Json out = Json::parse(one.out(0));
  expect_whole(out, 4, 12);
  const Json& life = out["life"];
  EXPECT_EQ(life["failures"], 1);
  EXPECT_EQ(life["steps"], 12);
  EXPECT_EQ(life["first_step"], 0);
  ASSERT_EQ(life["faults"].size(), 1U);
  EXPECT_EQ(life["faults"][0]["kind"], "dead");
  EXPECT_GT(seconds(life, "lost"), 0);
  EXPECT_GT(seconds(life, "restart"), 0);
  expect_conserved(life);
}

TEST_F(Faults, OneAfterTheOtherAsOftenAsRestartsAreLeft) {
  Launched two(folder().path, {saving(12, {"--fail", "0@6", "1@10:dead", "--restarts", "2"})});
  ASSERT_EQ(two.wait(0), 0) << two.err(0);
  expect_whole(Json::parse(two.out(0)), 8, 12);
  fs::remove_all(checkpoints);
  Launched once(folder().path, {saving(12, {"--fail", "0@6", "1@10", "--restarts", "1"})});
  EXPECT_EQ(once.wait(0), 1);
  EXPECT_NE(once.err(0).find("died at step 10 (injected)"), std::string::npos) << once.err(0);
  // Without a folder of checkpoints a restart begins anew.
  const Json anew = run_threads(folder().path, run(file, 5, {"--fail", "3@4", "--restarts", "1"}));
  EXPECT_EQ(anew["first_step"], 0);
  EXPECT_EQ(anew["steps"].size(), 5U);
}

TEST_F(Faults, AFrozenRankIsGivenUpAfterTheDeadline) {
  const Json out =
      run_threads(folder().path, saving(8, {"--fail", "3@6:frozen", "--restarts", "1", "--deadline", "1"}));
  expect_whole(out, 4, 8);
  EXPECT_GE(seconds(out["life"], "detection"), 0.99);
  EXPECT_FALSE(out["life"]["measured"].contains("detection_dead"));
  expect_conserved(out["life"]);
}

TEST_F(Faults, AFullDiskCostsACheckpoint) {
  Launched one(folder().path, {saving(12, {"--fail", "1@8:disk", "2@10", "--restarts", "1"})});
  ASSERT_EQ(one.wait(0), 0) << one.err(0);
  const std::string text = "no checkpoint of step 8: rank 1: No space left on device (injected)";
  const std::size_t first = one.err(0).find(text);
  ASSERT_NE(first, std::string::npos) << one.err(0);
  EXPECT_NE(one.err(0).find(text, first + 1), std::string::npos)
      << "it is full when step 8 is done again too";
  const Json out = Json::parse(one.out(0));
  expect_whole(out, 4, 12);
  EXPECT_EQ(out["life"]["faults"].size(), 2U);
  EXPECT_FALSE(fs::exists(checkpoints / "step-00000008"));
}

// Processes: a spare takes the place of the one that is killed, also of rank 0, whose life others know.
TEST_F(Faults, ASpareProcessTakesThePlaceOfADeadOne) {
  for (const std::size_t killed : {2UL, 0UL}) {
    SCOPED_TRACE(killed);
    const fs::path file_of_life = folder().path / "life.json";
    Launched job(folder().path,
                 std::vector(6, saving(12, {"--fail", std::to_string(killed) + "@7", "--spares", "2",
                                            "--life", file_of_life.string(), "--deadline", "20"})));
    EXPECT_EQ(job.wait(killed), -SIGKILL);
    for (std::size_t r = 0; r < 6; ++r) {
      if (r == killed) continue;
      EXPECT_EQ(job.wait(r), 0) << r << job.err(r);
    }
    const std::size_t first = killed == 0 ? 4 : 0;  // the process that is rank 0 at the end
    expect_whole(Json::parse(job.out(first)), 4, 12);
    const Json life = Json::parse(text_of(file_of_life));
    EXPECT_EQ(life["failures"], 1);
    EXPECT_EQ(life["first_step"], 0) << "rank 0 knows of the steps before it came";
    EXPECT_EQ(life["faults"].size(), 1U);
    EXPECT_GT(seconds(life, "lost"), 0);
    expect_conserved(life);
    fs::remove_all(checkpoints);
  }
}

// From the memory of the processes that are left, where storage has nothing, or something older.
TEST_F(Faults, MemoryOutlivesAProcess) {
  for (const std::size_t killed : {3UL, 0UL}) {
    SCOPED_TRACE(killed);
    const fs::path file_of_life = folder().path / "memory-life.json";
    Launched job(folder().path, std::vector(5, run(file, 12,
                                                   {"--fail", std::to_string(killed) + "@7", "--spares", "1",
                                                    "--memory-every", "2", "--life", file_of_life.string(),
                                                    "--deadline", "20"})));
    EXPECT_EQ(job.wait(killed), -SIGKILL);
    for (std::size_t r = 0; r < 5; ++r) {
      if (r == killed) continue;
      EXPECT_EQ(job.wait(r), 0) << r << job.err(r);
    }
    const Json out = Json::parse(job.out(killed == 0 ? 4 : 0));
    EXPECT_EQ(out["from_memory"], true);
    expect_whole(out, 6, 12);
    const Json life = Json::parse(text_of(file_of_life));
    EXPECT_EQ(life["memory_every"], 2);
    EXPECT_EQ(life["memory_replicas"], 2);
    EXPECT_TRUE(life["measured"].contains("memory_checkpoint"));
    EXPECT_EQ(seconds(life, "lost"), 0) << "it died right behind a checkpoint in memory";
    expect_conserved(life);
  }
}

// Three die one after the other: a spare takes a seat, then a smaller plan goes on, then what stood by comes
// in. What that one holds of an older plan is not mixed with what the others hold.
TEST_F(Faults, MemoryOfTwoPlansIsNotMixed) {
  const fs::path plan = scenario(folder().path, "four.json", {{"dp", 4}, {"zero", 1}, {"micro_batches", 4}});
  Launched job(folder().path,
               std::vector(5, run(plan, 12,
                                  {"--spares", "1", "--elastic", "--memory-every", "2", "--checkpoints",
                                   checkpoints.string(), "--checkpoint-every", "4", "--restarts", "3",
                                   "--fail", "1@5", "2@7", "1@7", "--deadline", "20"})));
  int finished = 0;
  for (std::size_t r = 0; r < 5; ++r) {
    if (job.wait(r) != 0) continue;
    ++finished;
    EXPECT_EQ(job.err(r).find("a second time"), std::string::npos) << job.err(r);
  }
  EXPECT_EQ(finished, 2) << job.err(0);
  const Json out = Json::parse(job.out(0));
  EXPECT_EQ(out["first_step"].get<std::int64_t>() + static_cast<std::int64_t>(out["steps"].size()), 12);
}

TEST_F(Faults, TheNewerOfMemoryAndStorageCounts) {
  const Arguments both{"--restarts", "1", "--memory-every", "2", "--fail"};
  const auto failing = [&](const char* where, Arguments more) {
    Arguments a = both;
    a.emplace_back(where);
    a.insert(a.end(), more.begin(), more.end());
    const Json out = run_threads(folder().path, saving(12, a));
    fs::remove_all(checkpoints);
    return out;
  };
  const Json memory = failing("2@8", {});  // storage has step 4
  EXPECT_EQ(memory["from_memory"], true);
  expect_whole(memory, 6, 12);
  const Json alone = failing("2@8", {"--memory-replicas", "1"});
  EXPECT_EQ(alone["from_memory"], false);
  expect_whole(alone, 4, 12);
  const Json anew =
      run_threads(folder().path, run(file, 6,
                                     {"--restarts", "1", "--memory-every", "1", "--memory-replicas", "1",
                                      "--fail", "1@4:frozen", "--deadline", "1"}));
  EXPECT_EQ(anew["first_step"], 3) << "a rank that froze still has its memory";
}

// All processes are alive after one was frozen: they go on where they are.
TEST_F(Faults, AFrozenProcessGoesOn) {
  Launched job(folder().path,
               std::vector(4, saving(8, {"--fail", "1@6:frozen", "--restarts", "1", "--deadline", "1"})));
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(job.wait(r), 0) << r << job.err(r);
  expect_whole(Json::parse(job.out(0)), 4, 8);
}

// Predicted from the other runs, with faults of all kinds.
TEST_F(Faults, LivesAreReplayed) {
  Arguments compare{"reliability", "--json"};
  for (const Arguments& faults : {Arguments{"--fail", "2@7"},
                                  {"--fail", "1@3", "0@10"},
                                  {"--fail", "3@12"},
                                  {"--fail", "3@14", "--memory-every", "2"},
                                  {"--fail", "2@16", "--memory-every", "2"}}) {
    const fs::path life = folder().path / ("life" + std::to_string(compare.size()) + ".json");
    Arguments more{"--restarts", "2", "--life", life.string()};
    more.insert(more.end(), faults.begin(), faults.end());
    run_threads(folder().path, saving(20, more));
    fs::remove_all(checkpoints);
    compare.push_back(life.string());
  }
  const Json out = run_threads(folder().path, compare);
  ASSERT_EQ(out["runs"].size(), 5U);
  EXPECT_EQ(out["runs"][1]["failures"], 2);
  for (const Json& r : out["runs"]) {
    EXPECT_GT(r["measured"].get<double>(), 0);
    EXPECT_LT(r["measured"].get<double>(), 1);
    EXPECT_GT(r["predicted"].get<double>(), 0);
    EXPECT_LT(r["predicted"].get<double>(), 1);
  }
}

}  // namespace
}  // namespace orrery
