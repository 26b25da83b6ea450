// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads that only talk to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "exec/shared_world.h"

namespace orrery::exec {

// Runs body(rank, communicator) on `n` threads; returns each rank's error text.
template <class Body>
std::vector<std::string> on_ranks(std::int64_t n, std::chrono::milliseconds deadline, Body body) {
  SharedWorld world(n, deadline);
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  std::vector<std::jthread> threads;
  for (std::int64_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      const auto c = world.communicator(r);
      try {
        body(r, *c);
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  }
  threads.clear();
  return errors;
}

inline constexpr std::chrono::milliseconds kLong{20000};

}  // namespace orrery::exec
