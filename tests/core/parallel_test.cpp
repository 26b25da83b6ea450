// SPDX-License-Identifier: Apache-2.0
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace orrery {
namespace {

TEST(OnThreads, CallsOnceForEachOfARange) {
  for (const std::size_t threads : {1U, 3U}) {
    std::vector<std::atomic<int>> calls(100);
    std::atomic<std::size_t> highest = 0;
    on_threads(threads, 10, 90, [&](std::size_t thread, std::size_t i) {
      ++calls[i];
      if (thread > highest) highest = thread;
    });
    for (std::size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], i >= 10 && i < 90 ? 1 : 0) << i;
    EXPECT_LT(highest, threads);
  }
}

TEST(OnThreads, ThrowsWhatACallThrowsAndEnds) {
  std::atomic<int> calls = 0;
  const auto fail = [&](std::size_t, std::size_t i) {
    ++calls;
    if (i == 5) throw std::runtime_error("five");
  };
  EXPECT_THROW(on_threads(1, 0, 1000, fail), std::runtime_error);
  EXPECT_EQ(calls, 6);
  EXPECT_THROW(on_threads(2, 0, 1000, fail), std::runtime_error);
}

}  // namespace
}  // namespace orrery
