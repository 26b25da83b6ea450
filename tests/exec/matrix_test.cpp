// SPDX-License-Identifier: Apache-2.0
//
// A random rank of a random kind of job is killed, frozen or ended at a random moment. The others name it
// within the deadline and end, nothing is left behind, and every checkpoint that is called whole loads.
//   ORRERY_TRIALS   how many trials (10)
//   ORRERY_SEED     the first trial's seed (random; each trial prints its own)
#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <regex>

#include "tests/exec/launched.h"

namespace orrery {
namespace {

enum class World { kThreads, kProcesses, kElastic, kTcp, kMpirun };
constexpr const char* kWorlds[] = {"threads", "processes", "elastic processes", "TCP", "mpirun"};
enum class Act { kKill, kFreeze, kTerminate };
constexpr const char* kActs[] = {"killed", "frozen", "terminated"};

constexpr std::size_t kRanks = 4;
constexpr std::chrono::seconds kDeadline{3 * kSlower};
// For the processes to see what happened, say so and end, on a machine with other work.
constexpr std::chrono::seconds kSlack{15 * kSlower};

struct Trial {
  unsigned seed;
  World world;
  Act act;
  std::size_t victim;
  bool beginning;  // it happens while ranks meet, or while they train
  std::chrono::microseconds after;
};

// Elastic ranks go on without one that dies; while they meet, they may.
bool may_go_on(const Trial& t) {
  return t.world == World::kElastic && t.act == Act::kKill;
}
// Steps between checkpoints.
int every(const Trial& t) {
  return may_go_on(t) ? 10 : 2;
}

std::string text(const Trial& t) {
  return fmt::format("seed {}: {}, rank {} is {} {} ms after {}", t.seed, kWorlds[static_cast<int>(t.world)],
                     t.victim, kActs[static_cast<int>(t.act)], static_cast<double>(t.after.count()) / 1000,
                     t.beginning ? "the launch" : "the first checkpoint");
}

int number_of(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : static_cast<int>(std::stoul(value));
}

bool has_mpirun() {
  static const bool has = std::system("mpirun --version >/dev/null 2>&1") == 0;
  return has;
}

Trial draw(unsigned seed) {
  std::mt19937 random(seed);
  Trial t{};
  t.seed = seed;
  t.world = static_cast<World>(random() % (has_mpirun() ? 5 : 4));
  t.act = static_cast<Act>(random() % 3);
  t.victim = t.world == World::kThreads ? 0 : random() % kRanks;
  t.beginning = random() % 4 == 0 && t.world != World::kMpirun;
  t.after = std::chrono::microseconds(random() % (t.beginning ? 60000 : 200000));
  return t;
}

// Ranks that a message blames.
std::set<std::size_t> blamed(const std::string& message) {
  static const std::regex kBlame(
      "ranks?((?: [0-9]+)+) (?:died|is gone|did not come|did not answer|did not take|to begin|took no "
      "answer|stopped within)|"
      "(?:could not reach|in vain for) rank ([0-9]+)");
  std::set<std::size_t> out;
  for (std::sregex_iterator m(message.begin(), message.end(), kBlame), end; m != end; ++m) {
    std::istringstream in((*m)[1].str() + " " + (*m)[2].str());
    for (std::size_t r = 0; in >> r;) out.insert(r);
  }
  return out;
}

std::set<std::string> files_of(const fs::path& folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.insert(entry.path().filename().string());
  return out;
}

// Open MPI's launcher and the ranks that it starts, its children.
pid_t rank_of_mpirun(pid_t mpirun, std::size_t rank) {
  for (int i = 0; i < 3000; ++i) {
    std::ifstream children(fmt::format("/proc/{}/task/{}/children", mpirun, mpirun));
    for (pid_t child = 0; children >> child;) {
      const std::string environment = text_of(fmt::format("/proc/{}/environ", child));
      if (environment.find(fmt::format("OMPI_COMM_WORLD_RANK={}", rank) + '\0') != environment.npos)
        return child;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return -1;
}

class Matrix : public testing::Test {
 protected:
  Folder folder_;
  fs::path plan_ = scenario(folder_.path, "plan.json", kFour);
  fs::path checkpoints_ = folder_.path / "checkpoints", address_ = folder_.path / "address";

  Arguments arguments(const Trial& t) const {
    // A job that goes on ends by itself.
    Arguments a = run(plan_, may_go_on(t) ? 250 : 1000000,
                      {"--checkpoints", checkpoints_.string(), "--checkpoint-every", std::to_string(every(t)),
                       "--deadline", std::to_string(kDeadline.count())});
    if (t.world == World::kElastic) a.push_back("--elastic");
    if (t.world == World::kTcp) a.insert(a.end(), {"--rendezvous", "file:" + address_.string()});
    return a;
  }
  void wait_for_moment(const Trial& t) const {
    EXPECT_TRUE(t.beginning || comes(checkpoints_ / fmt::format("step-{:08}/index.json", every(t))));
    std::this_thread::sleep_for(t.after);
  }

  void play_threads(const Trial& t) const {
    Launched job(folder_.path, {arguments(t)});
    wait_for_moment(t);
    if (t.act == Act::kFreeze) {
      job.signal(0, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      job.signal(0, SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_TRUE(job.lives(0)) << job.err(0);  // a pause ends nothing
    }
    const int number = t.act == Act::kTerminate ? SIGTERM : SIGKILL;
    job.signal(0, number);
    expect_end_of_victim(job.wait(0), number, t);
  }

  // A rank that is asked to end does so by itself, unless it does not listen yet.
  static void expect_end_of_victim(int code, int number, const Trial& t) {
    const bool by_itself = number == SIGTERM && code == 128 + SIGTERM;
    EXPECT_TRUE(by_itself || (code == -number && (number == SIGKILL || t.beginning)))
        << code << ", " << text(t);
  }

  void play_processes(const Trial& t) const {
    Launched job(folder_.path, std::vector(kRanks, arguments(t)));
    wait_for_moment(t);
    const auto begin = std::chrono::steady_clock::now();
    job.signal(t.victim, t.act == Act::kKill ? SIGKILL : t.act == Act::kFreeze ? SIGSTOP : SIGTERM);
    for (std::size_t r = 0; r < kRanks; ++r) {
      if (r == t.victim) continue;
      const int code = job.wait(r);
      const std::string said = job.err(r);
      if (may_go_on(t) && (code == 0 || !t.beginning))
        EXPECT_EQ(code, 0) << r << ": " << said;
      else
        expect_named(t, r, code, said);
    }
    EXPECT_TRUE(may_go_on(t) || std::chrono::steady_clock::now() - begin < kDeadline + kSlack);
    if (t.act == Act::kFreeze) job.signal(t.victim, SIGKILL);
    expect_end_of_victim(job.wait(t.victim), t.act == Act::kTerminate ? SIGTERM : SIGKILL, t);
  }

  static void expect_named(const Trial& t, std::size_t rank, int code, const std::string& said) {
    // A rank that is asked to end stops the job; one that does not listen yet leaves without a word.
    if (t.act == Act::kTerminate && code == 128 + SIGTERM) return;
    EXPECT_EQ(code, 1) << rank << ": " << said;
    EXPECT_EQ(blamed(said), std::set<std::size_t>{t.victim}) << rank << ": " << said;
  }

  void play_mpirun(const Trial& t) const {
    const std::string out = (folder_.path / "mpirun.err").string();
    const auto err = [&](std::size_t r) { return folder_.path / fmt::format("rank{}.err", r); };
    for (std::size_t r = 0; r < kRanks; ++r) fs::remove(err(r));
    const pid_t mpirun = ::fork();
    if (mpirun == 0) {
      const int to = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(to, STDOUT_FILENO), ::dup2(to, STDERR_FILENO);
      // mpirun may drop what ranks say at their end, so they say it to files.
      const std::string to_file =
          fmt::format("exec \"$0\" \"$@\" 2> {}/rank$OMPI_COMM_WORLD_RANK.err", folder_.path.string());
      Arguments all{"mpirun",
                    "--allow-run-as-root",
                    "--oversubscribe",
                    "--enable-recovery",
                    "-n",
                    std::to_string(kRanks),
                    "sh",
                    "-c",
                    to_file,
                    ORRERY_BINARY};
      const Arguments of = arguments(t);
      all.insert(all.end(), of.begin(), of.end());
      std::vector<char*> argv;
      for (std::string& a : all) argv.push_back(a.data());
      argv.push_back(nullptr);
      ::execvp("mpirun", argv.data());
      ::_exit(126);
    }
    std::array<pid_t, kRanks> ranks{};
    for (std::size_t r = 0; r < kRanks; ++r) {
      ranks[r] = rank_of_mpirun(mpirun, r);
      EXPECT_GT(ranks[r], 0) << r;
    }
    wait_for_moment(t);
    ::kill(ranks[t.victim], t.act == Act::kKill ? SIGKILL : t.act == Act::kFreeze ? SIGSTOP : SIGTERM);
    const auto begin = std::chrono::steady_clock::now();
    const auto lives = [](pid_t p) { return ::kill(p, 0) == 0; };
    for (std::size_t r = 0; r < kRanks; ++r) {
      while (r != t.victim && lives(ranks[r]) &&
             std::chrono::steady_clock::now() - begin < kDeadline + kSlack)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_TRUE(r == t.victim || !lives(ranks[r])) << r;
    }
    if (lives(ranks[t.victim])) ::kill(ranks[t.victim], SIGKILL);
    ::waitpid(mpirun, nullptr, 0);
    for (const pid_t p : ranks) EXPECT_FALSE(lives(p));
    std::string said;
    for (std::size_t r = 0; r < kRanks; ++r) said += text_of(err(r));
    if (t.act == Act::kTerminate)
      EXPECT_NE(said.find("SIGTERM stopped the run after step"), said.npos) << said << text_of(out);
    else
      EXPECT_EQ(blamed(said), std::set<std::size_t>{t.victim}) << said;
  }

  // Nothing is left in memory or beside the checkpoints, and each of these loads.
  void expect_tidy(const Trial& t) const {
    EXPECT_EQ(shared_memory(), std::vector<std::string>());
    std::set<std::string> expected{"checkpoints", "plan.json", "mpirun.err"};
    for (std::size_t r = 0; r < kRanks; ++r) {
      for (const char* end : {".out", ".err"}) expected.insert("rank" + std::to_string(r) + end);
    }
    for (const std::string& name : files_of(folder_.path)) EXPECT_TRUE(expected.count(name) == 1) << name;
    std::vector<std::int64_t> whole;
    for (const std::string& name :
         fs::exists(checkpoints_) ? files_of(checkpoints_) : std::set<std::string>()) {
      if (name == "lock" || name.ends_with(".partial")) continue;
      std::smatch number;
      ASSERT_TRUE(std::regex_match(name, number, std::regex("step-(\\d{1,18})"))) << name;
      whole.push_back(std::stoll(number[1]));
    }
    EXPECT_EQ(whole.empty(), t.beginning && whole.empty());
    // From the newest to the oldest of the last few: each is the newest once.
    std::sort(whole.rbegin(), whole.rend());
    for (std::size_t i = 0; i < std::min<std::size_t>(3, whole.size()); ++i) {
      const Json rest = run_threads(
          folder_.path, run(plan_, static_cast<int>(whole[i]) + 1,
                            {"--checkpoints", checkpoints_.string(), "--resume", "--keep-checkpoints", "0"}));
      EXPECT_EQ(rest["first_step"], whole[i]);
      EXPECT_EQ(rest["steps"].size(), 1U);
      for (const std::int64_t step : {whole[i], whole[i] + 1})
        fs::remove_all(checkpoints_ / fmt::format("step-{:08}", step));
    }
    for (const std::string& name :
         fs::exists(checkpoints_) ? files_of(checkpoints_) : std::set<std::string>())
      EXPECT_FALSE(name.ends_with(".next")) << name;
  }
};

TEST_F(Matrix, TheRightRankIsNamedAndNothingIsLeft) {
  const auto first =
      static_cast<unsigned>(number_of("ORRERY_SEED", static_cast<int>(std::random_device{}() >> 2)));
  const int trials = number_of("ORRERY_TRIALS", 10);
  for (int i = 0; i < trials && !HasFailure(); ++i) {
    const Trial t = draw(first + static_cast<unsigned>(i));
    SCOPED_TRACE(text(t));
    fmt::print("{}\n", text(t));
    std::fflush(stdout);
    fs::remove_all(checkpoints_);
    if (t.world == World::kThreads)
      play_threads(t);
    else if (t.world == World::kMpirun)
      play_mpirun(t);
    else
      play_processes(t);
    expect_tidy(t);
  }
}

TEST(Blame, IsReadFromMessages) {
  using Ranks = std::set<std::size_t>;
  EXPECT_EQ(blamed("rank 3 did not come to \"x\" (call 4) within 9 ms: rank 1 waited"), Ranks{3});
  EXPECT_EQ(blamed("rank 2 died: rank 0 noticed, waiting in \"x\" (call 4) for ranks 1 2"), Ranks{2});
  EXPECT_EQ(blamed("ranks 2 3 did not come within 10 ms"), (Ranks{2, 3}));
  EXPECT_EQ(blamed("rank 1 could not reach rank 0 within 10 ms: no"), Ranks{0});
  EXPECT_EQ(blamed("rank 1 waited 10 ms for rank 2 to begin"), Ranks{2});
  EXPECT_EQ(blamed("all is well"), Ranks{});
}

}  // namespace
}  // namespace orrery
