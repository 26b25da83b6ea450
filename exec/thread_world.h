// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of this process. Members meet, each does its share of the work directly on the others'
// buffers (one member's slice of a sum, one copy of a gather), and they meet again before anyone goes on: one
// pass over the data whatever the number of ranks.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/abort.h"
#include "exec/communicator.h"

namespace orrery::exec {

class ThreadWorld {
 public:
  ThreadWorld(std::int64_t ranks, std::chrono::milliseconds deadline);
  ~ThreadWorld();
  std::unique_ptr<Communicator> communicator(std::int64_t rank);
  Abort& abort() { return abort_; }

 private:
  friend class ThreadCommunicator;
  struct Group;
  struct Channel;
  Group& group(std::span<const std::int64_t> members);
  Channel& channel(std::int64_t from, std::int64_t to, int number);

  std::int64_t ranks_;
  std::chrono::milliseconds deadline_;
  int spins_;  // looks at a flag before sleeping on it; none when ranks outnumber processors
  Abort abort_;
  std::mutex mutex_;
  std::map<std::vector<std::int64_t>, std::unique_ptr<Group>> groups_;
  std::map<std::array<std::int64_t, 3>, std::unique_ptr<Channel>> channels_;
};

}  // namespace orrery::exec
