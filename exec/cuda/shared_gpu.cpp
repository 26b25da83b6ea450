// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda_backend.h"

#include "exec/cuda/cuda_executor.h"
#include "exec/cuda/local_communicator.h"

namespace orrery::exec {

ExecutorFactory on_shared_gpu() {
  kernels::cuda::check(cudaSetDevice(0), "the first GPU");
  const auto channels = std::make_shared<cuda::LocalChannels>();
  return [channels](const Placement& place, const RunOptions& options, Communicator& communicator,
                    Abort& abort) {
    kernels::cuda::check(cudaSetDevice(0), "the first GPU");
    return std::make_unique<cuda::CudaExecutor>(
        place, options,
        std::make_unique<cuda::LocalCommunicator>(communicator, channels, place.rank, options.deadline,
                                                  abort),
        abort);
  };
}

}  // namespace orrery::exec
