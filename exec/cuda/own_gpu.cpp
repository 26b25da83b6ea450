// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "exec/cuda/cuda_executor.h"
#include "exec/cuda/nccl_communicator.h"
#include "exec/cuda_backend.h"

namespace orrery::exec {

ExecutorFactory on_own_gpu(int gpu) {
  int there = 0;
  kernels::cuda::check(cudaGetDeviceCount(&there), "the GPUs of this host");
  if (gpu >= there) {
    throw Error(fmt::format(
        "this host has {} GPUs, and more processes of the job: every rank needs one of its own", there));
  }
  return [gpu](const Placement& place, const RunOptions& options, Communicator& communicator, Abort& abort) {
    kernels::cuda::check(cudaSetDevice(gpu), "the rank's GPU");
    return std::make_unique<cuda::CudaExecutor>(
        place, options,
        std::make_unique<cuda::NcclCommunicator>(communicator, place.rank, options.deadline, abort), abort);
  };
}

}  // namespace orrery::exec
