// SPDX-License-Identifier: Apache-2.0
//
// The job that a launcher's processes form: shared memory between those of a host, and MPI between hosts; or
// TCP between all.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/abort.h"
#include "exec/communicator.h"
#include "exec/launch.h"
#include "exec/secret.h"

namespace orrery::exec {

class ProcessWorld {
 public:
  virtual ~ProcessWorld() = default;
  virtual Communicator& communicator() = 0;
  virtual Abort& abort() = 0;
  // The job has failed: other hosts are told why.
  virtual void spread_failure() = 0;
  // After a failure, the ranks that are alive, all of which ask this; none where that cannot be told, as
  // between hosts.
  virtual std::vector<std::int64_t> survivors() = 0;
  // Of a process that has no part in the plan: until the others have ended the job. Throws Error when the job
  // fails, and where processes are not all of one host.
  virtual void stand_by();
};

// Whether jobs may span hosts: whether this program was built with MPI.
bool spans_hosts();

// Returns when all processes have come; throws Error when one does not within the deadline. The rank dies
// with the calling thread. Unless it is empty, `rendezvous` says where ranks that know `secret` meet over TCP
// (tcp_world.h); throws InputError when it is not understood or the secret is missing. Over TCP, a rank that
// sends more than `largest_message` bytes at a time ends the job.
std::unique_ptr<ProcessWorld> join(const Launch& launch, const std::string& rendezvous,
                                   const std::optional<Secret>& secret, std::chrono::milliseconds deadline,
                                   std::uint64_t largest_message);

}  // namespace orrery::exec
