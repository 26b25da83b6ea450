// SPDX-License-Identifier: Apache-2.0
//
// How a run is asked to stop early: the first SIGINT or SIGTERM asks, and a second one has its default action
// and ends the process.
//
//   catch_stop_signals();
//   options.stop = [] { return stop_signal.load(); };   // the run ends after its step, with a checkpoint
#pragma once

#include <atomic>
#include <csignal>

namespace orrery::exec {

// The signal that asked; 0: none did. A signal handler reaches nothing but a global.
inline std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

inline void catch_stop_signals() {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int number) {
    stop_signal.store(number);
    for (const int s : {SIGINT, SIGTERM}) ::signal(s, SIG_DFL);
  };
  for (const int s : {SIGINT, SIGTERM}) ::sigaction(s, &action, nullptr);
}

inline const char* name_of_signal(int number) {
  return number == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace orrery::exec
