// SPDX-License-Identifier: Apache-2.0
//
// In place of mpi_world.cpp where there is no MPI.
#include "core/error.h"
#include "exec/mpi_world.h"

namespace orrery::exec {

bool spans_hosts() {
  return false;
}

std::unique_ptr<ProcessWorld> join_by_mpi(const Launch&, std::chrono::milliseconds) {
  throw Error("processes of several hosts need MPI, and this program was built without it");
}

}  // namespace orrery::exec
