// SPDX-License-Identifier: Apache-2.0
//
// The end of a job in which something failed: the first reason is kept, and every wait looks here.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "core/error.h"

namespace orrery::exec {

class Abort {
 public:
  // Returns the job's reason: this one, unless another came first.
  std::string raise(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!raised_.load(std::memory_order_relaxed)) {
      reason_ = reason;
      raised_.store(true, std::memory_order_release);
    }
    return reason_;
  }
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  void check() const {
    if (raised()) throw Error(reason_);
  }

  // Waits for `ready` under `lock` until the deadline; false when it passed. Throws when the job ended.
  template <class Ready>
  bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
            std::chrono::milliseconds deadline, Ready ready) const {
    constexpr std::chrono::milliseconds kLook{20};
    const auto until = std::chrono::steady_clock::now() + deadline;
    while (!changed.wait_for(lock, kLook, ready)) {
      check();
      if (std::chrono::steady_clock::now() > until) return ready();
    }
    return true;
  }

 private:
  std::atomic<bool> raised_{false};
  std::mutex mutex_;
  std::string reason_;  // written once, before raised_
};

}  // namespace orrery::exec
