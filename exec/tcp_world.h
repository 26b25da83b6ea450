// SPDX-License-Identifier: Apache-2.0
//
// Processes that meet over TCP, where several hosts have no MPI: every rank has a connection to the first,
// which brings calls together and computes what they ask for in member order. Made for what ranks on GPUs
// tell each other beside NCCL (its ids, reports, parts of checkpoints); plans on processors run over it too,
// slowly. Whoever reaches the port can join or disturb the job: it is for networks that one trusts. Internal
// to exec/.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "exec/process_world.h"

namespace orrery::exec {

// Where the first rank is found.
struct Rendezvous {
  std::string host, port;  // by TCP; or
  std::string file;        // the first rank writes its address here, which all hosts can read
};
// "tcp://HOST:PORT" or "file:PATH". Throws InputError.
Rendezvous parse_rendezvous(const std::string& text);

// Throws Error when not all ranks have come within the deadline.
std::unique_ptr<ProcessWorld> join_by_tcp(const Launch& launch, const Rendezvous& rendezvous,
                                          std::chrono::milliseconds deadline);

}  // namespace orrery::exec
