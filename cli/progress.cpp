// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace orrery::cli {

using Clock = std::chrono::steady_clock;

Progress::Progress(const char* phase) : phase_(phase) {
  if (isatty(STDERR_FILENO) != 0) thread_ = std::thread([this] { run(); });
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
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, kQuiet, [this] { return end_; })) return;
  do {
    draw(std::chrono::duration<double>(Clock::now() - begin).count());
  } while (!ended_.wait_for(lock, kEvery, [this] { return end_; }));
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

void Progress::draw(double elapsed_s) const {
  constexpr int kWidth = 30;
  const double share = share_;
  const auto full = static_cast<std::size_t>(share * kWidth);
  std::string line = fmt::format("\r{}", phase_.load());
  if (share > 0) line += fmt::format(" [{:<{}}] {:3.0f} %", std::string(full, '#'), kWidth, 100 * share);
  fmt::print(stderr, "{}, {:.0f} s\033[K", line, elapsed_s);
  std::fflush(stderr);
}

}  // namespace orrery::cli
