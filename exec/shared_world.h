// SPDX-License-Identifier: Apache-2.0
//
// Ranks that share memory: threads of one process, or processes of one host. Members meet, each does its
// share of the work directly on the others' buffers (one member's slice of a sum, one copy of a gather), and
// they meet again before anyone goes on: one pass over the data whatever the number of ranks.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "exec/communicator.h"
#include "exec/region.h"

namespace orrery::exec {

class SharedWorld {
 public:
  // Ranks 0 to ranks-1 are threads of this process.
  SharedWorld(std::int64_t ranks, std::chrono::milliseconds deadline);
  // `ranks` are processes of this host, of the job that all of them call `job`, and this one is `self`; the
  // rank dies with the calling thread. Throws Error when one does not come within the deadline.
  SharedWorld(const std::string& job, std::span<const std::int64_t> ranks, std::int64_t self,
              std::chrono::milliseconds deadline);

  std::unique_ptr<Communicator> communicator(std::int64_t rank);
  Abort& abort() { return region_.abort(); }
  std::int64_t dead_rank() { return region_.dead_rank(); }  // or -1
  // Of a process that stands by: returns when rank 0 has ended the job. Throws Error when the job fails.
  void stand_by();
  std::atomic<std::uint32_t>& waits_elsewhere() { return region_.waits_elsewhere(); }
  // Why `waiting`, a rank, waited for the whole deadline in a call that is late.
  Blame blame_for(Incomplete late, std::int64_t waiting);
  Waits waits() { return {region_.incomplete(), region_.stopped()}; }
  // After a failure, the processes that go on (region.h); none where ranks are threads.
  std::vector<std::int64_t> survivors() { return region_.survivors(deadline_); }

 private:
  friend class SharedCommunicator;
  Region region_;
  std::vector<std::int64_t> ranks_;
  std::chrono::milliseconds deadline_;
  int spins_;  // looks at a flag before sleeping on it; none when ranks outnumber processors
};

}  // namespace orrery::exec
