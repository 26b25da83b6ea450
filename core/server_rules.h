// SPDX-License-Identifier: Apache-2.0
//
// What workers and parameter servers agree on, in simulated runs (sim/parameter_server/) and in real ones
// (exec/parameter_server.h).
//
//   kAsynchronous  a gradient counts whatever version of the parameters it is of. Its staleness is the number
//                  of updates between its pull and the update that it joins. With a bound, a worker waits
//                  while it is more gradients than that ahead of the slowest (stale synchronous parallel: Ho
//                  et al., NIPS 2013)
//   kSynchronous   an update takes the first `wait_for` gradients of its version; workers pull the next one
//                  when it is there, and gradients that come later are dropped (backup workers: Chen et al.
//                  2016, arXiv:1604.00981)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "core/one_of.h"

namespace orrery {

enum class ServerMode : std::uint8_t { kAsynchronous, kSynchronous };
constexpr auto enum_names(ServerMode) {
  return std::array{std::pair{ServerMode::kAsynchronous, "asynchronous"},
                    std::pair{ServerMode::kSynchronous, "synchronous"}};
}

struct ServerRules {
  std::int64_t workers = 1;
  ServerMode mode = ServerMode::kAsynchronous;
  std::int64_t wait_for = 1;  // gradients of an update
  std::int64_t bound = 0;     // gradients that a worker may be ahead of the slowest; 0: any
};

// What is wrong with them; empty when nothing is.
inline std::string server_problem(const ServerRules& r) {
  if (r.wait_for > r.workers)
    return "an update waits for " + std::to_string(r.wait_for) + " gradients, and there are " +
           std::to_string(r.workers) + " workers";
  if (r.mode == ServerMode::kSynchronous && r.bound > 0)
    return "workers of synchronous training are never ahead";
  // A worker may not wait for the slowest while the server waits for its gradient.
  if (r.bound > 0 && r.wait_for > 1)
    return "workers that wait for the slowest may keep back gradients that an update waits for";
  return {};
}

}  // namespace orrery
