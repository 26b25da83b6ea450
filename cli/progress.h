// SPDX-License-Identifier: Apache-2.0
//
// What a command that takes over a second is at, on stderr when that is a terminal: the phase, a bar where
// its share is known, and the time. A thread of its own draws it, so phases need not call in to be seen.
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
#include <thread>

namespace orrery::cli {

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
  void draw(double elapsed_s) const;
  void run();

  std::atomic<const char*> phase_;
  std::atomic<double> share_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace orrery::cli
