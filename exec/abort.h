// SPDX-License-Identifier: Apache-2.0
//
// The end of a job in which something failed: the first reason is kept, and every wait looks here. Its state
// may stand in memory that several processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "core/error.h"

namespace orrery::exec {

struct AbortState {
  std::atomic<std::uint32_t> stage{0};  // 0: none; 1: the reason is being written; 2: it is there
  char reason[1020] = {};               // ends with zero
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

class Abort {
 public:
  explicit Abort(AbortState& state) : state_(state) {}

  // Returns the job's reason: this one, unless another came first.
  std::string raise(const std::string& reason) {
    std::uint32_t none = 0;
    if (state_.stage.compare_exchange_strong(none, 1)) {
      state_.reason[reason.copy(state_.reason, sizeof state_.reason - 1)] = '\0';
      state_.stage.store(2, std::memory_order_release);
    }
    // Whoever came first is writing, unless it died over it.
    for (int looks = 0; !raised() && looks < 1000; ++looks)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    return this->reason();
  }
  bool raised() const { return state_.stage.load(std::memory_order_acquire) == 2; }
  std::string reason() const { return raised() ? state_.reason : "another rank failed"; }
  void check() const {
    if (raised()) throw Error(reason());
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
  AbortState& state_;
};

}  // namespace orrery::exec
