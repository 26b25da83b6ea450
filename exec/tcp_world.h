// SPDX-License-Identifier: Apache-2.0
//
// Processes that meet over TCP, where several hosts have no MPI: every rank has a connection to the first,
// which brings calls together and computes what they ask for in member order. Made for what ranks on GPUs
// tell each other beside NCCL (its ids, reports, parts of checkpoints); plans on processors run over it too,
// slowly. A process joins only if it knows the job's secret (secret.h). What ranks send is not encrypted.
// Internal to exec/.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "exec/process_world.h"
#include "exec/tcp_rendezvous.h"

namespace orrery::exec {

// With an address, `secret` must be there (throws InputError); with a file it may be, and else rank 0 makes
// one. A rank that sends more than `largest_message` bytes ends the job. Throws Error when not all ranks have
// come within the deadline.
std::unique_ptr<ProcessWorld> join_by_tcp(const Launch& launch, const Rendezvous& rendezvous,
                                          const std::optional<Secret>& secret,
                                          std::chrono::milliseconds deadline, std::uint64_t largest_message);

}  // namespace orrery::exec
