// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes of this host: they compute what threads compute, to the bit, and when one dies, hangs or
// does something else, every other one says so and ends.
#include <array>
#include <random>

#include "tests/exec/launched.h"

namespace orrery {
namespace {

TEST(Processes, ComputeWhatThreadsCompute) {
  struct Case {
    Json plan;
    const char* algorithm;
    Json training;  // what differs from the scenario's
  };
  const Json fp16 = {{"precision", "mixed"}, {"math", "fp16"}},
             bf16 = {{"precision", "megatron"}, {"math", "bf16"}};
  const Case cases[] = {
      {{{"tp", 2}, {"pp", 2}, {"dp", 2}, {"zero", 1}, {"sequence_parallel", true}, {"micro_batches", 8}},
       "direct",
       Json::object()},
      {{{"tp", 2}, {"pp", 1}, {"dp", 4}, {"zero", 1}, {"micro_batches", 4}}, "tree", fp16},
      {{{"tp", 1}, {"pp", 1}, {"dp", 4}, {"zero", 3}, {"micro_batches", 4}}, "hierarchical", bf16},
      {{{"tp", 1}, {"pp", 1}, {"dp", 4}, {"zero", 2}, {"micro_batches", 4}}, "ring", {{"dropout", 0.2}}},
      {{{"tp", 1}, {"pp", 2}, {"dp", 1}, {"vpp", 2}, {"schedule", "interleaved"}, {"micro_batches", 16}},
       "direct",
       Json::object()},
      {{{"tp", 1}, {"pp", 4}, {"dp", 1}, {"schedule", "zb-h1"}, {"micro_batches", 16}},
       "direct",
       Json::object()}};
  for (const auto& [plan, algorithm, training] : cases) {
    SCOPED_TRACE(plan.dump());
    const Folder folder;
    const fs::path file = scenario(folder.path, "plan.json", plan, training);
    const auto arguments = [&](const char* to) {
      return run(file, 6,
                 {"--checkpoints", (folder.path / to).string(), "--validate-every", "3", "--collectives",
                  algorithm});
    };
    const Json threads = run_threads(folder.path, arguments("threads"));
    const auto ranks =
        static_cast<std::size_t>(plan["tp"].get<int>() * plan["pp"].get<int>() * plan["dp"].get<int>());
    Launched processes(folder.path, std::vector(ranks, arguments("processes")));
    for (std::size_t r = 0; r < ranks; ++r) ASSERT_EQ(processes.wait(r), 0) << processes.err(r);
    const Json result = Json::parse(processes.out(0));
    ASSERT_EQ(result["steps"].size(), 6U);
    for (std::size_t s = 0; s < 6; ++s) {
      for (const char* what : {"loss", "grad_norm", "validation_loss"})
        EXPECT_EQ(result["steps"][s].value(what, 0.0), threads["steps"][s].value(what, 0.0)) << what << s;
    }
    EXPECT_EQ(result["memory"], threads["memory"]);
    int files = 0;
    for (const auto& entry : fs::directory_iterator(folder.path / "threads/step-00000006")) {
      const fs::path name = entry.path().filename();
      EXPECT_EQ(text_of(entry.path()), text_of(folder.path / "processes/step-00000006" / name)) << name;
      ++files;
    }
    EXPECT_GE(files, 2);
    for (std::size_t r = 1; r < ranks; ++r) EXPECT_EQ(processes.out(r), "");
  }
}

// Over TCP, which needs neither shared memory nor MPI: the same bits.
TEST(Processes, MeetOverTcpByAnAddressInAFile) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const Json threads = run_threads(folder.path, run(file, 4));
  const Arguments over_tcp = run(file, 4,
                                 {"--rendezvous", "file:" + (folder.path / "address").string(), "--trace",
                                  (folder.path / "t.json").string()});
  Launched processes(folder.path, std::vector(4, over_tcp));
  for (std::size_t r = 0; r < 4; ++r) ASSERT_EQ(processes.wait(r), 0) << processes.err(r);
  const Json result = Json::parse(processes.out(0));
  for (std::size_t s = 0; s < 4; ++s) {
    for (const char* what : {"loss", "grad_norm"})
      EXPECT_EQ(result["steps"][s].value(what, 0.0), threads["steps"][s].value(what, 0.0)) << what << s;
  }
  EXPECT_FALSE(fs::exists(folder.path / "address"));  // for whoever comes next
  EXPECT_TRUE(fs::exists(folder.path / "t.json"));
}

TEST(Processes, RanksThatMeetAtAnAddressNeedOneSecret) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour), secret = folder.path / "secret";
  std::ofstream(secret) << "0123456789abcdef\n";
  const Arguments at{"--rendezvous", "tcp://127.0.0.1:1"};
  struct Case {
    Arguments more;
    Launched::Variables environment;
    const char* text;
  };
  const std::string path = secret.string();
  for (const auto& [more, environment, text] :
       {Case{{}, {}, "needs a secret that all ranks know"},
        Case{{}, {{"ORRERY_JOB_SECRET", "short"}}, "has 5 characters (allowed: 16 to 4096"},
        Case{{"--secret-file", path}, {}, "is refused: other users may open it (mode 0644, allowed: 0600)"},
        Case{{"--secret-file", path + "s"}, {}, "No such file or directory"},
        Case{{"--secret-file", path}, {{"ORRERY_JOB_SECRET", "0123456789abcdef"}}, "allowed: one of them"}}) {
    fs::permissions(secret, fs::perms(0644));
    Arguments all = at;
    all.insert(all.end(), more.begin(), more.end());
    Launched job(folder.path, std::vector(4, run(file, 5, all)), environment);
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(job.wait(r), 3);
      EXPECT_NE(job.err(r).find(text), std::string::npos) << job.err(r);
    }
  }
  // One rank has another secret: rank 0 says that somebody was refused, and that rank why.
  fs::permissions(secret, fs::perms(0600));
  const Arguments meet{"--rendezvous", "file:" + (folder.path / "address").string(), "--deadline", "2"};
  Arguments other = meet;
  other.insert(other.end(), {"--secret-file", path});
  const Arguments same = run(file, 5, meet);
  Launched job(folder.path, {same, same, run(file, 5, other), same});
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(job.wait(r), 1);
    const char* text = r == 2 ? "refuses this rank, as its secret or its job is another"
                              : "rank 2 did not come within 2000 ms; ";
    EXPECT_NE(job.err(r).find(text), std::string::npos) << job.err(r);
  }
}

TEST(Processes, ARankThatIsKilledIsNamedOverTcp) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const fs::path metrics = folder.path / "metrics";
  Launched processes(folder.path,
                     std::vector(4, run(file, 100000,
                                        {"--rendezvous", "file:" + (folder.path / "address").string(),
                                         "--metrics-file", metrics.string()})));
  ASSERT_TRUE(comes(metrics));
  processes.signal(2, SIGKILL);
  EXPECT_EQ(processes.wait(2), -SIGKILL);
  for (const std::size_t r : {0UL, 1UL, 3UL}) {
    EXPECT_EQ(processes.wait(r), 1);
    EXPECT_NE(processes.err(r).find("rank 2 is gone"), std::string::npos) << processes.err(r);
  }
}

// Kill -9 of any rank at any moment: all others name it and end; what is resumed goes on as if nothing had
// been.
TEST(Processes, AKilledRankIsNamedAndTheRunResumes) {
  constexpr unsigned kSeed = 20261121;
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const Json whole = run_threads(folder.path, run(file, 400));
  for (int trial = 0; trial < 50; ++trial) {
    SCOPED_TRACE(trial);
    const fs::path checkpoints = folder.path / ("trial" + std::to_string(trial));
    const Arguments arguments = run(
        file, 100000, {"--checkpoints", checkpoints.string(), "--checkpoint-every", "2", "--deadline", "20"});
    Launched job(folder.path, std::vector(4, arguments));
    ASSERT_TRUE(comes(checkpoints / "step-00000002/index.json")) << job.err(0);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200000));
    const std::size_t killed = random() % 4;
    const auto begin = std::chrono::steady_clock::now();
    job.signal(killed, SIGKILL);
    EXPECT_EQ(job.wait(killed), -SIGKILL);
    for (std::size_t r = 0; r < 4; ++r) {
      if (r == killed) continue;
      EXPECT_EQ(job.wait(r), 1);
      EXPECT_NE(job.err(r).find("rank " + std::to_string(killed) + " died: "), std::string::npos)
          << job.err(r);
      EXPECT_NE(job.err(r).find("(call "), std::string::npos) << job.err(r);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10 * kSlower));
    std::int64_t newest = 0;
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      // Rank 0 may die between an index and the renaming of its folder, which is still called partial.
      if (entry.path().extension() != ".partial" && entry.is_directory())
        newest = std::max<std::int64_t>(newest, std::stoll(entry.path().filename().string().substr(5)));
    }
    ASSERT_LT(newest + 3, 400);
    const Json rest = run_threads(folder.path, run(file, static_cast<int>(newest) + 3,
                                                   {"--checkpoints", checkpoints.string(), "--resume"}));
    EXPECT_EQ(rest["first_step"], newest);
    for (std::size_t s = 0; s < 3; ++s) {
      for (const char* what : {"loss", "grad_norm"})
        EXPECT_EQ(rest["steps"][s][what], whole["steps"][static_cast<std::size_t>(newest) + s][what]);
    }
    fs::remove_all(checkpoints);
  }
}

// The others plan anew for as many as they are, and go on where the last checkpoint stood; twice.
TEST(Processes, ElasticRunsGoOnWithWhoIsLeft) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  constexpr int kSteps = 100;
  const Json whole = run_threads(folder.path, run(file, kSteps));
  const fs::path checkpoints = folder.path / "checkpoints";
  Launched job(folder.path, std::vector(4, run(file, kSteps,
                                               {"--checkpoints", checkpoints.string(), "--checkpoint-every",
                                                "5", "--elastic", "--deadline", "20", "--metrics-file",
                                                (folder.path / "metrics").string()})));
  ASSERT_TRUE(comes(checkpoints / "step-00000010/index.json")) << job.err(0);
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(0), -SIGKILL);
  ASSERT_TRUE(comes(checkpoints / "step-00000060/index.json")) << job.err(1);
  job.signal(2, SIGKILL);
  EXPECT_EQ(job.wait(2), -SIGKILL);
  EXPECT_EQ(job.wait(1), 0) << job.err(1);
  EXPECT_EQ(job.wait(3), 0) << job.err(3);  // it works on, or was not needed
  EXPECT_NE(job.err(1).find("ranks left: 3; going on under "), std::string::npos) << job.err(1);
  const std::size_t again = job.err(1).rfind("rank 1 died: ");
  EXPECT_NE(again, std::string::npos) << job.err(1);
  EXPECT_NE(job.err(1).find("ranks left: ", again), std::string::npos) << job.err(1);
  const Json rest = Json::parse(job.out(1));
  std::int64_t peak = 0;  // of the plan that was left
  for (const auto& [rank, memory] : rest["memory"].items())
    peak = std::max(peak, memory["arena"].get<std::int64_t>());
  EXPECT_NE(text_of(folder.path / "metrics").find("\norrery_peak_bytes " + std::to_string(peak) + "\n"),
            std::string::npos)
      << peak << " in " << text_of(folder.path / "metrics");
  const auto first = rest["first_step"].get<std::size_t>();
  EXPECT_GE(first, 60U);
  ASSERT_EQ(rest["steps"].size(), kSteps - first);
  for (std::size_t s = 0; s < 5; ++s) {
    const double expected = whole["steps"][first + s]["loss"].get<double>();
    EXPECT_NEAR(rest["steps"][s]["loss"].get<double>(), expected, 1e-2 * expected) << first + s;
  }
}

TEST(Processes, ElasticRunsWithoutACheckpointSayThatTheyBeginAnew) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour), checkpoints = folder.path / "checkpoints",
                 metrics = folder.path / "metrics";
  Launched job(folder.path,
               std::vector(4, run(file, 1000000,
                                  {"--checkpoints", checkpoints.string(), "--checkpoint-every", "1000000",
                                   "--elastic", "--metrics-file", metrics.string()})));
  ASSERT_TRUE(comes(metrics)) << job.err(0);
  job.signal(3, SIGKILL);
  EXPECT_EQ(job.wait(3), -SIGKILL);
  const std::string text = "from step 0, as " + checkpoints.string() + " holds no checkpoint";
  for (int i = 0; i < kPatience.count() && job.err(0).find("going on under ") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_NE(job.err(0).find(text), std::string::npos) << job.err(0);
}

// In shared memory and over TCP; when the rank goes on it ends too, without a word of its own.
TEST(Processes, AFrozenRankIsNamedWithinTheDeadline) {
  for (const auto& [tcp, frozen] : {std::pair{false, 3UL}, {false, 0UL}, {true, 3UL}, {true, 0UL}}) {
    SCOPED_TRACE(testing::Message() << (tcp ? "TCP, rank " : "shared memory, rank ") << frozen);
    const Folder folder;
    const fs::path file = scenario(folder.path, "plan.json", kFour);
    Arguments more{"--deadline", "2", "--metrics-file", (folder.path / "metrics").string()};
    if (tcp) more.insert(more.end(), {"--rendezvous", "file:" + (folder.path / "address").string()});
    Launched job(folder.path, std::vector(4, run(file, 100000, more)));
    ASSERT_TRUE(comes(folder.path / "metrics")) << job.err(0);
    job.signal(frozen, SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    const std::string named = tcp && frozen == 0 ? "rank 0 did not answer \""
                                                 : "rank " + std::to_string(frozen) + " did not come to \"";
    for (std::size_t r = 0; r < 4; ++r) {
      if (r == frozen) continue;
      EXPECT_EQ(job.wait(r), 1);
      EXPECT_NE(job.err(r).find(named), std::string::npos) << job.err(r);
      EXPECT_NE(job.err(r).find(" within 2000 ms"), std::string::npos) << job.err(r);
      EXPECT_EQ(job.err(r).find(": its process does not answer") == std::string::npos, tcp && frozen == 0)
          << job.err(r);
    }
    if (tcp) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlower * std::chrono::seconds(3));
    }
    job.signal(frozen, SIGCONT);
    EXPECT_EQ(job.wait(frozen), 1);
  }
}

// Threads, and processes of which one or all are asked: each ends after the same step with a checkpoint, and
// with 128 and the signal.
TEST(Processes, SignalsEndRunsWithACheckpoint) {
  struct Case {
    std::size_t processes, asked;
    int number;
    Arguments more;
  };
  for (const auto& [processes, asked, number, more] :
       {Case{1, 1, SIGINT, {}}, Case{1, 1, SIGTERM, {}}, Case{4, 4, SIGINT, {}}, Case{4, 1, SIGTERM, {}},
        Case{4, 1, SIGTERM, {"--elastic"}}, Case{4, 1, SIGINT, {"--rendezvous", "file:"}}}) {
    const Folder folder;
    SCOPED_TRACE(testing::Message() << processes << " processes, " << asked << " asked, signal " << number);
    const fs::path file = scenario(folder.path, "plan.json", kFour), metrics = folder.path / "metrics",
                   checkpoints = folder.path / "checkpoints", trace = folder.path / "trace.json";
    Arguments all = run(file, 1000000,
                        {"--checkpoints", checkpoints.string(), "--checkpoint-every", "1000000", "--trace",
                         trace.string(), "--metrics-file", metrics.string()});
    all.insert(all.end(), more.begin(), more.end());
    if (all.back() == "file:") all.back() += (folder.path / "address").string();
    Launched job(folder.path, std::vector(processes, all));
    ASSERT_TRUE(comes(metrics)) << job.err(0);
    for (std::size_t r = processes - asked; r < processes; ++r) job.signal(r, number);
    for (std::size_t r = 0; r < processes; ++r) EXPECT_EQ(job.wait(r), 128 + number) << job.err(r);
    const Json result = Json::parse(job.out(0));
    const std::size_t steps = result["steps"].size();
    EXPECT_NE(job.err(0).find((number == SIGINT ? "SIGINT" : "SIGTERM") +
                              std::string(" stopped the run after step ") + std::to_string(steps) +
                              " of 1000000; " + checkpoints.string() + " has the checkpoint of step " +
                              std::to_string(steps)),
              std::string::npos)
        << job.err(0);
    EXPECT_TRUE(fs::exists(trace));
    const Json rest = run_threads(folder.path, run(file, static_cast<int>(steps) + 1,
                                                   {"--checkpoints", checkpoints.string(), "--resume"}));
    EXPECT_EQ(rest["first_step"], steps);
  }
}

// The second run names the first; when that is killed, its lock is gone.
TEST(Processes, AFolderOfCheckpointsHasOneRun) {
  const Folder first, second;
  const fs::path file = scenario(first.path, "plan.json", kFour), metrics = first.path / "metrics",
                 checkpoints = first.path / "checkpoints";
  Launched holder(first.path, {run(file, 1000000,
                                   {"--checkpoints", checkpoints.string(), "--checkpoint-every", "1000000",
                                    "--metrics-file", metrics.string()})});
  ASSERT_TRUE(comes(metrics)) << holder.err(0);
  const Arguments arguments = run(file, 1, {"--checkpoints", checkpoints.string()});
  const std::string pid = "pid " + std::to_string(holder.pid(0)) + " on host ";
  for (const std::size_t processes : {1UL, 4UL}) {
    Launched other(second.path, std::vector(processes, arguments));
    for (std::size_t r = 0; r < processes; ++r) {
      EXPECT_EQ(other.wait(r), 1);
      EXPECT_NE(other.err(r).find(checkpoints.string() + " is in use by another run: " + pid),
                std::string::npos)
          << other.err(r);
    }
  }
  holder.signal(0, SIGKILL);
  EXPECT_EQ(holder.wait(0), -SIGKILL);
  run_threads(second.path, arguments);
}

// In the middle of a step that takes minutes.
TEST(Processes, ASecondSignalEndsAtOnce) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  Launched job(folder.path, {{"run", file.string(), "--link", "10 kB/s"}});
  for (int i = 0; i < 30000 && job.out(0).find("rank") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  job.signal(0, SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(job.lives(0)) << job.err(0);
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.wait(0), -SIGTERM);
}

TEST(Processes, AnotherCollectiveIsNamed) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const Arguments arguments = run(file, 5), strange = run(file, 5, {"--collectives", "ring"});
  Launched job(folder.path, {arguments, arguments, strange, arguments});
  bool named = false;
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(job.wait(r), 1);
    named = named || job.err(r).find("rank 2 in ring ") != std::string::npos ||
            job.err(r).find("rank 2 is in ring ") != std::string::npos;
  }
  EXPECT_TRUE(named) << job.err(0);
}

// What must be equal everywhere is compared before the first step.
TEST(Processes, AnotherSeedOrPlanIsNamed) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  Json zero2 = kFour;
  zero2["zero"] = 2;
  Json sixteen = kFour;
  sixteen["micro_batches"] = 16;
  const Arguments arguments = run(file, 5), seed = run(file, 5, {"--seed", "8"}),
                  plan = run(scenario(folder.path, "other.json", zero2), 5),
                  batch = run(scenario(folder.path, "batch.json", sixteen, {{"global_batch", 32}}), 5),
                  betas =
                      run(scenario(folder.path, "betas.json", kFour, {{"optimizer", {{"beta1", 0.8}}}}), 5);
  const fs::path text_file = folder.path / "data.txt";
  std::ofstream(text_file) << std::string(100000, 'x');
  for (const auto& [strange, text] :
       {std::pair{seed, "rank 0 has seed 1, rank 2 has 8: they must be equal"},
        std::pair{plan, ": their models, plans, precisions or stacks differ"},
        std::pair{run(file, 6), "rank 0 has steps 5, rank 2 has 6"},
        std::pair{batch, "rank 0 has global_batch 16, rank 2 has 32"},
        std::pair{betas, "rank 0 has optimizer/beta1 0.9, rank 2 has 0.8"},
        std::pair{run(file, 5, {"--learning-rate", "0.002"}),
                  "rank 0 has learning_rate 0.003, rank 2 has 0.002"},
        std::pair{run(file, 5, {"--weight-decay", "0.1"}), "rank 0 has weight_decay 0.0, rank 2 has 0.1"},
        std::pair{
            run(file, 5, {"--data", text_file.string()}),
            "rank 0 has data \"built-in corpus, vocabulary 256\", rank 2 has \"text, 100000 bytes, CRC-32C"},
        std::pair{run(file, 5, {"--validate-every", "2"}), "rank 0 has "}}) {
    Launched job(folder.path, {arguments, arguments, strange, arguments});
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(job.wait(r), 1);
      EXPECT_NE(job.err(r).find(text), std::string::npos) << job.err(r);
      EXPECT_EQ(job.err(r).find("rank 0: rank 0"), std::string::npos) << job.err(r);
    }
  }
}

TEST(Processes, AnotherFolderOfCheckpointsIsNamed) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const auto into = [&](const std::string& to) { return run(file, 5, {"--checkpoints", to}); };
  const std::string one = folder.path / "one", same = folder.path / "two/../one/", two = folder.path / "two";
  for (const auto& [strange, text] : {std::pair{into(two), "rank 2 has \"" + two + "/\""},
                                      std::pair{run(file, 5), std::string("rank 2 has \"\"")}}) {
    Launched job(folder.path, {into(one), into(same), strange, into(one)});
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(job.wait(r), 1);
      EXPECT_NE(job.err(r).find("rank 0 has checkpoints \"" + one + "/\", " + text), std::string::npos)
          << job.err(r);
    }
  }
  Launched job(folder.path, {into(one), into(same), into(one), into(one)});
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(job.wait(r), 0) << job.err(r);
}

TEST(Processes, NumbersThatAreNotAreNamed) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  Launched job(folder.path, std::vector(4, run(file, 50, {"--learning-rate", "10", "--weight-decay", "10"})));
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(job.wait(r), 1);
    EXPECT_NE(job.err(r).find("is not a finite number"), std::string::npos) << job.err(r);
    EXPECT_NE(job.err(r).find("(tp "), std::string::npos) << job.err(r);
  }
}

TEST(Processes, ThePlanMustHaveAsManyRanks) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  Launched job(folder.path, std::vector(3, run(file, 5)));
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(job.wait(r), 3);
    EXPECT_NE(job.err(r).find("the plan has 4 ranks, and torchrun started 3 processes"), std::string::npos)
        << job.err(r);
  }
}

// A rank that never comes is named too, and nothing stays behind in shared memory.
TEST(Processes, ARankThatDoesNotComeIsNamed) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const Arguments arguments = run(file, 5, {"--deadline", "1"});
  Launched job(folder.path, {arguments, arguments, {"--version"}, arguments});
  EXPECT_EQ(job.wait(2), 0);
  for (const std::size_t r : {0, 1, 3}) {
    EXPECT_EQ(job.wait(r), 1);
    EXPECT_NE(job.err(r).find("waited 1000 ms for rank 2 to begin"), std::string::npos) << job.err(r);
  }
  EXPECT_EQ(shared_memory(), std::vector<std::string>());
}

// A launch that is killed while it begins leaves its memory, and the next launch of the user removes it; that
// of a launch that is still beginning stays.
TEST(Processes, MemoryOfAKilledLaunchIsRemovedByTheNext) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  const Arguments begins = run(file, 5, {"--deadline", "60"});
  const fs::path first = folder.path / "first", second = folder.path / "second",
                 third = folder.path / "third";
  for (const fs::path& f : {first, second, third}) fs::create_directory(f);
  Launched killed(first, {begins, begins, {"--version"}, begins});
  ASSERT_TRUE(comes_to(1));
  const std::string left = shared_memory()[0];
  Launched waits(second, {begins, {"--version"}, begins, begins});
  ASSERT_TRUE(comes_to(2));
  // All at once, or those that are left would tidy up.
  for (const int number : {SIGSTOP, SIGKILL}) {
    for (const std::size_t r : {0, 1, 3}) killed.signal(r, number);
  }
  for (const std::size_t r : {0, 1, 3}) EXPECT_EQ(killed.wait(r), -SIGKILL);
  EXPECT_EQ(shared_memory().size(), 2U);
  Launched next(third, std::vector(4, run(file, 5)));
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(next.wait(r), 0) << next.err(r);
  const auto there = shared_memory();
  ASSERT_EQ(there.size(), 1U);
  EXPECT_NE(there[0], left);
  // A rank that dies before the others have come is named.
  waits.signal(0, SIGKILL);
  for (const std::size_t r : {2, 3}) {
    EXPECT_EQ(waits.wait(r), 1);
    EXPECT_NE(waits.err(r).find("rank 0 died before the job began"), std::string::npos) << waits.err(r);
  }
  EXPECT_EQ(shared_memory(), std::vector<std::string>());
}

TEST(Processes, MemoryThatOthersMayOpenIsRefused) {
  const Folder folder;
  const fs::path file = scenario(folder.path, "plan.json", kFour);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  for (const bool foreign : {false, true}) {
    if (foreign && ::geteuid() != 0) continue;  // only root gives files away
    const fs::path memory =
        "/dev/shm/orrery-" + std::to_string(::getuid()) + "-" + host.data() + "-" + Launched::next_job();
    const int made = ::open(memory.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    ASSERT_GE(made, 0);
    ASSERT_EQ(foreign ? ::fchown(made, 12345, 12345) : ::fchmod(made, 0666), 0);
    ::close(made);
    Launched job(folder.path, std::vector(4, run(file, 5, {"--deadline", "5"})));
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(job.wait(r), 1);
      EXPECT_NE(job.err(r).find(foreign ? "is refused: it belongs to user 12345"
                                        : "is refused: other users may open it (mode 0666)"),
                std::string::npos)
          << job.err(r);
    }
    EXPECT_TRUE(fs::remove(memory));
  }
}

}  // namespace
}  // namespace orrery
