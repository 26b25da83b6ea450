// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "exec/cuda/cuda_executor.h"
#include "exec/cuda/nccl_communicator.h"
#include "exec/cuda_backend.h"
#include "exec/launch.h"

namespace orrery::exec {

ExecutorFactory on_own_gpu(int local_rank) {
  // Streams of a rank have queues of their own in the device, so that a receive that waits holds up no other.
  // CUDA reads this at its first call.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int visible = 0;
  kernels::cuda::check(cudaGetDeviceCount(&visible), "the GPUs of this host");
  const int gpu = gpu_of(local_rank, visible);
  return [gpu](const Placement& place, const RunOptions& options, Communicator& communicator, Abort& abort) {
    kernels::cuda::check(cudaSetDevice(gpu), "the rank's GPU");
    return std::make_unique<cuda::CudaExecutor>(
        place, options,
        std::make_unique<cuda::NcclCommunicator>(communicator, place.rank, options.deadline, abort), abort);
  };
}

}  // namespace orrery::exec
