// SPDX-License-Identifier: Apache-2.0
//
//   on_threads(4, 0, jobs.size(), [&](std::size_t thread, std::size_t i) { results[i] = work(jobs[i],
//   thread); });
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace orrery {

// Calls work(thread, i) once for each i from `begin` up to `end`, on so many threads, the caller's among
// them; `thread` counts them from 0. What a call throws ends the loop and is thrown again.
template <class Work>
void on_threads(std::size_t threads, std::size_t begin, std::size_t end, const Work& work) {
  std::atomic<std::size_t> next = begin;
  std::exception_ptr failure;
  std::mutex failing;
  const auto loop = [&](std::size_t thread) {
    try {
      for (std::size_t i = next++; i < end; i = next++) work(thread, i);
    } catch (...) {
      const std::lock_guard lock(failing);
      failure = std::current_exception();
      next = end;
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back(loop, t);
    loop(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace orrery
