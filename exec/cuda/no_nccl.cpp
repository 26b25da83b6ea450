// SPDX-License-Identifier: Apache-2.0
//
// In place of own_gpu.cpp where there is a CUDA toolkit and no NCCL.
#include "core/error.h"
#include "exec/cuda_backend.h"

namespace orrery::exec {

ExecutorFactory on_own_gpu(int) {
  throw Error("this program was built without NCCL: on GPUs its ranks are threads of one process");
}

}  // namespace orrery::exec
