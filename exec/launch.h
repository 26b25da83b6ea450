// SPDX-License-Identifier: Apache-2.0
//
// Who this process is among those that a launcher started: torchrun, Open MPI's mpirun, PMI (MPICH, Intel
// MPI) and Slurm's srun tell it in environment variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace orrery::exec {

struct Launch {
  std::string launcher;  // "torchrun", ...
  std::int64_t rank = 0, ranks = 1;
  std::int64_t local_rank = 0, local_ranks = 1;  // of this host
  std::string job;  // the same for all processes of the job on this host, and for no others
  std::string id;   // the launcher's name of the job, the same on all hosts; empty where it has none
  bool one_host() const { return local_ranks == ranks; }
};

using Environment = std::function<const char*(const char* name)>;  // null: not set

// Nothing when no launcher started this process. Throws InputError when its variables contradict each other.
std::optional<Launch> read_launch(const Environment& environment);
std::optional<Launch> read_launch();

std::string host_name();

// The GPU, of `visible` ones, of the process with this number on its host. A launcher that masks all GPUs but
// a process's own (srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES) leaves it number 0; where processes share
// one by mistake, NCCL says so. Throws Error where there are fewer GPUs than processes.
int gpu_of(int local_rank, int visible);

}  // namespace orrery::exec
