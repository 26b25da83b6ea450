// SPDX-License-Identifier: Apache-2.0
//
// Processes of several hosts. Groups whose members share a host use its memory (shared_world.h); the others
// exchange parts directly by MPI messages, each member summing one slice in member order, so that results do
// not depend on who runs where. Internal to exec/.
#pragma once

#include <chrono>
#include <memory>

#include "exec/process_world.h"

namespace orrery::exec {

// Throws Error where the program was built without MPI, or the launcher does not speak it.
std::unique_ptr<ProcessWorld> join_by_mpi(const Launch& launch, std::chrono::milliseconds deadline);

}  // namespace orrery::exec
