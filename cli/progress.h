// SPDX-License-Identifier: Apache-2.0
//
// What a command that takes over a second is at, on stderr when that is a terminal: the phase, a bar where
// its share is known, the time, and about how long the phase still takes. A thread of its own draws it, so
// phases need not call in to be seen.
//
//   {
//     Progress progress("reading");
//     work([&](const char* phase, double share) { progress(phase, share); });
//   }                      // the line is cleared here
//   fmt::print("...");     // before anything else is printed
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace orrery::cli {

// The line; `elapsed_s` since the command began, `in_phase_s` since the phase did. What is left is said once
// enough is done to tell.
std::string progress_line(const std::string& phase, double share, double elapsed_s, double in_phase_s);

class Progress {
 public:
  explicit Progress(const char* phase);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From any thread. The phase is text that stays.
  void operator()(double share) { share_ = share; }
  void operator()(const char* phase, double share) {
    phase_ = phase;
    share_ = share;
  }

 private:
  void run();

  std::atomic<const char*> phase_;
  std::atomic<double> share_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace orrery::cli
