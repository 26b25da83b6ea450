// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace orrery::cli {

using Clock = std::chrono::steady_clock;

std::string progress_line(const std::string& phase, double share, double elapsed_s, double in_phase_s) {
  constexpr int kWidth = 30;
  constexpr double kEnough = 0.05, kSoon_s = 1;
  std::string line = phase;
  share = std::clamp(share, 0.0, 1.0);
  if (share > 0)
    line += fmt::format(" [{:<{}}] {:3.0f} %", std::string(static_cast<std::size_t>(share * kWidth), '#'),
                        kWidth, 100 * share);
  line += fmt::format(", {:.0f} s", elapsed_s);
  if (share < kEnough || in_phase_s < kSoon_s) return line;
  const double left = in_phase_s * (1 - share) / share;
  return line + (left < 90 ? fmt::format(", about {:.0f} s left", left)
                           : fmt::format(", about {:.0f} min left", left / 60));
}

Progress::Progress(const char* phase) : phase_(phase) {
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";  // cannot clear a line
  if (isatty(STDERR_FILENO) != 0 && !dumb) thread_ = std::thread([this] { run(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Progress::run() {
  constexpr std::chrono::milliseconds kQuiet(1000), kEvery(200);
  const auto since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  const auto begin = Clock::now();
  auto phase_began = begin;
  const char* phase = phase_;
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, kQuiet, [this] { return end_; })) return;
  do {
    if (const char* const now = phase_; now != phase) {
      phase = now;
      phase_began = Clock::now();
    }
    fmt::print(stderr, "\r{}\033[K", progress_line(phase, share_, since(begin), since(phase_began)));
    std::fflush(stderr);
  } while (!ended_.wait_for(lock, kEvery, [this] { return end_; }));
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace orrery::cli
