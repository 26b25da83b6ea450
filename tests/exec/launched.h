// SPDX-License-Identifier: Apache-2.0
//
// `orrery run` as launchers start it: a process for each rank, and what it leaves behind.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/json.h"
#include "tests/folder.h"

namespace orrery {

using Arguments = std::vector<std::string>;

inline std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// How many times as long everything may take.
#ifdef __SANITIZE_THREAD__
inline constexpr int kSlower = 10;
#else
inline constexpr int kSlower = 1;
#endif
inline constexpr std::chrono::milliseconds kPatience{30'000 * kSlower};

// `orrery run` as a launcher starts it, once for each rank; a rank without arguments is started later.
class Launched {
 public:
  using Variables = std::map<std::string, std::string>;
  Launched(const fs::path& folder, const std::vector<Arguments>& by_rank, Variables environment = {})
      : folder_(folder), environment_(std::move(environment)), job_(next_job()), pids_(by_rank.size(), -1) {
    ++jobs_;
    for (std::size_t r = 0; r < by_rank.size(); ++r) {
      if (!by_rank[r].empty()) start(r, by_rank[r]);
    }
  }
  void start(std::size_t rank, const Arguments& arguments) {
    pids_[rank] = ::fork();
    if (pids_[rank] != 0) return;
    const std::string n = std::to_string(pids_.size()), r = std::to_string(rank);
    for (const auto& [name, value] : Variables{{"RANK", r},
                                               {"LOCAL_RANK", r},
                                               {"WORLD_SIZE", n},
                                               {"LOCAL_WORLD_SIZE", n},
                                               {"TORCHELASTIC_RUN_ID", job_}})
      ::setenv(name.c_str(), value.c_str(), 1);
    for (const auto& [name, value] : environment_) ::setenv(name.c_str(), value.c_str(), 1);
    redirect(file(rank, ".out"), STDOUT_FILENO);
    redirect(file(rank, ".err"), STDERR_FILENO);
    std::vector<char*> argv;
    static const std::string binary = ORRERY_BINARY;
    argv.push_back(const_cast<char*>(binary.c_str()));
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    ::execv(binary.c_str(), argv.data());
    ::_exit(126);
  }
  ~Launched() {
    for (const pid_t p : pids_) {
      if (p > 0) ::kill(p, SIGKILL), ::waitpid(p, nullptr, 0);
    }
  }
  bool lives(std::size_t rank) const { return ::waitpid(pids_[rank], nullptr, WNOHANG) == 0; }
  pid_t pid(std::size_t rank) const { return pids_[rank]; }
  void signal(std::size_t rank, int number) const { ::kill(pids_[rank], number); }
  // The exit code, or minus the signal; -1000 when it takes longer than kPatience.
  int wait(std::size_t rank) {
    for (int i = 0; i < kPatience.count(); ++i) {
      int status = 0;
      if (::waitpid(pids_[rank], &status, WNOHANG) == pids_[rank]) {
        pids_[rank] = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return -1000;
  }
  std::string out(std::size_t rank) const { return text_of(file(rank, ".out")); }
  std::string err(std::size_t rank) const { return text_of(file(rank, ".err")); }
  std::size_t size() const { return pids_.size(); }
  // What the launcher of the next job calls it.
  static std::string next_job() { return std::to_string(::getpid()) + "." + std::to_string(jobs_) + "."; }

 private:
  inline static int jobs_ = 0;
  fs::path file(std::size_t rank, const char* end) const {
    return folder_ / ("rank" + std::to_string(rank) + end);
  }
  static void redirect(const fs::path& to, int descriptor) {
    ::dup2(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), descriptor);
  }
  fs::path folder_;
  Variables environment_;
  std::string job_;
  std::vector<pid_t> pids_;
};

// Whether the file is there within kPatience.
inline bool comes(const fs::path& file) {
  for (int i = 0; i < kPatience.count() && !fs::exists(file); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return fs::exists(file);
}

// Names of shared memory of this test's jobs.
inline std::vector<std::string> shared_memory() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("orrery-" + std::to_string(::getuid())) &&
        name.find("-" + std::to_string(::getpid()) + ".") != name.npos)
      out.push_back(name);
  }
  return out;
}

// Whether there are so many of them within kPatience.
inline bool comes_to(std::size_t names) {
  for (int i = 0; i < kPatience.count() && shared_memory().size() != names; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return shared_memory().size() == names;
}

// One process, whose ranks are threads.
inline Json run_threads(const fs::path& folder, const Arguments& arguments) {
  Launched one(folder, {arguments});
  EXPECT_EQ(one.wait(0), 0) << one.err(0);
  return Json::parse(one.out(0));
}

// The tiny scenario under another plan.
inline fs::path scenario(const fs::path& folder, const char* name, const Json& plan,
                         const Json& training = Json::object()) {
  Json s = Json::parse(text_of(fs::path(ORRERY_ROOT) / "scenarios/tiny-cpu.json"));
  s["plan"] = plan;
  s["training"].update(training);
  const fs::path file = folder / name;
  std::ofstream(file) << s.dump();
  return file;
}

inline Arguments run(const fs::path& scenario, int steps, const Arguments& more = {}) {
  Arguments a{"run", scenario.string(), "--json", "--steps", std::to_string(steps)};
  a.insert(a.end(), more.begin(), more.end());
  return a;
}

inline const Json kFour = {{"tp", 1}, {"pp", 2}, {"dp", 2}, {"zero", 1}, {"micro_batches", 8}};

}  // namespace orrery
